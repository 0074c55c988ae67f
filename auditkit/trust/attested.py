"""Read attestations: one function that checks signature, types and binding together, so that no caller can forget one.

What is accepted speaks for one run, one step, one record and one key. Who may read one is everybody; whether it counts
is the policy's business (trust/policy.py).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from auditkit.errors import BadArtifact, Unsupported, Untrusted
from auditkit.formats import canonical, svr
from auditkit.formats.canonical import Value, shown
from auditkit.formats.digest import Digest
from auditkit.formats.dsse import Envelope
from auditkit.formats.fields import UPDATE
from auditkit.formats.limits import LIMITS
from auditkit.formats.record import StepRecord
from auditkit.formats.statement import Statement
from auditkit.formats.step_audit import (
    PART_TYPE,
    PREDICATE_TYPE,
    AuditedPart,
    Digests,
    StepAudit,
    sha256_of,
    subject_name,
)
from auditkit.formats.svr import SimpleResult
from auditkit.formats.times import seconds
from auditkit.trust.envelope import signer
from auditkit.trust.keys import PublicKey
from auditkit.trust.rows import NO_RESULT, Entry, part_outcome
from auditkit.verdict import Verdict

Parsed = TypeVar("Parsed")

_VERSIONED = re.compile(r"urn:auditkit:predicate:step-audit:v([1-9][0-9]{0,8})")
_SUBJECT = re.compile(r"([A-Za-z0-9._+-]{1,100})/step/(0|[1-9][0-9]{0,8})")


@dataclass(frozen=True, slots=True)
class Attested:
    """What a verified attestation says; `envelope` is SHA-256 of its bytes, `work` is "" without a result.

    `finished` is the signer's clock ("2026-01-02T03:04:05Z"), `family` and `automation` are the signer's words.
    """

    envelope: Digest
    keyid: Digest
    run_id: Digest
    step: int
    record_sha256: Digest
    verdict: Verdict
    expected: Digests
    computed: Digests | None
    work: Digest
    family: str
    automation: str
    finished: str
    part: AuditedPart | None = None

    @property
    def outcome(self) -> str:
        """The result of a MISMATCH in every digest, so that equal texts are equal results; "" for other verdicts."""
        if self.verdict is not Verdict.MISMATCH:
            return ""
        if self.part is not None:
            return part_outcome(self.part.micro_batches.text, self.part.computed, self.part.gradient)
        found = self.computed
        return f"{found.state} {found.gradient} {found.micro_batches}" if found else NO_RESULT

    def entry(self) -> Entry:
        """The row of a coverage (trust/rows.py)."""
        return Entry(
            step=self.step,
            keyid=self.keyid,
            verdict=self.verdict,
            family=self.family,
            finished=seconds(self.finished),
            automation=self.automation,
            outcome=self.outcome,
            part=f"{self.part.micro_batches.text}/{self.part.micro_batches.count}" if self.part else "",
        )


@dataclass(frozen=True, slots=True)
class Summary:
    """What a verified Simple Verification Result says; it is never counted."""

    envelope: Digest
    keyid: Digest
    run: str
    step: int
    record_sha256: Digest
    result: SimpleResult


def read_attestation(
    data: bytes,
    keys: Mapping[str, PublicKey],
    *,
    run_id: Digest | None = None,
    record_sha256: Digest | None = None,
    records: Sequence[StepRecord] | None = None,
) -> Attested:
    """The attestation of an envelope, signed by one of `keys` (by keyid), bound to what the caller knows.

    `run_id`, `record_sha256`: of the run and of the step's canonical record; `records`: all records of the run, for the
    strongest binding. BadArtifact: not canonical JSON; Unsupported: a newer predicate; Untrusted: all else.
    """
    attested, audit = _attestation(data, *_signed_statement(data, keys))
    # 5 the run and the record that the caller knows
    if run_id is not None and audit.run_id != run_id:
        raise Untrusted(f"about run {audit.run_id}, not about run {run_id}")
    if record_sha256 is not None and attested.record_sha256 != record_sha256:
        raise Untrusted(f"about a record with SHA-256 {attested.record_sha256}, that of the step has {record_sha256}")
    if records is not None:
        _check_record(audit, attested.record_sha256, records)
    return attested


def read_summary(data: bytes, keys: Mapping[str, PublicKey], *, records: Sequence[StepRecord] | None = None) -> Summary:
    """The Simple Verification Result of an envelope, its signature and its subject checked; errors as above."""
    summary = _summary(data, *_signed_statement(data, keys))
    if records is not None:
        _check_subject(summary.step, summary.record_sha256, records)
    return summary


def read_either(data: bytes, keys: Mapping[str, PublicKey]) -> Attested | Summary:
    """What an envelope is by its signed type, bound to nothing yet; errors as above."""
    key, statement = _signed_statement(data, keys)
    if statement.predicate_type == svr.PREDICATE_TYPE:
        return _summary(data, key, statement)
    return _attestation(data, key, statement)[0]


def _signed_statement(data: bytes, keys: Mapping[str, PublicKey]) -> tuple[PublicKey, Statement]:
    envelope = Envelope.parse(data)
    # 1 signature: one, by a known key, over a payload of this type; before that nothing of the payload is read
    key = signer(envelope, keys)
    # 2 statement: of this type, about one subject
    value = canonical.loads(envelope.payload, what="statement", limit=LIMITS.envelope_bytes)
    statement = _believed(Statement.from_value, value)
    if len(statement.subjects) != 1:
        raise Untrusted(f"a statement about {len(statement.subjects)} subjects, one is expected")
    return key, statement


def _attestation(data: bytes, key: PublicKey, statement: Statement) -> tuple[Attested, StepAudit]:
    # 3 predicate: ours, without unknown fields, without contradictions
    _check_type(statement.predicate_type)
    audit = _believed(lambda value: StepAudit.from_value(value, statement.predicate_type), statement.predicate)
    # 4 subject: this step of this run
    subject = statement.subjects[0]
    if subject.name != subject_name(audit.run, audit.step):
        about = f"{audit.run}/step/{audit.step}"
        raise Untrusted(f"the subject is {shown(subject.name)}, but the predicate is about {about}")
    return _attested(hashlib.sha256(data).hexdigest(), key, subject.sha256, audit), audit


def _summary(data: bytes, key: PublicKey, statement: Statement) -> Summary:
    if statement.predicate_type != svr.PREDICATE_TYPE:
        found = shown(statement.predicate_type)
        raise Untrusted(f"a predicate of type {found}, not {shown(svr.PREDICATE_TYPE)}")
    result = _believed(SimpleResult.from_value, statement.predicate)
    subject = statement.subjects[0]
    named = _SUBJECT.fullmatch(subject.name)
    if named is None:
        raise Untrusted(f"the subject {shown(subject.name)} is not a step of a run")
    envelope = hashlib.sha256(data).hexdigest()
    return Summary(envelope, key.keyid, named[1], int(named[2]), subject.sha256, result)


def _check_type(found: str) -> None:
    if found in (PREDICATE_TYPE, PART_TYPE):
        return
    if _VERSIONED.fullmatch(found):
        raise Unsupported(f"a predicate of type {shown(found)}, this verifier knows {shown(PART_TYPE)}", hint=UPDATE)
    raise Untrusted(f"a predicate of type {shown(found)}, not {shown(PREDICATE_TYPE)}")


def _believed(parse: Callable[[Value], Parsed], value: Value) -> Parsed:
    """Untrusted in place of BadArtifact: no damage explains signed content of a wrong form, the signer does."""
    try:
        return parse(value)
    except BadArtifact as error:
        raise Untrusted(f"signed, but not an attestation: {error.message}", hint=error.hint) from error


def _attested(envelope: Digest, key: PublicKey, sha256: Digest, audit: StepAudit) -> Attested:
    return Attested(
        envelope=envelope,
        keyid=key.keyid,
        run_id=audit.run_id,
        step=audit.step,
        record_sha256=sha256,
        verdict=audit.verdict,
        expected=audit.expected,
        computed=audit.computed,
        work=audit.work,
        family=audit.machine.family,
        automation=audit.automation,
        finished=audit.finished,
        part=audit.part,
    )


def _check_subject(step: int, sha256: Digest, records: Sequence[StepRecord]) -> StepRecord:
    if step >= len(records):
        raise Untrusted(f"about step {step} of a run of {len(records)} steps")
    record = records[step]
    found = sha256_of(record)
    if sha256 != found:
        raise Untrusted(f"about a record with SHA-256 {sha256}, that of step {step} has {found}")
    return record


def _check_record(audit: StepAudit, sha256: Digest, records: Sequence[StepRecord]) -> None:
    """Everything in the predicate that follows from the record must; the subject's digest alone fixes the record."""
    record = _check_subject(audit.step, sha256, records)
    claims = {
        "run_id": (audit.run_id, record.run),
        "step": (audit.step, record.step),
        "record": (audit.record, record.digest()),
        "expected": (audit.expected, Digests.of(record)),
        "numerics": (audit.numerics, record.numerics),
        "part.count": (audit.part.micro_batches.count if audit.part else record.micro_batches, record.micro_batches),
    }
    for name, (said, published) in claims.items():
        if said != published:
            raise Untrusted(f"{name} of the predicate is {said}, the record of step {audit.step} says {published}")
