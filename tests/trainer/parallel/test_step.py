"""The step on several ranks against the step on one device: the same records and states, whatever the network does."""

from __future__ import annotations

import dataclasses
import functools
import threading
from typing import Any

import numpy as np
import pytest

from auditkit.formats.recipe import Recipe
from auditkit.kernels.backend import CudaOps
from auditkit.model.state import State, document, initial_state
from auditkit.numerics import reference
from auditkit.numerics.nonfinite import NonFinite
from tests.golden.make_training import RECIPES, tokens_of
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.trainer.parallel.states import CUT, Record, joined, on_one_device, split, steps_of, with_batch
from tests.trainer.parallel.thread_group import ThreadGroup, play
from trainer.parallel.alone import Alone
from trainer.parallel.layout import Layout
from trainer.parallel.memory import HostMemory, memory_of
from trainer.parallel.step import RankStep

STEPS = 3
FOLDED = RECIPES["tied head, gradients folded in groups of two, twice"]
TIED = RECIPES["tied head, grouped heads, window, QK-norm, z-loss, clip, cosine"]


@functools.cache
def truth(recipe: Recipe, steps: int = STEPS) -> list[Record]:
    """What one device records."""
    return on_one_device(recipe, steps)


def check(recipe: Recipe, size: int, *, seed: int = 0, start: State | None = None, **options: Any) -> None:
    """Every rank records what one device does, and together they hold its state."""
    want = truth(recipe) if start is None else on_one_device(recipe, STEPS, start)
    found = play(size, lambda group: steps_of(group, recipe, STEPS, start, **options), seed=seed)
    assert all(records == want for records, _ in found)
    assert document(joined(recipe, [state for _, state in found]), recipe).root() == want[-1][0]


@pytest.mark.parametrize("size", [1, 2, 4, 20])
@pytest.mark.parametrize("name", sorted(RECIPES))
def test_every_recipe_on_any_number_of_ranks(name: str, size: int) -> None:
    check(RECIPES[name], size, seed=size)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
def test_tensors_that_ranks_cut(size: int) -> None:
    layout = Layout(CUT.model, size)
    assert size == 1 or any(not piece.whole for pieces in layout.pieces for piece in pieces)
    check(CUT, size, seed=size % 2, bucket=1)


@pytest.mark.parametrize("count", [1, 2, 5, 6])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_micro_batches_that_divide_and_that_do_not(size: int, count: int) -> None:
    check(with_batch(TIED, count), size, seed=7)


@pytest.mark.parametrize(
    ("count", "fold", "sizes"),
    [(8, (2, 2), [1, 3, 4, 8, 11]), (7, (2, 2), [2, 3, 4, 5]), (6, (3,), [1, 2, 6]), (5, (8,), [1, 2, 4, 5, 6])],
)
def test_folds(count: int, fold: tuple[int, ...], sizes: list[int]) -> None:
    assert truth(with_batch(TIED, count, 1, fold)) != truth(with_batch(TIED, count))
    for size in sizes:
        check(with_batch(TIED, count, 1, fold), size, seed=size)


@pytest.mark.parametrize("seed", range(4))
def test_a_shuffled_network_changes_no_bit(seed: int) -> None:
    """Delays, orders of arrival and of addition, and the cut into buckets, differ by the seed."""
    check(CUT, 3, seed=seed + 100, bucket=[1, 40_000, 100_000, 1 << 30][seed])
    check(with_batch(CUT, 6, 1, (2, 2)), 3, seed=seed + 100)


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_threads_change_no_bit(threads: int) -> None:
    check(with_batch(TIED, 7), 2, threads=threads, seed=threads)
    check(with_batch(TIED, 7, 1, (2,)), 2, threads=threads, seed=threads)


def test_a_run_may_go_on_on_another_number_of_ranks() -> None:
    """3 ranks, then 2, then one device, then 5."""
    for recipe in (CUT, with_batch(TIED, 6, 1, (2, 2))):
        want, state = on_one_device(recipe, 8), initial_state(recipe)
        records: list[Record] = []
        for size in (3, 2, 1, 5):
            found = play(size, functools.partial(steps_of, recipe=recipe, steps=2, start=state), seed=size)
            records += found[0][0]
            state = joined(recipe, [rank for _, rank in found])
        assert records == want


def test_alone_is_a_group_too() -> None:
    memory = HostMemory()
    found, state = steps_of(Alone(memory.copy), CUT, STEPS)
    assert found == truth(CUT)
    assert document(joined(CUT, [state]), CUT).root() == found[-1][0]
    assert steps_of(Alone(memory.copy), with_batch(CUT, 5, 1, (2,)), STEPS)[0] == truth(with_batch(CUT, 5, 1, (2,)))


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("where", ["param", "adam_m"])
def test_a_step_without_a_result_ends_on_every_rank(where: str, size: int) -> None:
    """In the forward pass of all ranks, and in the update of the one that holds the moment."""
    start = initial_state(TIED)
    tensor = (start.params if where == "param" else start.adam_m)["model.norm.weight"]
    tensor[...] = np.float32(3e38) if where == "param" else np.float32(np.inf)
    ended = []

    def one(group: ThreadGroup) -> None:
        with pytest.raises(NonFinite) as found:
            steps_of(group, TIED, 1, start)
        ended.append(str(found.value))

    play(size, one)
    assert len(ended) == size and len(set(ended)) == 1
    assert where != "adam_m" or "of model.norm.weight non-finite" in ended[0]


@pytest.mark.parametrize("asks", [0, 2, None])
def test_all_ranks_learn_that_one_was_asked_to_stop(asks: int | None) -> None:
    def one(group: ThreadGroup) -> bool:
        layout, memory = Layout(TIED.model, 3), HostMemory()
        state = split(initial_state(TIED), TIED, layout, group.rank, reference)
        return RankStep(group, layout, memory, reference, TIED)(state, tokens_of(TIED, 0), group.rank == asks)[2]

    assert play(3, one) == [asks is not None] * 3


class OneAtATime(EmulatedDevice):
    """The emulator runs kernels in one thread of the process."""

    turn = threading.Lock()

    def launch(self, *args: Any, **options: Any) -> None:
        with self.turn:
            super().launch(*args, **options)


class TestOnADevice:
    """The kernels' back end, its arrays in the emulator's guarded memory."""

    pytestmark = EMULATOR_MARKS

    @pytest.mark.parametrize(("size", "fold"), [(3, ()), (2, (2, 2))])
    def test_ranks_with_devices_record_the_same(self, size: int, fold: tuple[int, ...]) -> None:
        recipe = with_batch(FOLDED, 4, 1, fold)
        ranks = [CudaOps(OneAtATime(seed=rank)) for rank in range(size)]

        def one(group: ThreadGroup) -> tuple[list[Record], Any]:
            ops = ranks[group.rank]
            memory = memory_of(ops)
            group._down, group._up = memory.host, lambda array, values: memory.copy(array, memory.place(values))
            return steps_of(group, recipe, 2, ops=ops)

        found = play(size, one, seed=size)
        assert all(records == on_one_device(recipe, 2) for records, _ in found)

    def test_ranks_of_different_back_ends_record_the_same(self) -> None:
        """A processor and a device, with a tensor cut between them."""
        model = dataclasses.replace(FOLDED.model, vocab_size=8_200)
        recipe = dataclasses.replace(with_batch(FOLDED, 1), model=model)
        assert [pieces[0].whole for pieces in Layout(model, 2).pieces] == [False, False]

        def one(group: ThreadGroup) -> list[Record]:
            if group.rank == 0:
                return steps_of(group, recipe, 2)[0]
            ops = CudaOps(OneAtATime(seed=3))
            memory = memory_of(ops)
            group._up = lambda array, values: memory.copy(array, memory.place(np.asarray(values)))
            return steps_of(group, recipe, 2, ops=ops)[0]

        down = lambda array: np.array(array.view(np.ndarray))  # noqa: E731
        assert all(records == on_one_device(recipe, 2) for records in play(2, one, down=down))
