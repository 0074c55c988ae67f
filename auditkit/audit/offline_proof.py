"""Offline proofs of a run's records: one file that shows, with the publisher's key alone, what a record says.

A C2SP tlog-proof whose extra data is the canonical record. Nobody vouches for extra data, but this is the entry that
the proof is about, so that a changed one leads to another root.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from auditkit.audit.signed_log import Opened, Rule
from auditkit.errors import BadArtifact, UsageError
from auditkit.formats.checkpoint import Checkpoint
from auditkit.formats.segment import LogEntry, SegmentRecord, parse_entry
from auditkit.formats.tlog_proof import LogProof
from auditkit.trust.log_reader import check_proof
from auditkit.trust.witness import Cosignature, verify_witnesses


@dataclass(frozen=True)
class Proved:
    """A record of a step or a segment that the log of a key holds as entry `index`, by an offline proof."""

    record: LogEntry
    index: int
    checkpoint: Checkpoint
    cosignatures: tuple[Cosignature, ...]

    @property
    def segments(self) -> int:
        """How many segments began before this record, by its place in the log: each of them has an entry of its own."""
        return self.index - self.record.step


def prove(opened: Opened, step: int, *, segment: bool = False) -> LogProof:
    """The proof of the record of a step, which the log must have; of the `segment` that begins with it, if asked for.

    UsageError: no segment begins there.
    """
    index = opened.timeline.entry(step)
    if segment:
        if opened.timeline.begun(step) is None:
            starts = ", ".join(str(begun.start) for begun in opened.timeline.later) or "none"
            raise UsageError(
                f"no segment begins with step {step}", hint=f"segments after the first begin with: {starts}"
            )
        index -= 1
    return replace(opened.reader.proof(index), extra=opened.reader.entry(index))


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
    record = parse_entry(proof.extra)
    if record.step > proof.index:  # before an entry lie those of all earlier steps, and of segments
        kind = "segment record" if isinstance(record, SegmentRecord) else "record"
        raise BadArtifact(f"{what}: entry {proof.index} of the log is the {kind} of step {record.step}")
    return Proved(record, proof.index, checkpoint, witnesses)
