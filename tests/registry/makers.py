"""Runs, keys and signed attestations for the registry's tests: real signatures over the records of a real run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from auditkit.formats.record import StepRecord
from auditkit.formats.step_audit import CHECKS, FAILED, OK, Digests, Machine, StepAudit, Verifier
from auditkit.formats.times import time_text
from auditkit.registry.runs import KnownRun
from auditkit.trust.envelope import sign
from auditkit.trust.keys import PrivateKey
from auditkit.verdict import Verdict

NOW = 1_750_000_000  # seconds since 1970, long past: what the clocks of these tests begin at
MACHINE = Machine("cpu", "cpu-x86_64", "", "3.11.7", "2.4.6", "", "Linux")
OTHER = "ef" * 32


def key(number: int) -> PrivateKey:
    """A key, always the same for the same number: 0 to 255."""
    return PrivateKey(bytes([number]) * 32)


@dataclass(frozen=True)
class Maker:
    """Makes attestations of a run's steps."""

    run: KnownRun

    def audit(self, step: int, verdict: Verdict = Verdict.MATCH, **changes: object) -> StepAudit:
        """What an auditor would say of a step; `changes` replace fields."""
        record = StepRecord.parse(self.run.record(step))
        expected = Digests.of(record)
        computed = {Verdict.MATCH: expected, Verdict.MISMATCH: replace(expected, state=OTHER)}.get(verdict)
        checks: Mapping[int, str] = {number: OK for number in CHECKS}
        if verdict is not Verdict.MATCH:
            checks = {**checks, 7: FAILED}
        given = {
            "run_id": self.run.run_id,
            "run": self.run.name,
            "step": step,
            "verdict": verdict,
            "manifest": "ab" * 32,
            "record": record.digest(),
            "expected": expected,
            "computed": computed,
            "checks": checks,
            "work": "cd" * 32 if computed else "",
            "numerics": record.numerics,
            "verifier": Verifier("auditkit", "0.1.0", "12" * 32),
            "machine": MACHINE,
            "started": time_text(NOW - 60),
            "finished": time_text(NOW - 30),
            "milliseconds": 1234,
            "automation": "",
            "message": "",
        }
        return StepAudit(**{**given, **changes})  # type: ignore[arg-type]

    def signed(self, step: int, by: PrivateKey, verdict: Verdict = Verdict.MATCH, **changes: object) -> bytes:
        """The envelope of an attestation."""
        statement = self.audit(step, verdict, **changes).statement(hashlib.sha256(self.run.record(step)).hexdigest())
        return sign(statement, by).encode()
