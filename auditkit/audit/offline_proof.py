"""Offline proofs of a run's records: one file that shows, with the publisher's key alone, what a step's record says.

A C2SP tlog-proof whose extra data is the canonical record. Nobody vouches for extra data, but this is the entry that
the proof is about, so that a changed one leads to another root.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from auditkit.audit.signed_log import Opened, Rule
from auditkit.errors import BadArtifact, UsageError
from auditkit.formats.checkpoint import Checkpoint
from auditkit.formats.record import StepRecord
from auditkit.formats.tlog_proof import LogProof
from auditkit.trust.log_reader import check_proof
from auditkit.trust.witness import Cosignature, verify_witnesses


@dataclass(frozen=True)
class Proved:
    """A record that the log of a key holds, by an offline proof."""

    record: StepRecord
    checkpoint: Checkpoint
    cosignatures: tuple[Cosignature, ...]


def prove(opened: Opened, step: int) -> LogProof:
    """The proof of the record of a step, which the log must have."""
    return replace(opened.reader.proof(step), extra=opened.reader.entry(step))


def check(data: bytes, rule: Rule, *, what: str = "proof") -> Proved:
    """What a proof file shows under a rule, which must name the publisher's key.

    Untrusted: signature, witnesses, another log, or the record is not in it. BadArtifact: malformed, or not about a
    record. UsageError: the rule names no key, and without one anybody could have signed.
    """
    if rule.publisher is None:
        raise UsageError("a proof says nothing without the key that must have signed", hint="--publisher VKEY")
    proof = LogProof.parse(data, what)
    checkpoint = check_proof(proof, proof.extra, rule.publisher)
    witnesses = verify_witnesses(proof.checkpoint, rule.witnesses, rule.threshold, log=rule.publisher)
    record = StepRecord.parse(proof.extra)
    if record.step != proof.index:
        raise BadArtifact(f"{what}: entry {proof.index} of the log is the record of step {record.step}")
    return Proved(record, checkpoint, witnesses)
