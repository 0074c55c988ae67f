"""How an audit of some micro-batches comes by its parameters: from the published state, or by replaying if asked to."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from auditkit.errors import Incomplete, Unsupported, UsageError
from auditkit.formats.micro_batches import MicroBatches
from auditkit.model.state import State
from auditkit.replay import chosen
from auditkit.replay.backend import Backend, CudaBackend
from auditkit.replay.chosen import Asked
from auditkit.replay.interval import Replayer
from auditkit.replay.memory import part_bytes
from auditkit.replay.parameters import Parameters, of_state
from auditkit.replay.part import Audit
from auditkit.replay.placing import limit_card, limits
from auditkit.replay.plan import Interval
from auditkit.replay.report import StepReport
from auditkit.replay.run import Run

OUT_OF_MEMORY = "out of memory"
PLAN = "the parameters and the micro-batches alone in memory"


def check_asked(asked: Asked | None, step: int | None, replay_to: bool) -> None:
    """UsageError: micro-batches of several steps, or what cannot be micro-batches."""
    if asked is None:
        if replay_to:
            raise UsageError("--replay-to belongs to --micro-batch", hint="whole steps are reached by replaying anyway")
        return
    chosen.check(asked)
    if step is None:
        raise UsageError("--micro-batch belongs to --step: micro-batches of one step", hint="for example: --step 0")


def of_step(run: Run, step: int, asked: Asked, replay_to: bool) -> MicroBatches:
    """The micro-batches asked for. UsageError: the step has no such, or its parameters are not published."""
    found = chosen.chosen(asked, run.segment(step).recipe.batch.micro_batches)
    if step not in run.published and not replay_to:
        raise UsageError(
            f"state {step} is not published, so the parameters of step {step} cannot be fetched",
            hint=_instead(run, step),
        )
    return found


def require_room(run: Run, step: int, asked: MicroBatches, backend: Backend, memory: int | None) -> None:
    """Refuse an audit that needs more than there is, or than may be used: it would be killed, not answered.

    Raises Unsupported.
    """
    cuda = isinstance(backend, CudaBackend)
    need = part_bytes(run.segment(step).recipe, backend.threads, len(asked), cuda)
    allowed = limits(run, backend, memory)
    if not allowed.fit(need):
        raise Unsupported(
            f"an audit of {asked.describe()} needs {need.memory:,} bytes where it computes and {need.host:,} of main"
            f" memory; {_shown(allowed.memory)} and {_shown(allowed.host)} may be used",
            hint="fewer --threads need less; an audit of the whole step can do with little memory",
        )
    limit_card(backend, allowed.memory, wanted=memory is not None)


def way_to(interval: Interval) -> Interval:
    """The steps before the last one of an interval, which is audited in part: the replay that reaches it."""
    return Interval(interval.start, interval.stop - 1, ())


def audit_part(
    audit: Audit, replayer: Replayer | None, interval: Interval, asked: MicroBatches
) -> Iterator[StepReport]:
    """The report on micro-batches of the interval's last step, after those of steps on the way that do not match.

    replayer: takes the steps on the way; None where there are none.
    """
    step = interval.stop - 1
    if replayer is not None:
        leaves = audit.run.timeline.leaves_before
        audit.progress.start("replay", leaves(step) - leaves(interval.start), "micro-batches")
        try:
            yield from replayer.replay(way_to(interval))
        except MemoryError:
            yield audit.begin(step, interval.start, asked).refused(6, _too_little())
            return
        finally:
            audit.progress.finish()
    begun = audit.begin(step, interval.start, asked)
    audit.progress.start("audit", len(asked), "micro-batches")
    try:
        if replayer is None:
            yield begun.from_published()
        elif replayer.left is None:
            yield begun.refused(4, Incomplete(f"not reached: a step before step {step} gave no state to go on from"))
        else:
            yield begun.audit(_left(replayer, *replayer.left))
    except MemoryError:
        yield begun.refused(6, _too_little())
    finally:
        audit.progress.finish()


def _left(replayer: Replayer, state: State, detail: str) -> Parameters:
    """The parameters of the state that was come to; moments that are in memory are not held any longer."""
    replayer.left = None
    kept = replace(state, adam_m={}, adam_v={}) if state.held else state
    return of_state(replayer.backend.host(kept), detail)


def _too_little() -> Unsupported:
    return Unsupported(OUT_OF_MEMORY, hint="`auditkit plan` says how much it needs")


def _shown(limit: int | None) -> str:
    return "any" if limit is None else f"{limit:,}"


def _instead(run: Run, step: int) -> str:
    """What would work: the nearest published states, or replaying from the one before."""
    states = sorted(number for number in run.published if number < run.size)
    before = max(number for number in states if number < step)
    after = min((number for number in states if number > step), default=None)
    near = f"--step {before}" if after is None else f"--step {before} or --step {after}"
    way = step - before
    steps = "1 step" if way == 1 else f"{way:,} steps"
    return f"{near}, whose states are published; or --replay-to, which replays {steps} from state {before} first"
