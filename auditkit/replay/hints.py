"""Why a step may not match: the first differing tensor of the published end state, and hints at the usual causes.

Nothing here decides a verdict; what cannot be read or found is left out of the explanation. A fault of the machine is
raised: nothing that it says of a mismatch holds any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from auditkit.errors import AuditkitError, Incomplete, MachineFault
from auditkit.formats.record import StepRecord
from auditkit.formats.skips import NO_RESULT, NORM, skip_of
from auditkit.formats.timeline import Segment
from auditkit.model.state import State, document
from auditkit.replay.backend import Backend
from auditkit.replay.compare import TensorDifference
from auditkit.replay.outcome import Computed, replay
from auditkit.replay.published import open_state
from auditkit.replay.report import FieldDifference
from auditkit.replay.run import Run


def tensor_difference(run: Run, computed: Computed) -> TensorDifference | None:
    """The first tensor, in the order of the state document, in which the published end state differs, with its bits.

    None where that state is not published, cannot be read, or is the same. Raises MachineFault.
    """
    step = computed.state.step
    if step not in run.published:
        return None
    try:
        return open_state(run, step).first_difference(computed.state)
    except MachineFault:  # under a plan the computed tensors are made when they are read
        raise
    except AuditkitError:
        return None


def skip_difference(backend: Backend, record: StepRecord, segment: Segment, state: State, computed: Computed) -> str:
    """In words, that a step was skipped which the recipe does not skip, or the other way round; else an empty text."""
    recipe, result = segment.recipe, computed.result
    claimed = skip_of(recipe, record.gradient, record.norm)
    if NO_RESULT in (claimed, result.skipped) and claimed != result.skipped:
        if claimed == NO_RESULT:
            return "the record says that the step has no finite result and was skipped, but it has one"
        return f"the recipe skips this step, for it has no finite result ({result.why}), but the record claims one"
    if result.skipped == NORM and (computed.root != record.state_after or record.lr):
        return f"the recipe skips this step, for {result.why}, but the record claims an update"
    if not result.skipped and recipe.divergence.skips:
        kept = document(replace(state, step=state.step + 1), recipe, backend.ops, cursor=segment.cursor)
        if record.state_after == kept.root():
            bound = recipe.divergence.max_norm
            limit = f"max_norm is {bound:.9g}" if bound else "the recipe bounds no norm"
            return (
                f"the step was skipped, which the recipe does not do: its norm is {float(result.norm):.9g}, and {limit}"
            )
    return ""


def hint(run: Run, backend: Backend, state: State, computed: Computed, differences: Sequence[FieldDifference]) -> str:
    """One likely cause in words, or an empty text."""
    fields = {difference.field for difference in differences}
    if fields == {"lr"} or ("lr" in fields and "gradient" not in fields):
        return (
            "the gradient is right and the learning rate is not: the schedule of the recipe is not the one trained with"
        )
    if "state_after" not in fields:
        return "the state after the step is right: only what the record says about the way there is not"
    try:
        return _label(run, computed) or _shifted(run, backend, state) or _optimizer(fields)
    except Incomplete:  # a neighbour's record, where only some were read
        return _optimizer(fields)


def _optimizer(fields: set[str]) -> str:
    if not fields & {"gradient", "norm", "lr", "loss"}:
        return "gradient, norm and learning rate are right: the optimiser's settings or its state differ"
    return ""


def _label(run: Run, computed: Computed) -> str:
    """Whether the computed tensors are those of another state of the run, under a wrong step number."""
    step = computed.state.step
    segment = run.timeline.left_by(step)
    within = range(segment.start, segment.stop + 1)  # the others have other recipes or cursors
    for other in sorted({step - 1, step + 1, step - 2, step + 2} & set(within)):
        if computed.digests.root(other) == run.state_before(other):
            return f"the computed tensors are those of state {other}: the step labels are shifted by {other - step:+d}"
    return ""


def _shifted(run: Run, backend: Backend, state: State) -> str:
    """Whether the step matches when the neighbouring batch and step number are used: then the labels are shifted."""
    for shift in (-1, 1):
        step = state.step + shift
        if not 0 <= step < run.size:
            continue
        segment = run.segment(step)
        try:
            tokens = run.tokens(step)
            other = replay(backend, replace(state, step=step), tokens, segment.recipe, cursor=segment.cursor)
        except MachineFault:
            raise
        except AuditkitError:
            continue
        after = state.step + 1
        if isinstance(other, Computed) and other.digests.root(after) == run.state_before(after):
            return (
                f"the published states around step {state.step} match as step {step}: "
                f"the step labels of the states are shifted by {-shift:+d}"
            )
    return ""
