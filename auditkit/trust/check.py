"""Check attestations by a policy: each by itself, then what those that count say of each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from auditkit.errors import AuditkitError, Untrusted
from auditkit.formats.canonical import shown
from auditkit.formats.digest import Digest
from auditkit.formats.dsse import Envelope
from auditkit.formats.record import StepRecord
from auditkit.formats.statement import Statement
from auditkit.formats.step_audit import subject_name
from auditkit.formats.times import seconds
from auditkit.trust.attested import Attested, Summary, read_attestation, read_either, read_summary
from auditkit.trust.clock import check_finished
from auditkit.trust.coverage import Status, cover
from auditkit.trust.policy import Trust
from auditkit.trust.rows import Rows
from auditkit.verdict import Verdict, worst

FORMAT = "auditkit/attest-check/v1"
NOT_COUNTED = "a summary for other tools, never counted"


@dataclass(frozen=True)
class KnownRun:
    """A run to bind attestations to: its id, its name, all its records."""

    run_id: Digest
    name: str
    records: Sequence[StepRecord]


Find = Callable[[Digest], KnownRun | None]


@dataclass(frozen=True)
class Checked:
    """One file: `verdict` is MATCH if it was accepted, whatever it says, and the error's otherwise.

    `says` is what was accepted, None otherwise; `subject` and `auditor` name step and key for people; `why_not` tells
    why it does not count, "" if it does; `bound` whether the run's own records were at hand.
    """

    path: str
    verdict: Verdict
    says: Attested | Summary | None = None
    subject: str = ""
    auditor: str = ""
    why_not: str = ""
    bound: bool = False
    message: str = ""
    hint: str = ""

    def to_dict(self) -> dict[str, object]:
        """The file's outcome as JSON values."""
        found: dict[str, object] = {"path": self.path, "accepted": self.says is not None, "verdict": self.verdict.name}
        if self.says is None:
            return {**found, "message": self.message, "hint": self.hint}
        part = None if isinstance(self.says, Summary) else self.says.part
        says = "SVR" if isinstance(self.says, Summary) else self.says.verdict.name
        return {
            **found,
            "says": says,
            "micro_batches": part.micro_batches.text if part else "",
            "subject": self.subject,
            "step": self.says.step,
            "run_id": "" if isinstance(self.says, Summary) else self.says.run_id,
            "record_sha256": self.says.record_sha256,
            "envelope_sha256": self.says.envelope,
            "keyid": self.says.keyid,
            "auditor": self.auditor,
            "counts": not self.why_not,
            "why_not": self.why_not,
            "bound": self.bound,
        }


@dataclass(frozen=True)
class StepStatus:
    """What the attestations that count say of one step: how many keys say so, from how many hardware families."""

    run_id: Digest
    subject: str
    step: int
    status: Status
    matches: int
    mismatches: int
    families: int

    def to_dict(self) -> dict[str, object]:
        """The step's status as JSON values."""
        return {
            "run_id": self.run_id,
            "subject": self.subject,
            "step": self.step,
            "status": self.status.name.lower(),
            "matches": self.matches,
            "mismatches": self.mismatches,
            "families": self.families,
        }


@dataclass(frozen=True)
class CheckReport:
    """Every file, every step that an accepted attestation names, and how many keys and families the policy asks for."""

    files: tuple[Checked, ...]
    steps: tuple[StepStatus, ...]
    threshold: int
    families: int

    @property
    def accepted(self) -> list[Attested]:
        """The attestations that were accepted, in the order of the files."""
        return [file.says for file in self.files if isinstance(file.says, Attested)]

    @property
    def verdict(self) -> Verdict:
        """The worst of the files and of the steps: MISMATCH, and INCOMPLETE where the policy is not satisfied."""
        steps = {Status.MISMATCH: Verdict.MISMATCH, Status.COVERED: Verdict.MATCH}
        found = [file.verdict for file in self.files]
        found += [steps.get(step.status, Verdict.INCOMPLETE) for step in self.steps]
        return worst(found if self.steps else [*found, Verdict.INCOMPLETE])

    def to_dict(self) -> dict[str, object]:
        """The report as JSON values."""
        return {
            "format": FORMAT,
            "verdict": self.verdict.name,
            "code": self.verdict.code,
            "threshold": self.threshold,
            "families": self.families,
            "files": [file.to_dict() for file in self.files],
            "steps": [step.to_dict() for step in self.steps],
        }


def check(
    files: Iterable[tuple[str, bytes | AuditkitError]],
    trust: Trust,
    find: Find,
    only: KnownRun | None = None,
    *,
    now: float,
) -> CheckReport:
    """Check files, each given as its name and its bytes or the reason why there are none.

    `find` gives the run of a run id, None for one that is not known here; it may raise if the run's own files are bad.
    With `only` every file must be about that run. `now` is Unix time.
    """
    found = [_checked(path, data, trust, find, only, now) for path, data in files]
    bound = {(file.subject, file.says.record_sha256) for file in found if file.says and file.bound}
    found = [replace(f, bound=(f.subject, f.says.record_sha256) in bound) if f.says else f for f in found]
    return CheckReport(tuple(found), tuple(_steps(found, trust)), trust.threshold, trust.families)


def _checked(
    path: str, data: bytes | AuditkitError, trust: Trust, find: Find, only: KnownRun | None, now: float
) -> Checked:
    try:
        if isinstance(data, AuditkitError):
            raise data
        says, run = _read(data, trust, find, only)
        if isinstance(says, Attested):
            check_finished(seconds(says.finished), now)
    except AuditkitError as error:
        return Checked(path, error.verdict, message=error.message, hint=error.hint)
    why_not = NOT_COUNTED if isinstance(says, Summary) else trust.why_not(says.keyid, says.automation)
    name = trust.names.get(says.keyid, "")
    auditor = "" if name == says.keyid else name
    return Checked(path, Verdict.MATCH, says, _subject(data), auditor, why_not, run is not None)


def _subject(data: bytes) -> str:
    """The name of the subject of an envelope that was read already."""
    return Statement.parse(Envelope.parse(data).payload).subjects[0].name


def _read(data: bytes, trust: Trust, find: Find, only: KnownRun | None) -> tuple[Attested | Summary, KnownRun | None]:
    """What an envelope says, bound to the run if that is known. A summary names no run id, so none is looked up."""
    said = read_either(data, trust.keys)
    if isinstance(said, Summary):
        if only:
            _check_name(data, only, said.step)
            read_summary(data, trust.keys, records=only.records)
        return said, only
    run = only or find(said.run_id)
    if run is not None:
        if run.run_id != said.run_id:
            raise Untrusted(f"about run {said.run_id}, not about run {run.run_id} ({run.name})")
        read_attestation(data, trust.keys, run_id=run.run_id, records=run.records)
        _check_name(data, run, said.step)
    return said, run


def _check_name(data: bytes, run: KnownRun, step: int) -> None:
    subject, named = _subject(data), subject_name(run.name, step)
    if subject != named:
        raise Untrusted(f"the subject is {shown(subject)}, the step of this run is {shown(named)}")


def _steps(files: Sequence[Checked], trust: Trust) -> list[StepStatus]:
    """The status of each step that is named, run after run."""
    named: dict[tuple[Digest, int], str] = {}
    for file in files:
        if isinstance(file.says, Attested):
            named.setdefault((file.says.run_id, file.says.step), file.subject)
    order = sorted(named)
    place = {step: index for index, step in enumerate(order)}
    said = [file.says for file in files if isinstance(file.says, Attested)]
    # places in `order` instead of step numbers: a few steps of a long run, or of several runs, need no long arrays
    rows = Rows.of(replace(one, step=place[one.run_id, one.step]).entry() for one in said)
    found = cover(rows, trust, len(order))
    return [
        StepStatus(
            run_id=run_id,
            subject=named[run_id, step],
            step=step,
            status=Status(int(found.status[i])),
            matches=int(found.matches[i]),
            mismatches=int(found.mismatches[i]),
            families=int(found.families[i]),
        )
        for i, (run_id, step) in enumerate(order)
    ]
