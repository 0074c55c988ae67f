"""Steps that diverge, wherever that shows: the same declared result, and a state that nothing has touched."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from auditkit.errors import Unsupported
from auditkit.formats.digest import ZERO_DIGEST
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import DivergenceConfig, Recipe
from auditkit.formats.skips import NO_RESULT, NORM
from auditkit.kernels.backend import NOT_FINITE, SUM_RANGE, CudaOps
from auditkit.model.params import parameter_table
from auditkit.model.pieces_step import Room
from auditkit.model.plan import Plan
from auditkit.model.shelf import InMemory
from auditkit.model.state import State, document, initial_state
from auditkit.model.step import GradSum, NonFinite, StepResult, step, tensors_work
from auditkit.numerics import reference
from auditkit.numerics.arrays import F32, IntArray
from tests.golden.make_training import RECIPES, tokens_of
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.same_bits import assert_same_bits

TIED = RECIPES["tied head, grouped heads, window, QK-norm, z-loss, clip, cosine"]
UNTIED = RECIPES["untied head, no window, wsd, fx21 body and fx14 head"]
FOLDED = RECIPES["tied head, gradients folded in groups of two, twice"]
KEY = bytes(range(32))


def ruled(recipe: Recipe, action: str = "skip", max_norm: float = 0.0) -> Recipe:
    return dataclasses.replace(recipe, divergence=DivergenceConfig(action, float(np.float32(max_norm))))


def copied(state: State) -> State:
    roles = (state.params, state.adam_m, state.adam_v)
    return State(state.step, *({name: array.copy() for name, array in role.items()} for role in roles))


def skipped(recipe: Recipe, start: State, tokens: IntArray, **options: Any) -> StepResult:
    """The result of a step that the recipe skips and that has none under another; the state is as it was."""
    before = copied(start)
    with pytest.raises(NonFinite):
        step(start, tokens, recipe, reference, **options)
    told: list[int] = []
    new, result = step(start, tokens, ruled(recipe), reference, on_micro_batch=told.append, work_key=KEY, **options)
    assert told == list(range(1, recipe.batch.micro_batches + 1))
    assert new.step == start.step + 1
    for (_, _, after), (_, _, kept) in zip(new.tensors(), before.tensors(), strict=True):
        assert_same_bits(after, kept)
    assert result.work == tensors_work(before.params, reference, KEY) != ""
    return result


def check_declared(recipe: Recipe, result: StepResult) -> None:
    leaves = (MicroBatchLeaf(0, ZERO_DIGEST),) * recipe.batch.micro_batches
    zero = np.float32(0)
    assert dataclasses.replace(result, work="") == StepResult(zero, zero, zero, ZERO_DIGEST, leaves, "", NO_RESULT)
    assert not any(np.signbit([result.loss, result.norm, result.lr]))
    assert result.why


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_in_the_forward_pass_of_one_micro_batch(number: int, threads: int) -> None:
    recipe = dataclasses.replace(UNTIED, batch=dataclasses.replace(UNTIED.batch, micro_batch_sequences=1))
    tokens, token = tokens_of(recipe, 0).copy(), 7
    tokens[tokens == token] = 8
    tokens[number, 3] = token
    start = initial_state(recipe)
    start.params["model.embed_tokens.weight"][token] = np.nan
    result = skipped(recipe, start, tokens, threads=threads)
    check_declared(recipe, result)
    assert "operand of an exact dot" in result.why


def test_in_the_backward_pass_a_term_of_a_sum_is_too_large() -> None:
    start = initial_state(UNTIED)
    start.params["lm_head.weight"][...] *= np.float32(1e6)
    result = skipped(UNTIED, start, tokens_of(UNTIED, 0))
    check_declared(UNTIED, result)
    assert "a term of an exact sum" in result.why


def planted(recipe: Recipe, value: int, loss: int = 0) -> Callable[[IntArray], GradSum]:
    """Gradient sums of which all are `value`, and a loss sum, of every micro-batch."""

    def run(tokens: IntArray) -> GradSum:
        sums = {spec.name: np.full(spec.shape, value, np.int64) for spec in parameter_table(recipe.model)}
        return GradSum(sums, np.array(loss, np.int64))

    return run


@pytest.mark.parametrize(("value", "loss"), [(1 << 61, 0), (-(1 << 61) - 1, 0), (0, 1 << 61), (0, -(1 << 61) - 1)])
def test_at_a_sum_over_micro_batches(value: int, loss: int) -> None:
    start, tokens = initial_state(TIED), tokens_of(TIED, 0)
    result = skipped(TIED, start, tokens, gradients=planted(TIED, value, loss))
    check_declared(TIED, result)
    assert result.why == "an exact sum leaves 62 bits"


def test_the_range_of_a_loss_decides_before_the_norm() -> None:
    recipe = ruled(TIED, "skip", 1e-6)
    _, result = step(initial_state(TIED), tokens_of(TIED, 0), recipe, reference, gradients=planted(TIED, 1 << 50))
    assert result.skipped == NORM
    wild = planted(TIED, 1 << 50, 1 << 61)
    check_declared(TIED, step(initial_state(TIED), tokens_of(TIED, 0), recipe, reference, gradients=wild)[1])


def test_at_the_norm() -> None:
    """Folded gradients of 64 a micro-batch, of enough elements."""
    model = dataclasses.replace(FOLDED.model, vocab_size=4096)
    recipe = dataclasses.replace(FOLDED, model=model)
    start, tokens = initial_state(recipe), tokens_of(recipe, 0)
    result = skipped(recipe, start, tokens, gradients=planted(recipe, (1 << 62) - 1))
    check_declared(recipe, result)
    assert result.why == "the squared gradient norm reaches 2^32"
    check_declared(
        recipe, step(start, tokens, ruled(recipe, "skip", 1.0), reference, gradients=planted(recipe, (1 << 62) - 1))[1]
    )


def test_at_the_update() -> None:
    """The parameters leave binary32; with a bound that the norm exceeds there is no update, so all else is known."""
    recipe = dataclasses.replace(TIED, schedule=dataclasses.replace(TIED.schedule, peak_lr=1e38))
    start, tokens = initial_state(recipe), tokens_of(recipe, 0)
    result = skipped(recipe, start, tokens)
    check_declared(recipe, result)
    assert "non-finite" in result.why
    known = step(start, tokens, ruled(recipe, "skip", 0.5), reference)[1]
    assert (known.skipped, known.gradient) == (NORM, step(start, tokens, TIED, reference)[1].gradient)


def test_a_large_step_is_known_but_for_its_update() -> None:
    start, tokens = initial_state(TIED), tokens_of(TIED, 0)
    taken, plain = step(start, tokens, TIED, reference, work_key=KEY)
    norm = float(plain.norm)
    before = copied(start)
    new, result = step(start, tokens, ruled(TIED, "skip", norm / 2), reference, work_key=KEY)
    assert result == dataclasses.replace(plain, lr=np.float32(0), skipped=NORM)
    assert result.why == f"the gradient's norm {norm:.9g} exceeds max_norm {norm / 2:.9g}"
    assert new.step == 1
    for (_, _, after), (_, _, kept) in zip(new.tensors(), before.tensors(), strict=True):
        assert_same_bits(after, kept)
    assert document(taken, TIED).root() != document(new, TIED).root()


def test_what_a_large_step_passes_on_is_not_looked_at() -> None:
    """The norm decides (SPEC.md section 18), under any plan; a moment that is not finite was so before."""
    start, tokens = copied(initial_state(TIED)), tokens_of(TIED, 0)
    next(iter(start.adam_v.values())).reshape(-1)[0] = np.inf
    recipe = ruled(TIED, "skip", 0.5)
    _, plain = step(start, tokens, recipe, reference)
    _, pieces = step(start, tokens, recipe, reference, room=Room(Plan(True), InMemory(), InMemory()))
    assert plain == pieces and plain.skipped == NORM


def test_an_equal_norm_is_not_large() -> None:
    start, tokens = initial_state(TIED), tokens_of(TIED, 0)
    taken, plain = step(start, tokens, TIED, reference)
    for bound in (float(plain.norm), float(np.nextafter(plain.norm, np.float32(9)))):
        new, result = step(start, tokens, ruled(TIED, "skip", bound), reference)
        assert (result, document(new, TIED)) == (plain, document(taken, TIED))
    below = float(np.nextafter(plain.norm, np.float32(0)))
    assert step(start, tokens, ruled(TIED, "skip", below), reference)[1].skipped == NORM


def test_a_recipe_may_stop_at_a_large_step() -> None:
    start, tokens = initial_state(TIED), tokens_of(TIED, 0)
    plain = step(start, tokens, TIED, reference)[1]
    assert step(start, tokens, ruled(TIED, "stop", float(plain.norm)), reference)[1] == plain
    with pytest.raises(NonFinite, match=r"norm 0\.73.* exceeds max_norm 0\.5"):
        step(start, tokens, ruled(TIED, "stop", 0.5), reference)


def test_the_next_step_counts_the_skipped_one() -> None:
    """Learning rate and bias correction are those of the step number, on moments that are still +0."""
    start = initial_state(TIED)
    later = State(1, start.params, start.adam_m, start.adam_v)
    want, plain = step(later, tokens_of(TIED, 1), TIED, reference)
    skipped_once, first = step(start, tokens_of(TIED, 0), ruled(TIED, "skip", 0.73), reference)
    assert first.skipped == NORM
    found, result = step(skipped_once, tokens_of(TIED, 1), ruled(TIED, "skip", 0.73), reference)
    assert (result, document(found, TIED)) == (plain, document(want, TIED))


class Late:
    """The reference, but for a fault that it tells when asked, as a device does; `wrong` is the norm that it gives."""

    def __init__(self, fault: Exception, wrong: float = 1e9) -> None:
        self.fault: Exception | None = fault
        self.wrong = np.float32(wrong)

    def __getattr__(self, name: str) -> Any:
        return getattr(reference, name)

    def norm_from_squares(self, totals: list[int]) -> np.float32:
        return self.wrong

    def check_finite(self, arrays: Mapping[str, F32]) -> None:
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault
        reference.check_finite(arrays)


@pytest.mark.parametrize("wrong", [1e9, 1e-9])
@pytest.mark.parametrize("bound", [0.0, 1.0])
def test_a_norm_decides_nothing_before_the_device_has_told_all(bound: float, wrong: float) -> None:
    start, tokens, recipe = initial_state(TIED), tokens_of(TIED, 0), ruled(TIED, "skip", bound)
    late: Any = Late(NonFinite("told late"), wrong)
    check_declared(TIED, step(start, tokens, recipe, late)[1])
    with pytest.raises(Unsupported, match="cannot tell"):
        step(start, tokens, recipe, Late(Unsupported("cannot tell"), wrong))  # type: ignore[arg-type]


def test_what_a_device_cannot_tell_skips_nothing() -> None:
    """The host finds a sum out of range, made of what the device has still to say wrapped."""
    late: Any = Late(Unsupported("cannot tell"))
    for action in ("skip", "stop"):
        late.fault = Unsupported("cannot tell")
        with pytest.raises(Unsupported, match="cannot tell"):
            step(
                initial_state(TIED), tokens_of(TIED, 0), ruled(TIED, action), late, gradients=planted(TIED, 0, 1 << 61)
            )


class TestOnADevice:
    """The kernels' back end in the emulator."""

    pytestmark = EMULATOR_MARKS

    def test_no_result_leaves_the_arrays_of_the_device_alone(self) -> None:
        ops, recipe = CudaOps(EmulatedDevice(seed=1)), ruled(TIED)
        host = initial_state(recipe)
        host.params["model.layers.0.self_attn.v_proj.weight"][...] = np.float32(3e38)
        state = State(
            0, *({n: ops.place(a) for n, a in role.items()} for role in (host.params, host.adam_m, host.adam_v))
        )
        new, result = step(state, tokens_of(recipe, 0), recipe, ops)
        check_declared(recipe, result)
        for (_, _, after), (_, _, kept) in zip(new.tensors(), host.tensors(), strict=True):
            assert_same_bits(ops.host(after), kept)
        assert int(ops.host(ops.status)[0]) == 0

    def test_norms_of_a_device_decide_the_same(self) -> None:
        ops, recipe = CudaOps(EmulatedDevice(seed=2)), ruled(TIED, "skip", 0.73)
        host = initial_state(recipe)
        state = State(
            0, *({n: ops.place(a) for n, a in role.items()} for role in (host.params, host.adam_m, host.adam_v))
        )
        kinds = []
        for number in range(3):
            host, want = step(host, tokens_of(recipe, number), recipe, reference)
            state, found = step(state, tokens_of(recipe, number), recipe, ops)
            assert found == want
            assert document(state, recipe, ops) == document(host, recipe)
            kinds.append(found.skipped)
        assert kinds == [NORM, "", NORM]

    @pytest.mark.parametrize(("status", "error"), [(NOT_FINITE, NonFinite), (SUM_RANGE, Unsupported)])
    def test_the_status_word_is_read_before_a_norm_decides(self, status: int, error: type[Exception]) -> None:
        ops, recipe = CudaOps(EmulatedDevice(seed=3)), ruled(TIED, "skip", 0.5)
        ops.device.copy(ops.status, ops.place(np.array([status], np.uint32)))
        with pytest.raises(error):
            ops.check_finite({})
        ops.check_finite({})
        assert recipe.divergence.skips
