"""Replay the steps of one interval, each checked against its record (checks 4 to 8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from auditkit.errors import AuditkitError, BadArtifact, MachineFault
from auditkit.formats.bits import f32_from_bits
from auditkit.formats.digest import Digest
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.record import StepRecord
from auditkit.formats.skips import NO_GRADIENT
from auditkit.formats.step_audit import Digests, sha256_of
from auditkit.formats.stream import batch_digest
from auditkit.formats.timeline import Segment
from auditkit.model.state import State
from auditkit.numerics.arrays import IntArray
from auditkit.replay.backend import Backend
from auditkit.replay.boundary import entered_in_memory
from auditkit.replay.compare import TensorDifference
from auditkit.replay.confirm import confirm, held_record, require_same
from auditkit.replay.hints import hint, skip_difference, tensor_difference
from auditkit.replay.machine import HINT
from auditkit.replay.outcome import Computed, Fingerprint, Outcome, Stopped, differences, replay
from auditkit.replay.paranoid import between, known_answers, moved
from auditkit.replay.plan import Interval
from auditkit.replay.published import open_state
from auditkit.replay.report import Check, FieldDifference, Status, StepReport
from auditkit.replay.run import Run
from auditkit.replay.start import SeedMismatch, start_state
from auditkit.store.progress import Clock, Progress, SystemClock, moment
from auditkit.verdict import Verdict

WorkKey = Callable[[Digest, int], bytes]  # (run id, step) -> 32 bytes


@dataclass
class _Step:
    """A step under way: the checks so far, and what a failing one says."""

    number: int
    start: int
    wanted: bool
    record: StepRecord
    segment: Segment
    digest: Digest  # of the record, taken before the replay
    work_key: bytes | None = None
    checks: list[Check] = field(default_factory=list)
    obtained: Digests | None = None
    work: Digest = ""
    skipped: str = ""

    def passed(self, number: int, detail: str) -> None:
        self.checks.append(Check(number, Status.OK, detail))

    def failed(self, number: int, detail: str) -> None:
        self.checks.append(Check(number, Status.FAILED, detail))

    def refused(self, number: int, error: AuditkitError) -> StepReport:
        """The report of a step that ends at check `number`."""
        self.failed(number, error.message)
        return self.report(error.verdict, message=error.message, hint=error.hint)

    def report(
        self,
        verdict: Verdict,
        message: str = "",
        hint: str = "",
        differences: tuple[FieldDifference, ...] = (),
        tensor: TensorDifference | None = None,
    ) -> StepReport:
        """The report of what has been found; checks that were not reached are marked so."""
        done = {check.number for check in self.checks}
        skipped = [Check(n, Status.SKIPPED) for n in range(4, 9) if n not in done]
        checks = tuple(sorted([*self.checks, *skipped], key=lambda check: check.number))
        record = self.record
        return StepReport(
            step=self.number,
            verdict=verdict,
            start=self.start,
            checks=checks,
            published=record.state_after,
            computed=self.obtained.state if self.obtained else "",
            record=record.digest(),
            record_sha256=sha256_of(record),
            expected=Digests.of(record),
            obtained=self.obtained,
            work=self.work,
            skipped=self.skipped,
            message=message,
            hint=hint,
            differences=differences,
            tensor=tensor,
            on_the_way=not self.wanted,
        )


class Replayer:
    """Replays intervals of one run on one back end; with a `work_key`, wanted steps come with their proof of work.

    `second` computes every step once more, and the same must come out; it may be the back end itself.
    """

    def __init__(
        self,
        run: Run,
        backend: Backend,
        progress: Progress,
        *,
        work_key: WorkKey | None = None,
        clock: Clock | None = None,
        second: Backend | None = None,
    ) -> None:
        self._run = run
        self._backend = backend
        self._progress = progress
        self._work_key = work_key
        self._clock = clock or SystemClock()
        self._second = second
        self.left: tuple[State, str] | None = None  # the state that the last interval ended in, and how it was come by
        self._answers = known_answers(backend, self._clock, always=second is not None)

    @property
    def backend(self) -> Backend:
        """Where the steps are taken."""
        return self._backend

    def replay(self, interval: Interval) -> Iterator[StepReport]:
        """A report of every wanted step, and of any other on the way that does not match.

        What makes one step fail does not stop the others, unless there is no state to go on from: those are INCOMPLETE.
        """
        began, started = self._clock.now(), self._utc()
        self.left = None
        try:
            state, detail = start_state(self._run, interval.start, hold=self._backend.holds)
            state = self._backend.place(state)
        except AuditkitError as error:
            for report in self._without_start(interval, error):
                yield self._timed(report, began, started)
            return
        for number in interval.steps:
            step = self._step(interval, number)
            began, started = self._clock.now(), self._utc()
            report, after = self._from(step, state, detail)
            if step.wanted or report.verdict is not Verdict.MATCH:
                yield self._timed(report, began, started)
            if after is None:
                yield from self._not_reached(interval, number)
                return
            state = after
            detail = f"{step.record.state_after}, computed from state {interval.start}, every record on the way checked"
        self.left = state, detail

    def _from(self, step: _Step, state: State, detail: str) -> tuple[StepReport, State | None]:
        """Checks 4 to 8 of one step that begins from `state`; `detail` says how that was come by."""
        # 4 start state root, where a segment begins that the replay has come to
        begun = self._run.timeline.begun(step.number)
        if begun is not None and step.number != step.start:
            try:
                root = entered_in_memory(self._run, self._backend, state, begun)
            except AuditkitError as error:
                return step.refused(4, error), None
            detail = f"{root}, under what changes before step {step.number}: {detail}"
        step.passed(4, detail)
        return self._one(step, state)

    def _without_start(self, interval: Interval, error: AuditkitError) -> Iterator[StepReport]:
        for number in interval.wanted:
            report = self._step(interval, number).refused(4, error)
            if isinstance(error, SeedMismatch):
                report = replace(report, tensor=error.difference)
            yield report

    def _not_reached(self, interval: Interval, stopped: int) -> Iterator[StepReport]:
        for number in interval.wanted:
            if number > stopped:
                message = f"not reached: step {stopped} on the way gave no state to go on from"
                yield self.unanswered(interval, number, Verdict.INCOMPLETE, message)

    def unanswered(self, interval: Interval, number: int, verdict: Verdict, message: str, hint: str = "") -> StepReport:
        """The report of a wanted step of which nothing was found out."""
        report = self._step(interval, number).report(verdict, message=message, hint=hint)
        return self._timed(report, self._clock.now(), self._utc())

    def _step(self, interval: Interval, number: int) -> _Step:
        wanted = number in interval.wanted
        key = self._work_key(self._run.run_id, number) if wanted and self._work_key else None
        record = self._run.record(number)
        return _Step(number, interval.start, wanted, record, self._run.segment(number), record.digest(), key)

    def _timed(self, report: StepReport, began: float, started: datetime) -> StepReport:
        """The report with its times; a wall clock that is set back meanwhile must not end a step before it began."""
        seconds = self._clock.now() - began
        return replace(report, seconds=seconds, started=started, finished=started + timedelta(seconds=seconds))

    def _utc(self) -> datetime:
        return moment(self._clock)

    def _one(self, step: _Step, state: State) -> tuple[StepReport, State | None]:
        """Checks 5 to 8 of one step; the state after it, or None where the replay cannot go on."""
        # 5 batch digest
        try:
            tokens = self._batch(step)
        except AuditkitError as error:
            return step.refused(5, error), None

        # 6 replay
        try:
            outcome = self._replay(step, state, tokens)
        except AuditkitError as error:
            return step.refused(6, error), None
        leaves, leaves_error = self._leaves(step)
        found = differences(step.record, leaves, outcome) if isinstance(outcome, Computed) else ()
        if not isinstance(outcome, Computed) or found:
            first = outcome.fingerprint
            del outcome  # its state is as large as the one that the second replay gives
            try:
                outcome, state, found = self._confirm(step, state, tokens, first)
            except AuditkitError as error:
                return step.refused(6, error), None
        if isinstance(outcome, Stopped):
            step.failed(6, outcome.error.message)
            message = f"the record claims a result, but this step has none: {outcome.error.message}"
            return step.report(Verdict.MISMATCH, message=message), None
        step.obtained, step.work, step.skipped = outcome.obtained, outcome.result.work, outcome.result.why
        step.passed(6, self._replayed(step, bool(found)))

        # 7 end state root
        end_error = self._end_state(step, outcome)

        # 8 gradient, micro-batches, loss, norm, learning rate
        self._fields(step, found, leaves_error)

        if found:
            try:
                return self._mismatch(step, state, outcome, found)
            except MachineFault as error:  # a machine that breaks while it looks for the difference accuses nobody
                return step.report(error.verdict, message=error.message, hint=error.hint), None
        for problem in (end_error, leaves_error):
            if problem is not None:
                return step.report(problem.verdict, message=problem.message, hint=problem.hint), outcome.state
        try:
            held_record(step.record, step.digest)
        except AuditkitError as error:
            return step.refused(6, error), None
        return step.report(Verdict.MATCH), outcome.state

    def _replay(self, step: _Step, state: State, tokens: IntArray) -> Outcome:
        advance = between(self._answers, self._progress.advance)
        recipe, cursor = step.segment.recipe, step.segment.cursor
        first = replay(self._backend, state, tokens, recipe, advance, work_key=step.work_key, cursor=cursor)
        if self._second is None:
            return first
        if self._second is self._backend:
            found = first.fingerprint
            del first  # or there would be a third state in memory
            again = replay(self._backend, state, tokens, recipe, work_key=step.work_key, cursor=cursor)
            require_same(found, again.fingerprint)
            return again
        there = moved(state, self._backend, self._second)
        again = replay(self._second, there, tokens, recipe, work_key=step.work_key, cursor=cursor)
        require_same(first.fingerprint, again.fingerprint)
        return first

    def _confirm(
        self, step: _Step, state: State, tokens: IntArray, first: Fingerprint
    ) -> tuple[Computed | Stopped, State, tuple[FieldDifference, ...]]:
        run, key = self._run, step.work_key
        again = confirm(run, self._backend, step.number, step.start, state, tokens, first, work_key=key)
        if isinstance(again.outcome, Computed) and not again.differences:
            message = "the published record and leaves, read again, are those of the replay: a bit was flipped in them"
            raise MachineFault(f"{message} while they were in use", hint=HINT)
        return again.outcome, again.state, again.differences

    def _batch(self, step: _Step) -> IntArray:
        """The step's tokens, if their digest is the record's. BadArtifact: it is another."""
        tokens: IntArray = self._run.tokens(step.number)
        found = batch_digest(tokens, step.segment.data.dtype)
        if found != step.record.batch:
            raise BadArtifact(
                f"the tokens of step {step.number} have batch digest {found}, its record says {step.record.batch}"
            )
        step.passed(5, found)
        return tokens

    def _leaves(self, step: _Step) -> tuple[tuple[MicroBatchLeaf, ...], AuditkitError | None]:
        """The published leaves, or none and why; the record's root over them is compared all the same."""
        try:
            return self._run.leaves(step.number), None
        except AuditkitError as error:
            return (), error

    def _replayed(self, step: _Step, repeated: bool) -> str:
        count = step.record.micro_batches
        second = self._second
        also = "" if second is None or second is self._backend else f" and on {second.device}"
        twice = ", twice with the same result" if repeated or (second and not also) else ""
        skipped = f"; skipped: {step.skipped}" if step.skipped else ""
        return f"{count} micro-batch{'es' if count > 1 else ''} on {self._backend.device}{also}{twice}{skipped}"

    def _end_state(self, step: _Step, outcome: Computed) -> AuditkitError | None:
        """Check 7: the computed root against the record's, and the published files where there are any."""
        if outcome.root != step.record.state_after:
            step.failed(7, f"computed {outcome.root}, published {step.record.state_after}")
            return None
        if step.number + 1 not in self._run.published:
            step.passed(7, f"{outcome.root} (the state itself is not published)")
            return None
        try:
            opened = open_state(self._run, step.number + 1)
            opened.verify()
        except AuditkitError as error:
            step.failed(7, error.message)
            return error
        step.passed(7, f"{outcome.root}, and every byte of the published state")
        return None

    def _fields(self, step: _Step, found: tuple[FieldDifference, ...], error: AuditkitError | None) -> None:
        """Check 8: what the record says about the way from one state to the other."""
        wrong = [difference for difference in found if difference.field != "state_after"]
        if wrong:
            first = wrong[0]
            step.failed(8, f"{first.field}: computed {first.computed}, published {first.published}")
        elif error is not None:
            step.failed(8, error.message)
        elif step.record.gradient == NO_GRADIENT:
            step.passed(8, "none, for the step has no finite result")
        else:
            step.passed(8, f"gradient {step.record.gradient}, loss {f32_from_bits(step.record.loss):.6g}")

    def _mismatch(
        self, step: _Step, state: State, outcome: Computed, found: tuple[FieldDifference, ...]
    ) -> tuple[StepReport, State | None]:
        """The report of a confirmed mismatch, and the state to go on with where it is the recorded one all the same.

        It stands where what would explain it cannot be had, above all for want of memory. Raises MachineFault.
        """
        same_state = outcome.root == step.record.state_after
        first = f"first differing field of the record: {found[0].field}"
        skipped, likely, tensor = "", "", None
        try:
            skipped = skip_difference(self._backend, step.record, step.segment, state, outcome)
            likely = "" if skipped else hint(self._run, self._backend, state, outcome, found)
            if not same_state:
                tensor = tensor_difference(self._run, replace(outcome, state=self._backend.host(outcome.state)))
        except MachineFault:
            raise
        except (AuditkitError, MemoryError) as error:
            said = error.message if isinstance(error, AuditkitError) else "out of memory"
            likely = likely or f"what may explain it could not be looked for: {said}"
        report = step.report(
            Verdict.MISMATCH,
            message=f"{skipped}; {first}" if skipped else first,
            hint=likely,
            differences=found,
            tensor=tensor,
        )
        return report, outcome.state if same_state else None
