"""Skipped steps on several ranks against one device: all ranks decide the same, and go on with the same parameters."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from auditkit.errors import AuditkitError, Unsupported
from auditkit.formats.recipe import DivergenceConfig, Recipe
from auditkit.formats.skips import NO_RESULT, NORM
from auditkit.kernels.backend import CudaOps
from auditkit.model.state import State, digests_of, document, initial_state
from auditkit.numerics import reference
from auditkit.numerics.arrays import F32
from auditkit.numerics.nonfinite import NonFinite
from tests.golden.make_skips import STEPS, SUMS, skipping
from tests.golden.make_training import RECIPES, tokens_of
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.trainer.parallel.states import CUT, Record, joined, on_one_device, split, steps_of, with_batch
from tests.trainer.parallel.test_step import OneAtATime
from tests.trainer.parallel.thread_group import ThreadGroup, play
from trainer.parallel.layout import Layout
from trainer.parallel.memory import HostMemory, memory_of
from trainer.parallel.step import RankStep

TIED = RECIPES["tied head, grouped heads, window, QK-norm, z-loss, clip, cosine"]


def ruled(recipe: Recipe, max_norm: float = 0.0, action: str = "skip") -> Recipe:
    return dataclasses.replace(recipe, divergence=DivergenceConfig(action, float(np.float32(max_norm))))


def check(recipe: Recipe, size: int, steps: int, start: State | None = None, **options: Any) -> Counter[str]:
    """Every rank records what one device does, and together they hold its state; how often steps were skipped."""
    want = on_one_device(recipe, steps, start)
    found = play(size, lambda group: steps_of(group, recipe, steps, start, **options), seed=size)
    assert all(records == want for records, _ in found)
    held = [state for _, state in found]
    assert all(np.array_equal(state.line, held[0].line) for state in held)
    assert document(joined(recipe, held), recipe).root() == want[-1][0]
    return Counter(result.skipped for _, result in want)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("name", sorted(SUMS))
def test_a_run_that_skips_is_that_of_one_process(name: str, size: int) -> None:
    kinds = check(skipping(SUMS[name]), size, STEPS)
    assert set(kinds) == {"", NORM, NO_RESULT}


@pytest.mark.parametrize("size", [2, 5])
def test_tensors_that_ranks_cut_are_whole_again(size: int) -> None:
    """The update of one moment, which one rank holds, has no result: the line was overwritten by then."""
    start = initial_state(CUT)
    start.adam_m["model.norm.weight"][...] = np.inf
    assert check(ruled(CUT), size, 2, start, bucket=1) == {NO_RESULT: 2}


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("fold", [(), (2, 2)])
def test_updates_that_leave_the_numbers_and_then_stay_within(size: int, fold: tuple[int, ...]) -> None:
    """The learning rate is too large for an update until it falls; parameters come back after each attempt."""
    schedule = dataclasses.replace(
        TIED.schedule, kind="wsd", warmup_steps=0, decay_steps=4, total_steps=4, peak_lr=1e38
    )
    recipe = ruled(
        dataclasses.replace(with_batch(TIED, 5, 1, fold), schedule=dataclasses.replace(schedule, min_lr=0.0))
    )
    kinds = check(recipe, size, 6)
    assert kinds[NO_RESULT] >= 2 and kinds[""] >= 1


class Failing:
    """The reference on one rank, on which `check_finite` finds a fault that no other rank sees, the n-th time."""

    def __init__(self, fault: AuditkitError | None, call: int) -> None:
        self._fault, self._left = fault, call

    def __getattr__(self, name: str) -> Any:
        return getattr(reference, name)

    def check_finite(self, arrays: Mapping[str, F32]) -> None:
        self._left -= 1
        if self._left == 0 and self._fault is not None:
            raise self._fault
        reference.check_finite(arrays)


def alone(rank: int, fault: AuditkitError, call: int) -> Any:
    """A step of three ranks of which one finds a fault: what each rank gives."""

    def one(group: ThreadGroup) -> tuple[str, str, str]:
        ops: Any = Failing(fault if group.rank == rank else None, call)
        layout, memory = Layout(recipe.model, 3), HostMemory()
        state = split(initial_state(recipe), recipe, layout, group.rank, reference)
        line = np.array(state.line)
        try:
            new, result, _ = RankStep(group, layout, memory, ops, recipe)(state, tokens_of(recipe, 0))
        except AuditkitError as error:
            return type(error).__name__, error.message, ""
        assert np.array_equal(line, new.line)
        return result.skipped, result.why, digests_of(recipe, new.digests).root(new.step)

    recipe = ruled(TIED, 100.0)
    return play(3, one)


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("call", [1, 2])  # before the norm decides; after the update
def test_what_one_rank_finds_late_all_ranks_skip_for(rank: int, call: int) -> None:
    start = initial_state(TIED)
    kept = document(dataclasses.replace(start, step=1), ruled(TIED, 100.0)).root()
    assert alone(rank, NonFinite("told late"), call) == [(NO_RESULT, "told late", kept)] * 3


@pytest.mark.parametrize("call", [1, 2])
def test_what_one_rank_cannot_tell_ends_all(call: int) -> None:
    assert alone(1, Unsupported("cannot tell"), call) == [("Unsupported", "rank 1: cannot tell", "")] * 3


@pytest.mark.parametrize("bound", [0.0, 0.5])
@pytest.mark.parametrize("asks", [0, 2, None])
def test_a_skipped_step_tells_all_ranks_of_a_request_to_stop(asks: int | None, bound: float) -> None:
    recipe, start = ruled(TIED, bound), initial_state(TIED)
    if not bound:
        start.params["model.norm.weight"][...] = np.float32(3e38)

    def one(group: ThreadGroup) -> tuple[str, bool]:
        layout, memory = Layout(recipe.model, 3), HostMemory()
        state = split(start, recipe, layout, group.rank, reference)
        _, result, stops = RankStep(group, layout, memory, reference, recipe)(
            state, tokens_of(recipe, 0), group.rank == asks
        )
        return result.skipped, stops

    assert play(3, one) == [(NORM if bound else NO_RESULT, asks is not None)] * 3


def test_a_bound_may_stop_all_ranks() -> None:
    def one(group: ThreadGroup) -> str:
        with pytest.raises(NonFinite) as found:
            steps_of(group, ruled(TIED, 0.5, "stop"), 1)
        return str(found.value)

    said = play(3, one)
    assert len(set(said)) == 1 and "exceeds max_norm 0.5" in said[0]


class TestOnADevice:
    """The kernels' back end, its arrays in the emulator's guarded memory."""

    pytestmark = EMULATOR_MARKS

    @pytest.mark.parametrize("kind", [NORM, NO_RESULT])
    def test_ranks_with_devices_record_the_same(self, kind: str) -> None:
        plain = with_batch(RECIPES["tied head, gradients folded in groups of two, twice"], 2, 1)
        start = initial_state(plain)
        bound = float(on_one_device(plain, 1, start)[0][1].norm) / 2 if kind == NORM else 0.0
        recipe = ruled(plain, bound)
        if kind == NO_RESULT:
            start.adam_m["model.norm.weight"][...] = np.inf
        ranks = [CudaOps(OneAtATime(seed=rank)) for rank in range(2)]

        def one(group: ThreadGroup) -> list[Record]:
            ops = ranks[group.rank]
            memory = memory_of(ops)
            group._down, group._up = memory.host, lambda array, values: memory.copy(array, memory.place(values))
            return steps_of(group, recipe, 2, start, ops=ops)[0]

        want = on_one_device(recipe, 2, start)
        assert want[0][1].skipped == kind
        assert all(records == want for records in play(2, one, seed=2))
