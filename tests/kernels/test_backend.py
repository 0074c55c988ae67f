"""The CUDA back end as a whole: known answers of every op, and training steps with the records of the reference."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from auditkit.errors import MachineFault, Unsupported
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import BatchConfig, DivergenceConfig
from auditkit.formats.work import work_key
from auditkit.kernels.backend import NOT_FINITE, SUM_RANGE, TOKEN_RANGE, CudaOps
from auditkit.model.part import _whole, part
from auditkit.model.pieces_step import Room
from auditkit.model.plan import Cuts, Plan
from auditkit.model.shelf import InMemory, Moved
from auditkit.model.state import State, document, initial_state
from auditkit.model.step import step
from auditkit.model.totals import FoldedTotals
from auditkit.numerics import reference, self_test
from auditkit.numerics.nonfinite import NonFinite
from auditkit.replay.backend import Backend, CudaBackend
from auditkit.replay.outcome import Stopped, replay
from tests.golden.make_training import RECIPES, tokens_of
from tests.kernels.on_devices import DEVICES


@pytest.fixture
def ops(device: Any) -> Iterator[CudaOps]:
    made = CudaOps(device)
    with device.use():
        yield made


def test_known_answers_of_every_op(ops: CudaOps) -> None:
    self_test.check_known_answers(ops, ops.place)


def placed(state: State, ops: CudaOps) -> State:
    roles = (
        {name: ops.place(array) for name, array in role.items()} for role in (state.params, state.adam_m, state.adam_v)
    )
    return State(state.step, *roles)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_steps_equal_the_reference(ops: CudaOps, name: str) -> None:
    recipe = RECIPES[name]
    here = initial_state(recipe)
    there = placed(here, ops)
    for number in range(2):
        tokens = tokens_of(recipe, number)
        key = work_key(bytes(32), "ab" * 32, number)
        here, expected = step(here, tokens, recipe, reference, work_key=key)
        there, found = step(there, tokens, recipe, ops, work_key=key)
        assert dataclasses.asdict(found) == dataclasses.asdict(expected)
        assert document(there, recipe, ops) == document(here, recipe)


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_steps_a_layer_at_a_time_equal_the_reference(ops: CudaOps, name: str) -> None:
    recipe = RECIPES[name]
    state, tokens, key = initial_state(recipe), tokens_of(recipe, 0), work_key(bytes(32), "ab" * 32, 0)
    want_state, want = step(state, tokens, recipe, reference, work_key=key)
    plan = Plan(True, group=2, recompute=True, cuts=Cuts(20, 64, 1))
    room = Room(plan, Moved(InMemory(), ops), Moved(InMemory(), ops))
    new, got = step(state, tokens, recipe, ops, work_key=key, room=room)
    assert dataclasses.asdict(got) == dataclasses.asdict(want)
    assert document(new, recipe, ops) == document(want_state, recipe)


@pytest.mark.parametrize(
    ("bits", "error"), [(NOT_FINITE, NonFinite), (SUM_RANGE | NOT_FINITE, Unsupported), (TOKEN_RANGE, MachineFault)]
)
def test_the_status_word_ends_the_step_and_is_cleared(ops: CudaOps, bits: int, error: type[Exception]) -> None:
    ops.status = ops.place(np.array([bits], np.uint32))
    with pytest.raises(error):
        ops.check_finite({})
    ops.check_finite({})


def test_a_step_without_a_result(ops: CudaOps) -> None:
    recipe = RECIPES[min(RECIPES)]
    state = initial_state(recipe)
    name = next(iter(state.params))
    state.params[name][0, 0] = np.inf
    with pytest.raises(NonFinite):
        step(placed(state, ops), tokens_of(recipe, 0) * 0, recipe, ops)


SPOILT = {"infinite rows": ("params", np.inf), "an infinite update": ("adam_m", np.float32(3e38))}


@pytest.mark.parametrize("name", SPOILT)
def test_a_step_without_a_result_agrees_with_the_references(device: Any, name: str) -> None:
    """Each looks for it in places of its own; what must agree is that there is none, or that it is skipped."""
    recipe, (role, value) = RECIPES[min(RECIPES, key=len)], SPOILT[name]
    state, tokens = initial_state(recipe), tokens_of(recipe, 0)
    getattr(state, role)["model.norm.weight"][...] = value
    backend = CudaBackend(CudaOps(device), 1, "gpu")
    for action in ("stop", "skip"):
        rule = dataclasses.replace(recipe, divergence=DivergenceConfig(action, 0.0))
        here, there = (replay(b, b.place(state), tokens, rule) for b in (Backend(reference, 1, "cpu"), backend))
        assert isinstance(there, Stopped) == (action == "stop")
        assert there.fingerprint.agrees(here.fingerprint) and here.fingerprint.agrees(there.fingerprint)


def test_squares_out_of_range_are_told_of_all_micro_batches(ops: CudaOps) -> None:
    """They are left out of the norm, which looks like any other; sums of a fold can be so large."""
    recipe = RECIPES["tied head, gradients folded in groups of two, twice"]
    state = placed(initial_state(recipe), ops)
    total = FoldedTotals(recipe.numerics.fold, ops)
    total.resume(1, [[ops.place(np.full(array.shape, 7e4, np.float32))] for array in state.params.values()])
    with pytest.raises(NonFinite):
        _whole(state, total, [MicroBatchLeaf(1, "ab" * 32)], 1, recipe, ops)


@pytest.mark.parametrize("device", DEVICES[1:], indirect=True)
@pytest.mark.parametrize("micro", [2, 4])
def test_recorded_steps_equal_the_reference(device: Any, micro: int) -> None:
    """From the third step on the launches are recorded; state, gradient and leaves stay those of the reference."""
    recipe = RECIPES[max(RECIPES)]
    recipe = dataclasses.replace(recipe, batch=BatchConfig(4, micro))
    backend = CudaBackend(CudaOps(device), 1, "gpu")
    here = initial_state(recipe)
    there = backend.place(here)
    for number in range(6):
        tokens = tokens_of(recipe, number)
        key = work_key(bytes(32), "ab" * 32, number)
        here, expected = step(here, tokens, recipe, reference, work_key=key)
        there, found = backend.step(there, tokens, recipe, work_key=key)
        assert dataclasses.asdict(found) == dataclasses.asdict(expected) and found.work
        assert document(there, recipe, backend.ops) == document(here, recipe)
    assert backend.recorder.recording


@pytest.mark.parametrize("micro", [2, 4])
def test_micro_batches_alone_equal_the_reference(device: Any, micro: int) -> None:
    """The parameters are there and the moments are not; each micro-batch, and all of them together."""
    recipe = RECIPES[max(RECIPES)]
    recipe = dataclasses.replace(recipe, batch=BatchConfig(4, micro))
    backend = CudaBackend(CudaOps(device), 1, "gpu")
    state, tokens, key = initial_state(recipe), tokens_of(recipe, 0), bytes(range(32))
    there = backend.place(State(0, state.params, {}, {}))
    for chosen in {(0,), (recipe.batch.micro_batches - 1,), tuple(range(recipe.batch.micro_batches))}:
        expected = part(state, tokens, chosen, recipe, reference, work_key=key)
        assert backend.part(there, tokens, chosen, recipe, work_key=key) == expected
    _, whole = step(state, tokens, recipe, reference)
    assert expected.whole is None or expected.whole.gradient == whole.gradient


def test_a_known_answer_in_the_middle_leaves_the_status_word_as_it_was(device: Any) -> None:
    """What the kernels of the step have left to tell must be told when the step ends."""
    backend = CudaBackend(CudaOps(device), 1, "gpu")
    ops = backend.ops
    with device.use():
        ops.quantise(ops.place(np.full((4, 8), np.inf, np.float32)), 14)
        left = int(ops.host(ops.status)[0])
        assert left
        for name in ("quantise", "to_fixed", "check_finite", "digests"):
            backend.known_answer(name)
            assert int(ops.host(ops.status)[0]) == left
        with pytest.raises(NonFinite):
            ops.check_finite({})
