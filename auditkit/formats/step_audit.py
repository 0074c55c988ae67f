"""The predicate of an attestation: what one auditor found when one step of a run was replayed, and on which machine.

docs/attestations.md describes each field. A value that contradicts itself is refused, whoever signed it: see `_check`.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats.canonical import Value
from auditkit.formats.digest import Digest
from auditkit.formats.fields import Fields, check_text
from auditkit.formats.limits import LIMITS
from auditkit.formats.micro_batches import MicroBatches
from auditkit.formats.paths import check_segment
from auditkit.formats.record import StepRecord
from auditkit.formats.statement import Statement, Subject
from auditkit.formats.times import check_time
from auditkit.verdict import Verdict

PREDICATE_TYPE = "urn:auditkit:predicate:step-audit:v1"  # of a whole step
PART_TYPE = "urn:auditkit:predicate:step-audit:v2"  # of some of its micro-batches: a reader of v1 refuses it
WHAT = "predicate"

# MACHINE_FAULT is missing: it says something about the auditor's machine only, and is not signed.
UNDECIDED = (Verdict.BAD_ARTIFACT, Verdict.UNAVAILABLE, Verdict.UNSUPPORTED, Verdict.INCOMPLETE)
VERDICTS = {verdict.name: verdict for verdict in (Verdict.MATCH, Verdict.MISMATCH, *UNDECIDED)}
CHECKS = tuple(range(1, 9))  # the numbered checks of a verification, docs/trust.md
OK, FAILED, SKIPPED = "ok", "failed", "skipped"
AUTOMATION = ("", "ci", "nightly")  # who started it: a person, a continuous integration, a nightly job

_FAMILY = re.compile(r"[a-z0-9]{1,16}-[a-z0-9_]{1,32}")  # cpu-x86_64, cpu-arm64, cuda-sm_90


@dataclass(frozen=True, slots=True)
class Digests:
    """How a step ended: state root after it, gradient root, root of its micro-batch leaves."""

    state: Digest
    gradient: Digest
    micro_batches: Digest

    @classmethod
    def of(cls, record: StepRecord) -> Self:
        """What a record claims."""
        return cls(record.state_after, record.gradient, record.micro_root)


@dataclass(frozen=True, slots=True)
class AuditedPart:
    """Of which micro-batches an audit speaks that is not one of the whole step.

    micro_batches     those that were asked for, and how many the step has
    leaves, computed  root over their published leaves, and over those that came out here; "" where there are none
    gradient          the gradient root that came out here, of an audit of all micro-batches with a result; else ""
    """

    micro_batches: MicroBatches
    leaves: Digest = ""
    computed: Digest = ""
    gradient: Digest = ""

    def to_value(self) -> dict[str, Value]:
        """The JSON object."""
        return {
            "computed": self.computed,
            "count": self.micro_batches.count,
            "gradient": self.gradient,
            "leaves": self.leaves,
            "micro_batches": self.micro_batches.text,
        }


@dataclass(frozen=True, slots=True)
class Verifier:
    """The program: its name, its version, and the digest of its own source."""

    name: str
    version: str
    source: Digest


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the step was replayed, as the auditor says; `driver` and `cupy` are empty on a CPU."""

    device: str
    family: str
    driver: str
    python: str
    numpy: str
    cupy: str
    system: str


@dataclass(frozen=True, slots=True)
class StepAudit:
    """What an auditor signs about step `step` of run `run_id`, named `run`; checked as a whole when it is made.

    manifest, record    BLAKE3 of run.json as the auditor had it, and of the step's record
    expected, computed  what the record claims, and what came out here; no `computed` for a step without a result
    checks              {1: "ok", .. 8: "skipped"}: how each numbered check ended, all eight
    work                proof that the gradient was computed (formats/work.py); "" without a result
    numerics            version of the specification
    started, finished   UTC, by the auditor's clock; `milliseconds` is what the replay of this step took
    automation          "" if a person started it, "ci", "nightly"
    message             in words why there is no match, or ""
    part                None for a whole step; else its micro-batches, `computed` is None, and check 7 is not made
    """

    run_id: Digest
    run: str
    step: int
    verdict: Verdict
    manifest: Digest
    record: Digest
    expected: Digests
    computed: Digests | None
    checks: dict[int, str]
    work: Digest
    numerics: int
    verifier: Verifier
    machine: Machine
    started: str
    finished: str
    milliseconds: int
    automation: str
    message: str
    part: AuditedPart | None = None

    def __post_init__(self) -> None:
        _check(self)

    @classmethod
    def from_value(cls, value: Value, kind: str = PREDICATE_TYPE) -> Self:
        """The predicate of a JSON value of type `kind`; BadArtifact naming the field."""
        fields = Fields(value, WHAT)
        checks = fields.fields("checks")
        audit = cls(
            run_id=fields.digest("run_id"),
            run=check_segment(fields.raw("run"), fields.name("run")),
            step=fields.integer("step", 0, LIMITS.steps - 1),
            verdict=VERDICTS[fields.choice("verdict", *VERDICTS)],
            manifest=fields.digest("manifest"),
            record=fields.digest("record"),
            expected=_digests(fields.fields("expected")),
            computed=_digests(fields.fields("computed")) if fields.has("computed") else None,
            checks={number: checks.choice(str(number), OK, FAILED, SKIPPED) for number in CHECKS},
            work=_optional(fields, "work"),
            numerics=fields.integer("numerics", 1, 1 << 16),
            verifier=_verifier(fields.fields("verifier")),
            machine=_machine(fields.fields("machine")),
            started=check_time(fields.raw("started"), fields.name("started")),
            finished=check_time(fields.raw("finished"), fields.name("finished")),
            milliseconds=fields.integer("milliseconds", unit="ms"),
            automation=fields.choice("automation", *AUTOMATION),
            message=_text(fields, "message", LIMITS.message_characters),
            part=_part(fields.fields("part")) if kind == PART_TYPE else None,
        )
        checks.done()
        fields.done()
        return audit

    def to_value(self) -> dict[str, Value]:
        """The JSON object."""
        computed = {} if self.computed is None else {"computed": asdict(self.computed)}
        part = {} if self.part is None else {"part": self.part.to_value()}
        return {
            **computed,
            **part,
            "automation": self.automation,
            "checks": {str(number): status for number, status in self.checks.items()},
            "expected": asdict(self.expected),
            "finished": self.finished,
            "machine": asdict(self.machine),
            "manifest": self.manifest,
            "message": self.message,
            "milliseconds": self.milliseconds,
            "numerics": self.numerics,
            "record": self.record,
            "run": self.run,
            "run_id": self.run_id,
            "started": self.started,
            "step": self.step,
            "verdict": self.verdict.name,
            "verifier": asdict(self.verifier),
            "work": self.work,
        }

    def subject(self, record_sha256: Digest) -> Subject:
        """What the attestation is about: the step of the run by name, and SHA-256 of its canonical record."""
        return Subject(subject_name(self.run, self.step), record_sha256)

    def statement(self, record_sha256: Digest) -> Statement:
        """What is signed; BadArtifact naming a field that a reader would refuse."""
        kind = PREDICATE_TYPE if self.part is None else PART_TYPE
        StepAudit.from_value(self.to_value(), kind)
        return Statement((self.subject(record_sha256),), kind, self.to_value())


def subject_name(run: str, step: int) -> str:
    """The name of a step of a run."""
    return f"{run}/step/{step}"


def sha256_of(record: StepRecord) -> Digest:
    """SHA-256 of a canonical record, by which public verifiers know it."""
    return hashlib.sha256(record.encode()).hexdigest()


def _check(audit: StepAudit) -> None:
    """Refuse what cannot be true together; BadArtifact."""
    part = audit.part
    if part is not None:
        _check_part(audit, part)
    computed = audit.computed is not None or (part is not None and part.computed != "")
    if audit.verdict is Verdict.MATCH:
        if part is None and audit.computed != audit.expected:
            raise BadArtifact(f"{WHAT}: MATCH, but computed is not what was expected")
        if {number for number, status in audit.checks.items() if status != OK} != (set() if part is None else {7}):
            raise BadArtifact(f"{WHAT}: MATCH, but not every check is ok")
    elif audit.verdict is Verdict.MISMATCH:
        if FAILED not in audit.checks.values():
            raise BadArtifact(f"{WHAT}: MISMATCH, but no check failed")
    elif computed:
        raise BadArtifact(f"{WHAT}: {audit.verdict.name}, but something was computed")
    if computed != (audit.work != ""):
        raise BadArtifact(f"{WHAT}: what was computed and the work belong together, one of them is missing")
    if audit.finished < audit.started:
        raise BadArtifact(f"{WHAT}: finished {audit.finished}, before it started {audit.started}")


def _check_part(audit: StepAudit, part: AuditedPart) -> None:
    if audit.computed is not None:
        raise BadArtifact(f"{WHAT}: of some micro-batches, but with the digests of a whole step")
    if audit.checks[7] != SKIPPED:
        raise BadArtifact(f"{WHAT}: of some micro-batches, but check 7, the state after the step, is not skipped")
    if part.micro_batches.all and part.leaves not in ("", audit.expected.micro_batches):
        raise BadArtifact(f"{WHAT}: all micro-batches have other leaves than the step")
    if (part.gradient != "") != (part.micro_batches.all and part.computed != ""):
        raise BadArtifact(f"{WHAT}: a gradient is that of all micro-batches, and belongs to their leaves")
    same = part.computed == part.leaves != "" and part.gradient in ("", audit.expected.gradient)
    if audit.verdict is Verdict.MATCH and not same:
        raise BadArtifact(f"{WHAT}: MATCH, but computed is not what was expected")


def _part(fields: Fields) -> AuditedPart:
    count = fields.integer("count", 1, LIMITS.micro_batches_per_step)
    found = AuditedPart(
        micro_batches=MicroBatches.parse(fields.raw("micro_batches"), count, fields.name("micro_batches")),
        leaves=_optional(fields, "leaves"),
        computed=_optional(fields, "computed"),
        gradient=_optional(fields, "gradient"),
    )
    fields.done()
    return found


def _optional(fields: Fields, key: str) -> Digest:
    return fields.digest(key) if fields.raw(key) != "" else ""


def _digests(fields: Fields) -> Digests:
    found = Digests(fields.digest("state"), fields.digest("gradient"), fields.digest("micro_batches"))
    fields.done()
    return found


def _verifier(fields: Fields) -> Verifier:
    found = Verifier(fields.text("name"), fields.text("version"), fields.digest("source"))
    fields.done()
    return found


def _machine(fields: Fields) -> Machine:
    family = fields.text("family")
    if _FAMILY.fullmatch(family) is None:
        raise BadArtifact(f'{fields.name("family")}: not a hardware family such as "cpu-x86_64" or "cuda-sm_90"')
    found = Machine(
        device=fields.text("device"),
        family=family,
        driver=_text(fields, "driver"),
        python=fields.text("python"),
        numpy=fields.text("numpy"),
        cupy=_text(fields, "cupy"),
        system=fields.text("system"),
    )
    fields.done()
    return found


def _text(fields: Fields, key: str, limit: int = LIMITS.name_characters) -> str:
    """Printable text, or none."""
    value = fields.raw(key)
    return "" if value == "" else check_text(value, fields.name(key), limit)
