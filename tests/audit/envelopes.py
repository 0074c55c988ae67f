"""Attestations about a run of some steps whose records are made up, by keys that everybody knows."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path

from auditkit.formats import svr
from auditkit.formats.record import RecordRow, StepRecord, expand
from auditkit.formats.step_audit import Digests, StepAudit, sha256_of
from auditkit.trust.envelope import sign
from auditkit.trust.keys import PrivateKey
from auditkit.verdict import Verdict
from tests.formats import attestations, samples

STEPS = 20
KEYS = [PrivateKey(bytes([n]) * 32) for n in range(1, 6)]
PUBLIC = {key.public.keyid: key.public for key in KEYS}


@functools.cache
def chain(size: int = STEPS, run_id: str = samples.RUN_ID, salt: str = "") -> tuple[StepRecord, ...]:
    """The records of a run."""

    def row(step: int) -> RecordRow:
        return RecordRow(*(samples.digest_of(f"{salt}{name} {step}") for name in "abcd"), 1, 2, 3)

    found = expand(
        [row(n) for n in range(size)], run_id=run_id, numerics=1, micro_batches=2, state0=samples.digest_of("0")
    )
    return tuple(found)


def audit(record: StepRecord, verdict: Verdict = Verdict.MATCH, **changes: object) -> StepAudit:
    """What an auditor found about the step of a record."""
    kind = {
        Verdict.MATCH: attestations.MATCH,
        Verdict.MISMATCH: dataclasses.replace(attestations.MISMATCH, automation=""),
        Verdict.UNAVAILABLE: dataclasses.replace(attestations.UNAVAILABLE, automation=""),
    }[verdict]
    expected = Digests.of(record)
    computed = {Verdict.MATCH: expected, Verdict.MISMATCH: attestations.WRONG, Verdict.UNAVAILABLE: None}[verdict]
    about = {"run_id": record.run, "step": record.step, "record": record.digest(), "expected": expected}
    return dataclasses.replace(kind, **{"computed": computed, **about, **changes})  # type: ignore[arg-type]


def envelope(step: int, key: int = 0, verdict: Verdict = Verdict.MATCH, **changes: object) -> bytes:
    """The attestation of a step of the run by one of KEYS."""
    record = chain()[step]
    return sign(audit(record, verdict, **changes).statement(sha256_of(record)), KEYS[key]).encode()


def about(record: StepRecord, key: int = 0) -> bytes:
    """A match of any record."""
    return sign(audit(record).statement(sha256_of(record)), KEYS[key]).encode()


def summary(step: int, key: int = 0) -> bytes:
    """The Simple Verification Result beside a match."""
    record = chain()[step]
    return sign(svr.statement(audit(record), sha256_of(record)), KEYS[key]).encode()


def put(folder: Path, name: str, data: bytes) -> Path:
    """Write a file, and the folders that it needs."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
