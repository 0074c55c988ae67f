"""A wrong bit in what a rank holds is found in the step that uses it, and named: rank, machine, copy and tensor."""

from __future__ import annotations

import dataclasses
import functools
import random
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.errors import MachineFault
from auditkit.formats.recipe import DivergenceConfig, Recipe
from auditkit.model.state import initial_state
from auditkit.numerics import reference
from auditkit.numerics.nonfinite import NonFinite
from tests.golden.make_training import tokens_of
from tests.trainer import tiny
from tests.trainer.parallel.conftest import FORKS, Zygote
from tests.trainer.parallel.states import CUT, on_one_device, split, with_batch
from tests.trainer.parallel.test_run import errors, resume, start
from tests.trainer.parallel.thread_group import ThreadGroup, play
from trainer.parallel.layout import Layout
from trainer.parallel.memory import HostMemory
from trainer.parallel.replicas import Replicas
from trainer.parallel.state import RankState
from trainer.parallel.step import RankStep

SIZE = 3
HERE = f"on {socket.gethostname()}, cpu"
RECIPE = with_batch(CUT, 3)
Flip = Callable[[RankState, random.Random], None]


def flip(array: np.ndarray, chance: random.Random, bit: int | None = None) -> None:
    """Change one bit of one element, of its fraction unless `bit` says."""
    words = array.reshape(-1).view(np.uint32)
    words[chance.randrange(len(words))] ^= np.uint32(1 << (chance.randrange(23) if bit is None else bit))


def flip_copy(state: RankState, chance: random.Random) -> None:
    """In the copy of all parameters."""
    flip(state.params[chance.choice(sorted(state.params))], chance)


def flip_part(role: str) -> Flip:
    """In this rank's own part of something."""
    return lambda state, chance: flip(chance.choice(getattr(state, role)), chance)


class Struck(RankStep):
    """A step during which something happens to what the rank holds: after the gradients, before the update."""

    strike: Callable[[], None] = staticmethod(lambda: None)

    def _norm(self, *more: Any) -> Any:
        self.strike()
        return super()._norm(*more)


def train(
    group: ThreadGroup,
    steps: int,
    before: Callable[[RankState], None],
    during: Callable[[RankState], None] = lambda state: None,
    *,
    recipe: Recipe = RECIPE,
    memory: HostMemory | None = None,
    every: int = 1,
) -> str:
    """Steps of one rank: what its check says and when, else the gradient of the last step."""
    layout, memory = Layout(recipe.model, group.size), memory or HostMemory()
    replicas = Replicas(group, layout, reference, "cpu", every)
    state = replicas.sealed(split(initial_state(recipe), recipe, layout, group.rank, reference))
    one, result = Struck(group, layout, memory, reference, recipe, replicas=replicas), None
    for number in range(steps):
        before(state)
        one.strike = lambda state=state: during(state)  # type: ignore[method-assign]
        try:
            state, result, _ = one(state, tokens_of(recipe, number))
        except MachineFault as error:
            return f"{number}: {error.message}"
    assert result is not None
    return result.gradient


@pytest.mark.parametrize("moment", ["before", "during"])
@pytest.mark.parametrize(
    ("where", "said"),
    [
        (flip_copy, "its copy of tensor param/"),
        (flip_part("own"), "its own part of tensor param/"),
        (flip_part("adam_m"), "its own part of tensor adam_m/"),
        (flip_part("adam_v"), "its own part of tensor adam_v/"),
    ],
    ids=["copy", "parameters", "first moments", "second moments"],
)
def test_one_wrong_bit_is_found_in_the_step_that_uses_it(where: Flip, said: str, moment: str) -> None:
    chance = random.Random(said + moment)
    rank, step = chance.randrange(SIZE), chance.randrange(3)

    def one(group: ThreadGroup) -> str:
        def strike(state: RankState) -> None:
            if (group.rank, state.step) == (rank, step):
                where(state, chance)

        nothing = lambda state: None  # noqa: E731
        return train(group, 3, *((strike, nothing) if moment == "before" else (nothing, strike)))

    found = play(SIZE, one, seed=5)
    assert len(set(found)) == 1 and found[0].startswith(f"{step}: state {step}: rank {rank} {HERE}: {said}"), found
    assert found[0].endswith(" is not what was made") and ";" not in found[0]


def test_without_a_wrong_bit_nothing_is_found_and_without_the_check_nothing_would_be() -> None:
    """The same flip, unseen, gives another gradient: that is what the check keeps from being published."""
    truth = on_one_device(RECIPE, 3)[-1][1].gradient

    def one(group: ThreadGroup, struck: bool) -> str:
        def strike(state: RankState) -> None:
            if struck and (group.rank, state.step) == (1, 2):
                state.line.view(np.uint32)[5] ^= np.uint32(1 << 22)

        return train(group, 3, strike, every=0 if struck else 1)

    assert set(play(SIZE, lambda group: one(group, struck=False))) == {truth}
    assert truth not in play(SIZE, lambda group: one(group, struck=True))


def test_every_second_step_only_what_it_uses_is_seen() -> None:
    def one(group: ThreadGroup, at: int) -> str:
        return train(group, 4, lambda state: flip_copy(state, random.Random(1)) if state.step == at else None, every=2)

    assert "is not what was made" in play(2, lambda group: one(group, 1))[0]
    assert "is not what was made" not in play(2, lambda group: one(group, 2))[0]


class Sends(HostMemory):
    """One rank brings a wrong bit into what it sends of its parameters."""

    def copy(self, target: Any, source: Any) -> None:
        """Copy all but one bit."""
        super().copy(target, source)
        flip(target, random.Random(2))


def test_what_a_rank_sends_wrong_to_all_is_its_fault() -> None:
    memories = [HostMemory(), Sends(), HostMemory()]
    found = play(SIZE, lambda group: train(group, 2, lambda state: None, memory=memories[group.rank]))
    assert len(set(found)) == 1
    assert found[0].startswith(f"1: state 1: rank 1 {HERE}: what it sent of tensor param/"), found
    assert "rank 0" not in found[0] and "its copy" not in found[0]


def test_two_ranks_with_wrong_bits_are_both_named() -> None:
    def one(group: ThreadGroup) -> str:
        def strike(state: RankState) -> None:
            if group.rank:
                flip(state.params["model.norm.weight"], random.Random(group.rank))

        return train(group, 1, strike)

    (told,) = set(play(SIZE, one))
    assert told == (
        f"0: state 0: rank 1 {HERE}: its copy of tensor param/model.norm.weight is not what was made; "
        f"rank 2 {HERE}: its copy of tensor param/model.norm.weight is not what was made"
    )


@pytest.mark.parametrize(
    ("size", "words"),
    [(3, f"rank 2 {HERE} holds another state than the other ranks"), (2, "ranks hold different states: rank 0")],
)
def test_ranks_with_different_states_are_told_apart(size: int, words: str) -> None:
    """As where one of them has read another folder."""

    def one(group: ThreadGroup) -> str:
        layout = Layout(RECIPE.model, size)
        state = split(initial_state(RECIPE), RECIPE, layout, group.rank, reference)
        if group.rank == size - 1:
            state = dataclasses.replace(state, digests=dict(state.digests) | {("param", "model.norm.weight"): "0" * 64})
        with pytest.raises(MachineFault) as found:
            Replicas(group, layout, reference, "cpu", 1).check(state)
        return found.value.message

    (told,) = set(play(size, one))
    assert words in told


def test_what_does_not_reach_memory_as_it_was_read_is_named_on_every_rank() -> None:
    def one(group: ThreadGroup) -> str:
        layout = Layout(RECIPE.model, SIZE)
        state = split(initial_state(RECIPE), RECIPE, layout, group.rank, reference)
        if group.rank == 2:
            flip(state.adam_v[-1], random.Random(3))
        with pytest.raises(MachineFault) as found:
            Replicas(group, layout, reference, "cpu", 1).sealed(state)
        return found.value.message

    (told,) = set(play(SIZE, one))
    assert told.startswith("tensor adam_v/") and told.endswith("of state 0 did not reach memory as it was read")


def test_a_step_without_a_result_because_of_a_wrong_bit_is_a_fault_of_the_machine() -> None:
    """A recipe that diverges says so; here the exponent of one parameter did."""

    def one(group: ThreadGroup, wrong: bool) -> str:
        def strike(state: RankState) -> None:
            if group.rank == 1 or not wrong:
                state.params["model.norm.weight"][...] = np.float32(3e38)

        return train(group, 1, strike, every=1000)

    (told,) = set(play(SIZE, lambda group: one(group, wrong=True)))
    assert f"rank 1 {HERE}: its copy of tensor param/model.norm.weight is not what was made" in told

    def skips(group: ThreadGroup, bound: float) -> str:
        def strike(state: RankState) -> None:
            if group.rank == 1:
                state.params["model.norm.weight"][...] = np.float32(3e38 if bound == 0 else 40)

        rule = DivergenceConfig("skip", bound)
        return train(group, 1, strike, every=1000, recipe=dataclasses.replace(RECIPE, divergence=rule))

    for bound in (0.0, 1.0):
        (told,) = set(play(SIZE, functools.partial(skips, bound=bound)))
        assert f"rank 1 {HERE}: its copy of tensor param/model.norm.weight is not what was made" in told

    def diverges(group: ThreadGroup) -> None:
        start = initial_state(RECIPE)
        start.params["model.norm.weight"][...] = np.float32(3e38)
        layout = Layout(RECIPE.model, SIZE)
        replicas = Replicas(group, layout, reference, "cpu", 1)
        state = replicas.sealed(split(start, RECIPE, layout, group.rank, reference))
        with pytest.raises(NonFinite):
            RankStep(group, layout, HostMemory(), reference, RECIPE, replicas=replicas)(state, tokens_of(RECIPE, 0))

    play(SIZE, diverges)


# One bit of what a rank holds, at a step.
FLIP = """
import numpy
from trainer.parallel import runner
stepped = runner.Ranks.step
def flipping(self, state, *more):
    if state.step == {step}:
        {array}.reshape(-1).view(numpy.uint32)[3] ^= numpy.uint32(1 << 9)
    return stepped(self, state, *more)
runner.Ranks.step = flipping
"""
FLIP_BEFORE_WRITING = """
import numpy
from trainer.parallel import runner
written = runner.Ranks.write
def flipping(self, state, *more):
    if state.step == 12:
        state.adam_v[0].reshape(-1).view(numpy.uint32)[3] ^= numpy.uint32(1 << 9)
    return written(self, state, *more)
runner.Ranks.write = flipping
"""


class TestRanksAsProcesses:
    """The whole trainer: one message, code 7 on all ranks, and the bits of the undisturbed run when it goes on."""

    pytestmark = FORKS

    @pytest.mark.parametrize(
        ("rank", "code", "words"),
        [
            (2, FLIP.format(step=10, array="state.line"), "state 10: rank 2 {here}: its copy of tensor param/"),
            (1, FLIP.format(step=7, array="state.adam_m[0]"), "state 7: rank 1 {here}: its own part of tensor adam_m/"),
            (1, FLIP_BEFORE_WRITING, "state 12: rank 1 {here}: its own part of tensor adam_v/"),
        ],
        ids=["copy", "moments", "before writing"],
    )
    def test_a_wrong_bit_ends_all_ranks(
        self, zygote: Zygote, prepared: Path, finished_once: Path, rank: int, code: str, words: str
    ) -> None:
        ranks = start(zygote, prepared, 3, **{f"rank_{rank}": code})
        assert ranks.wait() == [7] * 3, [ranks.said(r) for r in range(3)]
        (told,) = errors(ranks)
        assert told.startswith(f"error: {words.format(here=HERE)}")
        assert "hint: test the memory of that machine or device" in ranks.said(0)
        assert resume(zygote, prepared, 2).wait() == [0] * 2
        tiny.assert_same_run(prepared, finished_once)

    def test_the_option_turns_it_off_on_all_ranks(self, zygote: Zygote, prepared: Path) -> None:
        """As rank 0 says: its own later check, of what it writes, is another one."""
        flip_line = FLIP.format(step=10, array="state.line")
        ranks = start(zygote, prepared, 2, "--check-replicas", "0", "--steps", "12", rank_1=flip_line)
        assert ranks.wait() == [0] * 2, errors(ranks)
