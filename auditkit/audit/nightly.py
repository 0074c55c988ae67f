"""The nightly job: steps that a beacon draws are verified and attested, and everything that was found is kept.

A night is one folder: result.json, report.json, attestations/ and, after a mismatch or a log that cannot be trusted,
log/ with the signed checkpoints that were seen of the run's log, those of earlier nights included. What is found is
written before anything is done with it, so that a failure later on loses nothing.

A busy mirror is no failure of a night, but it must not go on unseen: a night that could not reach something ends as
UNAVAILABLE while the last good night is not long ago, and as INCOMPLETE, which nobody should take for a success, from
then on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from auditkit.audit import history
from auditkit.audit.assigned import NO_KEY, Assigned, Subject, assigned
from auditkit.audit.attest import Attester
from auditkit.audit.keep import keep, prepare
from auditkit.audit.submit import Result
from auditkit.audit.submit import overall as overall_submitted
from auditkit.errors import AuditkitError, BadArtifact, Unavailable, UsageError
from auditkit.formats.digest import Digest
from auditkit.replay.report import Report, overall, utc_text
from auditkit.replay.selection import in_words
from auditkit.store.lock import in_turn
from auditkit.store.progress import Clock, Progress, moment
from auditkit.trust.beacon import Beacon
from auditkit.trust.coverage import Coverage
from auditkit.trust.disk import writing
from auditkit.verdict import Verdict, worst

FORMAT = "auditkit/night/v1"
HISTORY = "history.json"
ATTESTATIONS = "attestations"

# What another try a little later may mend. A mirror in trouble also serves error pages, which are bad bytes.
PASSING = (Verdict.UNAVAILABLE, Verdict.BAD_ARTIFACT)

Found = TypeVar("Found")


@dataclass(frozen=True)
class Plan:
    """What an operator chose: how many steps, how often to try, how long before the next try, and how many days without
    a good night are too many."""

    count: int = 3
    tries: int = 3
    pause_seconds: float = 300.0
    patience_days: float = 3.5


@dataclass(frozen=True)
class Tools:
    """What a night works with: each may raise AuditkitError, and `verify` reports instead.

    subject    name, id and size of the run
    beacon     the random value, and what it takes to check it later
    verify     replays steps, written as --steps takes them, with the work key of `attester` where there is one
    said       what has been attested so far, or None; with the content digest of its policy
    evidence   files that belong to a mismatch, by path: the checkpoints of the run's log
    submit     hands envelopes, each with the name of its file, to a registry
    """

    clock: Clock
    progress: Progress
    subject: Callable[[], Subject]
    beacon: Callable[[], tuple[Beacon, dict[str, object]]]
    verify: Callable[[str], Report]
    said: Callable[[Subject], tuple[Coverage | None, Digest]] = lambda subject: (None, "")
    evidence: Callable[[], dict[str, bytes]] = dict
    attester: Attester | None = None
    submit: Callable[[Sequence[tuple[str, bytes]]], Sequence[Result]] | None = None


@dataclass
class Night:
    """What one night found, in the making; `verdict` is that of the replays, until `close` has looked at the past."""

    folder: Path
    began: str
    keyid: Digest = NO_KEY
    verdict: Verdict = Verdict.INCOMPLETE
    finished: str = ""
    message: str = ""
    hint: str = ""
    notes: list[str] = field(default_factory=list)
    assigned: Assigned | None = None
    round: dict[str, object] = field(default_factory=dict)
    report: Report | None = None
    attestations: list[str] = field(default_factory=list)
    submitted: list[Result] = field(default_factory=list)
    last_match: str = ""
    nights_without_match: int = 0

    def to_dict(self) -> dict[str, object]:
        """The night as JSON values."""
        report = self.report
        steps = () if report is None else report.steps
        return {
            "format": FORMAT,
            "verdict": self.verdict.name,
            "code": self.verdict.code,
            "began": self.began,
            "finished": self.finished,
            "message": self.message,
            "hint": self.hint,
            "notes": list(self.notes),
            "assignment": self.assigned.to_dict() if self.assigned else None,
            "round": self.round,
            "manifest": "" if report is None else report.manifest,
            "steps": [{"step": s.step, "verdict": s.verdict.name, "on_the_way": s.on_the_way} for s in steps],
            "attested": self.keyid != NO_KEY,
            "keyid": self.keyid if self.keyid != NO_KEY else "",
            "attestations": list(self.attestations),
            "submitted": [result.to_dict() for result in self.submitted],
            "last_match": self.last_match,
            "nights_without_match": self.nights_without_match,
            "folder": str(self.folder),
        }


def nightly(plan: Plan, tools: Tools, base: Path) -> Night:
    """One night; its folder is made in `base`, where the history of all nights lies too.

    Whatever the run, the network, the registry or the disk causes is the night's verdict, and takes back nothing that
    was found before. UsageError: a night of this second is there already, or a step makes no sense; Unsupported: its
    folder cannot be made.
    """
    night = _begin(tools, base)
    with _telling(night):
        _verify(night, plan, tools)
    with _telling(night):
        _attest(night, tools)
    with in_turn(base, history.WAIT_SECONDS, tools.clock) as problem:  # nothing is lost between reading and writing
        if problem:
            night.notes.append(f"another night at the same time may overwrite the history: {problem}")
        _close(night, plan, tools.clock, base / HISTORY)
    return night


@contextmanager
def _telling(night: Night) -> Iterator[None]:
    """Let an error of the block be a part of the night."""
    try:
        yield
    except UsageError:
        raise
    except AuditkitError as error:
        _failed(night, error)


def _failed(night: Night, error: AuditkitError) -> None:
    """Add what ended the night early; it takes back nothing that was found before."""
    night.verdict = worst([night.verdict, error.verdict])
    if night.report is None and not night.message:
        night.message, night.hint = error.message, error.hint
    else:
        night.notes.append(f"{error.verdict.name}: {error.message}")


def _begin(tools: Tools, base: Path) -> Night:
    began = utc_text(moment(tools.clock))
    folder = base / began.replace("-", "").replace(":", "")
    with writing(folder):
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise UsageError(f"{folder} is there already", hint="one night at a time") from None
    return Night(folder, began, tools.attester.keyid if tools.attester else NO_KEY)


def _verify(night: Night, plan: Plan, tools: Tools) -> None:
    """Draw the steps, replay them, and write the report."""
    beacon, night.round = tools.beacon()
    if beacon.caveat:
        night.notes.append(beacon.caveat)
    subject = replace(_patiently(plan, tools, tools.subject), keyid=night.keyid)
    coverage, policy = _said(night, tools, subject)
    night.assigned = assigned(subject, beacon, plan.count, coverage=coverage, policy=policy)
    if not night.assigned.steps:
        night.notes.append("this key has spoken on every step: drawn from all of them again")
        night.assigned = assigned(subject, beacon, plan.count)
    report = _replay(plan, tools, sorted(night.assigned.steps))
    night.report = report
    night.verdict, night.message, night.hint = report.verdict, report.message, report.hint
    _write(night.folder / "report.json", report.to_json().encode("ascii"))
    if report.verdict in (Verdict.MISMATCH, Verdict.UNTRUSTED):
        for path, data in tools.evidence().items():
            _write(night.folder / "log" / path, data)


def _said(night: Night, tools: Tools, subject: Subject) -> tuple[Coverage | None, Digest]:
    """What has been attested so far; a night goes on without it."""
    try:
        return tools.said(subject)
    except UsageError:
        raise
    except AuditkitError as error:
        night.notes.append(f"drawn from all steps alike, for what was attested cannot be read: {error.message}")
        return None, ""


def _patiently(plan: Plan, tools: Tools, get: Callable[[], Found]) -> Found:
    """What `get` gives, asked for again after a pause where that may help."""
    for left in reversed(range(plan.tries)):
        try:
            return get()
        except (Unavailable, BadArtifact) as error:
            if not left:
                raise
            _pause(plan, tools, error.message)
    raise UsageError("a night needs at least one try")


def _pause(plan: Plan, tools: Tools, why: str) -> None:
    tools.progress.note(f"{why}; trying again in {plan.pause_seconds:g} s")
    tools.clock.sleep(plan.pause_seconds)


def _replay(plan: Plan, tools: Tools, steps: Sequence[int]) -> Report:
    """Replay steps, and once more those that may only have met a bad hour of a mirror."""
    report = tools.verify(_words(steps))
    for _ in range(plan.tries - 1):
        left = _unsettled(report, steps)
        if not left or report.verdict is Verdict.MACHINE_FAULT:
            break
        _pause(plan, tools, f"{report.verdict.name} for {len(left)} of {len(steps)} steps")
        report = _merged(report, tools.verify(_words(left)), steps)
    return report


def _words(steps: Sequence[int]) -> str:
    """Steps as --steps takes them; a single one as a range."""
    return in_words((step, step + 1) for step in steps) if len(steps) > 1 else f"{steps[0]}:{steps[0] + 1}"


def _unsettled(report: Report, steps: Sequence[int]) -> list[int]:
    """The steps to try again: all where the run itself could not be read, else those that were not reached."""
    if not report.steps:
        return list(steps) if report.verdict in PASSING else []
    failed = {found.step for found in report.steps if found.verdict in (*PASSING, Verdict.INCOMPLETE)}
    return [step for step in steps if step in failed]


def _merged(first: Report, second: Report, wanted: Sequence[int]) -> Report:
    """Two reports as one: of a step that is in both the second says more."""
    found = {step.step: step for step in (*first.steps, *second.steps)}
    if not found:
        return second
    told = first if first.steps else second
    steps = tuple(found[number] for number in sorted(found))
    verdict = overall(steps, wanted)
    message = second.message if verdict is second.verdict else ""
    hint = second.hint if message else ""
    return replace(told, wanted=tuple(wanted), steps=steps, verdict=verdict, message=message, hint=hint)


def _attest(night: Night, tools: Tools) -> None:
    """Sign what was found, keep all of it, and then hand it on."""
    if night.report is None:
        return
    if tools.attester is None:
        night.notes.append("not attested: there is no key")
        return
    made = tools.attester.attest(night.report)
    night.notes += [f"not attested: {unsigned.describe()}" for unsigned in made.unsigned]
    folder = night.folder / ATTESTATIONS
    prepare(folder)
    for signed in made.signed:
        kept = keep(signed, folder)
        night.attestations += [path.relative_to(night.folder).as_posix() for path in kept]
    if tools.submit is not None and made.signed:
        try:
            night.submitted += tools.submit([(f"{signed.name}.json", signed.envelope) for signed in made.signed])
        except AuditkitError as error:
            _failed(night, error)
        else:
            night.verdict = worst([night.verdict, overall_submitted(night.submitted)])


def _close(night: Night, plan: Plan, clock: Clock, path: Path) -> None:
    """Look at the past, decide how loud this night must be, and write the result; the history last."""
    now = clock.wall()
    night.finished = utc_text(moment(clock))
    past, problem = history.read(path)
    if problem:
        night.notes.append(problem)
    new = past.add(history.Night(night.finished, night.verdict))
    night.last_match, night.nights_without_match = new.last_match, new.without_match
    if night.verdict is Verdict.UNAVAILABLE:
        last = past.last_match or "none is known"
        night.notes.append(
            f"nights in a row without a full match: {night.nights_without_match}; the last full match: {last}"
        )
        if past.is_overdue(now, plan.patience_days):
            night.verdict = Verdict.INCOMPLETE
            night.notes.append(f"more than {plan.patience_days:g} days without a full match: this night fails")
    with _telling(night):
        _write(night.folder / "result.json", json.dumps(night.to_dict(), ensure_ascii=True).encode("ascii"))
    with _telling(night):
        history.write(path, new)


def _write(path: Path, data: bytes) -> None:
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
