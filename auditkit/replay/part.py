"""Audit some micro-batches of one step (checks 4, 5, 6 and 8): their leaves from the parameters alone.

Nothing here takes the step: the update, the moments and the state after it are not looked at, and every report says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np

from auditkit.errors import AuditkitError, BadArtifact, Incomplete, MachineFault
from auditkit.formats.digest import Digest
from auditkit.formats.leaves import MicroBatchLeaf, micro_root
from auditkit.formats.micro_batches import MicroBatches
from auditkit.formats.recipe import Recipe
from auditkit.formats.skips import NO_RESULT, skip_of
from auditkit.formats.step_audit import Digests, sha256_of
from auditkit.formats.stream import batch_digest
from auditkit.model.part import PartResult
from auditkit.model.state import State
from auditkit.numerics.arrays import IntArray
from auditkit.numerics.nonfinite import NonFinite
from auditkit.replay import parameters as params
from auditkit.replay.backend import Backend
from auditkit.replay.confirm import afresh, copied_in, held_record, held_tokens, require_same
from auditkit.replay.machine import HINT
from auditkit.replay.outcome import Broken, Fingerprint, Stopped, scalar_difference
from auditkit.replay.parameters import Parameters, parameters
from auditkit.replay.paranoid import between, known_answers, moved
from auditkit.replay.report import Check, FieldDifference, PartReport, Status, StepReport
from auditkit.replay.run import Run
from auditkit.store.progress import Clock, Progress, moment
from auditkit.verdict import Verdict

NOT_TAKEN = "not asked for: the update, the moments and the state after the step"


@dataclass(frozen=True)
class Gradients:
    """The micro-batches as they came out here."""

    result: PartResult

    @property
    def fingerprint(self) -> Fingerprint:
        """Every leaf, what all of them give together, and the work."""
        found, whole = self.result, self.result.whole
        values = () if whole is None else (whole.gradient, _bits(whole.loss), _bits(whole.norm), _bits(whole.lr))
        work = f", work {found.work}" if found.work else ""
        return Fingerprint("", (found.leaves, values, found.work), f"leaves {micro_root(found.leaves)}{work}")


Outcome = Gradients | Stopped | Broken


@dataclass(frozen=True)
class Audit:
    """Where and how a part is audited; `second` computes it once more, and may be `backend` itself."""

    run: Run
    backend: Backend
    progress: Progress
    clock: Clock
    work_key: Callable[[Digest, int], bytes] | None = None
    second: Backend | None = None

    def begin(self, number: int, start: int, chosen: MicroBatches) -> Part:
        """One audit, of micro-batches of one step that is reached from state `start`."""
        key = self.work_key(self.run.run_id, number) if self.work_key else None
        return Part(self, number, start, chosen, key)


class Part:
    """An audit under way: the checks so far, and what a failing one says."""

    def __init__(self, audit: Audit, number: int, start: int, chosen: MicroBatches, key: bytes | None) -> None:
        self._audit, self._number, self._start, self._chosen, self._key = audit, number, start, chosen, key
        self._run, self._backend, self._record = audit.run, audit.backend, audit.run.record(number)
        self._began, self._started = audit.clock.now(), moment(audit.clock)
        self._digest = self._record.digest()
        self._checks = [Check(7, Status.SKIPPED, NOT_TAKEN)]
        self._found = PartReport(chosen, "")
        self._work: Digest = ""

    def refused(self, number: int, error: AuditkitError) -> StepReport:
        """The report of an audit that ends at check `number`."""
        self._checks.append(Check(number, Status.FAILED, error.message))
        return self._report(error.verdict, error.message, error.hint)

    def from_published(self) -> StepReport:
        """Audit from the published state."""
        # 4 start state root
        try:
            found = parameters(self._run, self._number)
        except AuditkitError as error:
            return self.refused(4, error)
        return self.audit(found)

    def audit(self, found: Parameters) -> StepReport:
        """Audit from parameters that were proven."""
        self._checks.append(Check(4, Status.OK, found.detail))
        # 5 batch digest
        try:
            tokens, leaves = self._tokens(), self._leaves(self._run)
        except AuditkitError as error:
            return self.refused(5, error)
        # 6 replay
        try:
            state = self._backend.place(found.state)
            outcome = self._replay(state, tokens)
            wrong = self._differences(outcome, leaves)
            if wrong or not isinstance(outcome, Gradients):
                outcome, wrong = self._confirmed(found, state, tokens, outcome.fingerprint)
            held_record(self._record, self._digest)
            self._held_leaves(outcome, wrong)
        except AuditkitError as error:
            return self.refused(6, error)
        return self._ended(outcome, wrong)

    def _held_leaves(self, outcome: Outcome, wrong: tuple[FieldDifference, ...]) -> None:
        """MachineFault: leaves that agree with those computed have not the root that the published ones had."""
        if isinstance(outcome, Gradients) and not wrong and micro_root(outcome.result.leaves) != self._found.expected:
            raise MachineFault("the leaves changed in memory while they were in use", hint=HINT)

    def _ended(self, outcome: Gradients | Stopped, wrong: tuple[FieldDifference, ...]) -> StepReport:
        if isinstance(outcome, Stopped):
            self._checks.append(Check(6, Status.FAILED, outcome.error.message))
            message = f"the record claims a result, but these micro-batches have none: {outcome.error.message}"
            return self._report(Verdict.MISMATCH, message)
        result, whole = outcome.result, outcome.result.whole
        self._work = result.work
        self._found = replace(self._found, obtained=micro_root(result.leaves), gradient=whole.gradient if whole else "")
        self._checks.append(Check(6, Status.OK, self._replayed(bool(wrong))))
        # 8 gradient, micro-batches, loss, norm, learning rate
        if wrong:
            first = wrong[0]
            detail = f"{first.field}: computed {first.computed}, published {first.published}"
            self._checks.append(Check(8, Status.FAILED, detail))
            message = f"first differing field of the record: {first.field}"
            return self._report(Verdict.MISMATCH, message, differences=wrong)
        all_ = "and the step's gradient, loss, norm, learning rate" if whole else "nothing else of the record"
        self._checks.append(Check(8, Status.OK, f"loss sum and gradient of {self._chosen.describe()}, {all_}"))
        return self._report(Verdict.MATCH)

    def _tokens(self) -> IntArray:
        tokens: IntArray = self._run.tokens(self._number)
        found = batch_digest(tokens, self._run.segment(self._number).data.dtype)
        if found != self._record.batch:
            raise BadArtifact(
                f"the tokens of step {self._number} have batch digest {found}, its record says {self._record.batch}"
            )
        self._checks.append(Check(5, Status.OK, found))
        return tokens

    def _leaves(self, run: Run) -> tuple[MicroBatchLeaf, ...]:
        """The published leaves of the micro-batches; all were read, so that their root is the record's."""
        leaves = run.leaves(self._number)
        record, recipe = run.record(self._number), run.segment(self._number).recipe
        if skip_of(recipe, record.gradient, record.norm) == NO_RESULT:
            raise Incomplete(
                f"step {self._number} is skipped without a result: its leaves are declared, whatever was computed",
                hint=f"only the whole step tells: --step {self._number}",
            )
        found = tuple(leaves[i] for i in self._chosen)
        self._found = replace(self._found, expected=micro_root(found))
        return found

    def _replay(self, state: State, tokens: IntArray) -> Outcome:
        """Compute the micro-batches; on a second back end, or a second time, too, if that was asked for."""
        audit, recipe = self._audit, self._run.segment(self._number).recipe
        answers = known_answers(self._backend, audit.clock, always=audit.second is not None)
        first = self._once(self._backend, recipe, state, tokens, between(answers, audit.progress.advance))
        if audit.second is not None:
            there = moved(state, self._backend, audit.second)
            require_same(first.fingerprint, self._once(audit.second, recipe, there, tokens).fingerprint)
        return first

    def _once(
        self,
        backend: Backend,
        recipe: Recipe,
        state: State,
        tokens: IntArray,
        advance: Callable[[int], None] | None = None,
    ) -> Outcome:
        numbers = tuple(self._chosen)
        try:
            return Gradients(backend.part(state, tokens, numbers, recipe, on_micro_batch=advance, work_key=self._key))
        except NonFinite as error:
            return Stopped(error, backend.ops.name)
        except (ArithmeticError, LookupError, ValueError) as error:
            return Broken(error)

    def _confirmed(
        self, found: Parameters, state: State, tokens: IntArray, first: Fingerprint
    ) -> tuple[Gradients | Stopped, tuple[FieldDifference, ...]]:
        """Once more, nothing used again: see replay/confirm.py."""
        backend = self._backend
        backend.self_test()
        fresh = afresh(self._run, self._number)
        segment, ops = fresh.segment(self._number), backend.ops
        params.held(found, state, ops)
        held_tokens(self._record, segment, tokens)
        if self._number in fresh.published:
            again = parameters(fresh, self._number)
            state = backend.place(again.state)
        else:
            again, state = found, copied_in(backend, state)
        if again.digests != found.digests:
            raise MachineFault("the parameters, read again, are others", hint=HINT)
        tokens = fresh.tokens(self._number)
        with backend.anew() as other:
            second = self._once(other, segment.recipe, state, tokens)
        params.held(again, state, ops)
        held_tokens(self._record, segment, tokens)
        require_same(first, second.fingerprint)
        if isinstance(second, Broken):
            raise second.error
        wrong = self._differences(second, self._leaves(fresh))
        if isinstance(second, Gradients) and not wrong:
            raise MachineFault("the leaves or the record, read again, are those computed here", hint=HINT)
        return second, wrong

    def _differences(self, outcome: Outcome, leaves: tuple[MicroBatchLeaf, ...]) -> tuple[FieldDifference, ...]:
        """Every field that came out differently: of each micro-batch, then those that all of them give."""
        if not isinstance(outcome, Gradients):
            return ()
        found = []
        for number, theirs, ours in zip(self._chosen, leaves, outcome.result.leaves, strict=True):
            pairs = (
                ("loss_sum", str(theirs.loss_sum), str(ours.loss_sum)),
                ("gradient", theirs.gradient, ours.gradient),
            )
            found += [FieldDifference(f"micro_batches[{number}].{name}", a, b) for name, a, b in pairs if a != b]
        whole, record = outcome.result.whole, self._record
        if whole is not None:
            if whole.gradient != record.gradient:
                found.append(FieldDifference("gradient", record.gradient, whole.gradient))
            for name in ("loss", "norm", "lr"):
                found += scalar_difference(name, getattr(record, name), getattr(whole, name))
        return tuple(found)

    def _replayed(self, repeated: bool) -> str:
        second, backend = self._audit.second, self._backend
        also = "" if second is None or second is backend else f" and on {second.device}"
        twice = ", twice with the same result" if repeated or (second and not also) else ""
        return f"{self._chosen.describe()} on {backend.device}{also}{twice}"

    def _report(
        self, verdict: Verdict, message: str = "", hint: str = "", differences: tuple[FieldDifference, ...] = ()
    ) -> StepReport:
        done = {check.number for check in self._checks}
        checks = [*self._checks, *(Check(n, Status.SKIPPED) for n in range(4, 9) if n not in done)]
        seconds = self._audit.clock.now() - self._began
        record = self._record
        return StepReport(
            step=self._number,
            verdict=verdict,
            start=self._start,
            checks=tuple(sorted(checks, key=lambda check: check.number)),
            record=record.digest(),
            record_sha256=sha256_of(record),
            expected=Digests.of(record),
            work=self._work,
            message=message,
            hint=hint,
            differences=differences,
            seconds=seconds,
            started=self._started,
            finished=self._started + timedelta(seconds=seconds),
            part=self._found,
        )


def _bits(value: np.float32) -> bytes:
    return np.float32(value).tobytes()
