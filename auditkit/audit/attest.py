"""Attestations of a verification: a signed envelope for every step that was asked for and has something to say.

From Python:

    key = load_private(Path("auditor.pem"))
    attester = Attester(key)
    report = auditkit.verify("sotu-tiny", step=7, work_key=attester.work_key)
    for signed in attester.attest(report).signed:
        print(keep(signed, Path("attestations")))

What cannot be the publisher's doing is not signed: a machine fault speaks of this machine alone.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from auditkit.audit.family import family
from auditkit.audit.source import source_digest
from auditkit.errors import UsageError
from auditkit.formats import svr
from auditkit.formats.digest import Digest
from auditkit.formats.limits import LIMITS
from auditkit.formats.step_audit import AUTOMATION, UNDECIDED, AuditedPart, Machine, StepAudit, Verifier
from auditkit.formats.work import work_key
from auditkit.replay.report import PartReport, Report, StepReport, utc_text
from auditkit.replay.selection import in_words
from auditkit.trust.envelope import sign
from auditkit.trust.keys import PrivateKey
from auditkit.verdict import Verdict

VERIFIER = "auditkit"


@dataclass(frozen=True)
class Signed:
    """The envelopes of one step: its attestation, and for a match the Simple Verification Result, else b"".

    `name` is that of their files, without ending: step-7.1a2b3c4d, of some micro-batches step-7.part.1a2b3c4d.
    """

    step: int
    verdict: Verdict
    name: str
    envelope: bytes
    summary: bytes = b""

    def files(self, number: int = 1) -> Iterator[tuple[str, bytes]]:
        """Name and bytes of each file; `number` above 1 is a further attestation of the same step by the same key."""
        name = self.name if number == 1 else f"{self.name}.{number}"
        yield f"{name}.json", self.envelope
        if self.summary:
            yield f"{name}.svr.json", self.summary


@dataclass(frozen=True)
class Unsigned:
    """Steps that are not signed, ascending, and why; no steps where nobody knows which they would be."""

    steps: tuple[int, ...]
    reason: str

    def describe(self) -> str:
        """Both in words."""
        return f"{steps_text(self.steps)}: {self.reason}" if self.steps else self.reason


@dataclass(frozen=True)
class Attestations:
    """What of a report was signed, and what was not."""

    signed: tuple[Signed, ...]
    unsigned: tuple[Unsigned, ...]


@dataclass(frozen=True)
class Attester:
    """Who signs: a key, and whether a person started the program ("") or a machine ("ci", "nightly").

    UsageError: another `automation`. Unsupported: the program's own sources cannot be read.
    """

    key: PrivateKey
    automation: str = ""
    source: Digest = field(default_factory=source_digest)

    def __post_init__(self) -> None:
        if self.automation not in AUTOMATION:
            raise UsageError(f"automation {self.automation!r} is not ci or nightly")

    @property
    def keyid(self) -> Digest:
        """The key's id."""
        return self.key.public.keyid

    def work_key(self, run_id: Digest, step: int) -> bytes:
        """The key (32 bytes) of a step's proof of work: what `verify(work_key=..)` takes."""
        return work_key(self.key.public.raw, run_id, step)

    def attest(self, report: Report) -> Attestations:
        """Sign every wanted step of a report that was made with `work_key`.

        UsageError: it was made without. Unsupported: this machine has no hardware family.
        """
        wanted = [step for step in report.steps if not step.on_the_way and not _refusal(step)]
        return Attestations(tuple(self._signed(report, step) for step in wanted), unsigned(report))

    def _signed(self, report: Report, step: StepReport) -> Signed:
        audit = self._audit(report, step)
        part = "" if step.part is None else ".part"
        name = f"step-{step.step}{part}.{self.key.public.keyid8}"
        envelope = sign(audit.statement(step.record_sha256), self.key).encode()
        if step.verdict is not Verdict.MATCH or step.part is not None:  # the summary is of whole steps
            return Signed(step.step, step.verdict, name, envelope)
        summary = sign(svr.statement(audit, step.record_sha256), self.key).encode()
        return Signed(step.step, step.verdict, name, envelope, summary)

    def _audit(self, report: Report, step: StepReport) -> StepAudit:
        assert step.expected and step.started and step.finished  # every report of a step that was read has them
        decided = step.verdict not in UNDECIDED
        if decided and (step.obtained or (step.part and step.part.obtained)) and not step.work:
            raise UsageError(
                f"step {step.step} was verified without a key for its proof of work",
                hint="verify(.., work_key=attester.work_key)",
            )
        return StepAudit(
            run_id=report.run_id,
            run=report.run,
            step=step.step,
            verdict=step.verdict,
            manifest=report.manifest,
            record=step.record,
            expected=step.expected,
            computed=step.obtained if decided else None,
            checks={check.number: check.status.value for check in (*report.checks, *step.checks)},
            work=step.work if decided else "",
            numerics=report.numerics,
            verifier=Verifier(VERIFIER, _printed(report.machine["auditkit"]), self.source),
            machine=_machine(report.machine),
            started=utc_text(step.started),
            finished=utc_text(step.finished),
            milliseconds=round(step.seconds * 1000),
            automation=self.automation,
            message=_message(step.message),
            part=_part(step.part, decided) if step.part else None,
        )


def _part(part: PartReport, decided: bool) -> AuditedPart:
    """What was audited of a step; what came out only if it decides something."""
    if not decided:
        return AuditedPart(part.chosen, part.expected)
    return AuditedPart(part.chosen, part.expected, part.obtained, part.gradient)


def unsigned(report: Report) -> tuple[Unsigned, ...]:
    """What of a report is not signed, one entry a reason."""
    refused = ((step.step, _refusal(step)) for step in report.steps if not step.on_the_way)
    entries = [Unsigned((step,), why) for step, why in refused if why]
    return tuple(_joined([*entries, *_missing(report), *_on_the_way(report)]))


def steps_text(steps: tuple[int, ...]) -> str:
    """Ascending steps in words: "step 3", "steps 3,5:9"; long lists are cut."""
    if len(steps) == 1:
        return f"step {steps[0]}"
    ranges: list[tuple[int, int]] = []
    for step in steps:
        if ranges and ranges[-1][1] == step:
            ranges[-1] = (ranges[-1][0], step + 1)
        else:
            ranges.append((step, step + 1))
    more = f" and {len(ranges) - 10} more ranges" if len(ranges) > 10 else ""
    return f"steps {in_words(ranges[:10])}{more}"


def _refusal(step: StepReport) -> str:
    """Why a step is not signed; "" if it is."""
    if step.verdict in (Verdict.MATCH, Verdict.MISMATCH, *UNDECIDED):
        return "" if step.record else "its record was never read"
    if step.verdict is Verdict.MACHINE_FAULT:
        return "MACHINE_FAULT is about this machine and says nothing about the publisher"
    return f"{step.verdict.name} says nothing about the publisher"


def _missing(report: Report) -> Iterator[Unsigned]:
    """The wanted steps that a report says nothing about: it ended before any."""
    done = {step.step for step in report.steps}
    left = tuple(step for step in report.wanted if step not in done)
    if left or not report.wanted:
        why = f"{report.verdict.name}: {report.message}" if report.message else report.verdict.name
        yield Unsigned(left, f"no record was read and believed, since the verification ended before any step ({why})")


def _on_the_way(report: Report) -> Iterator[Unsigned]:
    """Steps that failed and were not asked for: a mismatch of one is worth an attestation of its own."""
    for step in report.steps:
        if step.on_the_way:
            yield Unsigned((step.step,), f"{step.verdict.name} on the way, not asked for: --step {step.step} signs it")


def _joined(refused: Iterable[Unsigned]) -> Iterator[Unsigned]:
    """One entry a reason."""
    steps: dict[str, tuple[int, ...]] = {}
    for entry in refused:
        steps[entry.reason] = steps.get(entry.reason, ()) + entry.steps
    return (Unsigned(tuple(sorted(found)), reason) for reason, found in steps.items())


def _machine(machine: dict[str, str]) -> Machine:
    return Machine(
        device=_printed(machine["device"]),
        family=family(machine),
        driver=_printed(machine.get("driver", "")),
        python=_printed(machine["python"]),
        numpy=_printed(machine["numpy"]),
        cupy=_printed(machine.get("cupy", "")),
        system=_printed(f"{machine['system']} {machine['processor']}"),
    )


def _message(text: str) -> str:
    """A step's message without the signer's home folder: attestations are made to be shown around."""
    home = os.path.expanduser("~")
    return _printed(text.replace(home, "~") if len(home) > 1 else text, LIMITS.message_characters)


def _printed(text: str, limit: int = LIMITS.name_characters) -> str:
    """Text that an attestation can hold: printable, and not too long."""
    return "".join(c if c.isprintable() else "?" for c in text)[:limit]
