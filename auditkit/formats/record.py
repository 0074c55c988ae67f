"""Step records: the published claim about one step, the 140-byte rows of `records.bin`, and the log over all records.

Rows leave out what follows from the manifest and from the row before; `expand` rebuilds the full chain from them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

from auditkit.errors import BadArtifact
from auditkit.formats import canonical, merkle
from auditkit.formats.bits import check_f32_bits
from auditkit.formats.digest import ZERO_DIGEST, Digest, check_digest, content_digest
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS

FORMAT = "auditkit/record/v1"
MAGIC = b"AUDITKIT-REC-v1\n"
ROW_BYTES = 140

_ROW = struct.Struct("<32s32s32s32sIII")
_EXPONENT = 0x7F800000


@dataclass(frozen=True, slots=True)
class RecordRow:
    """What a step adds to the chain: four digests and the 32-bit patterns of loss, gradient norm and learning rate."""

    state_after: Digest
    batch: Digest
    gradient: Digest
    micro_root: Digest
    loss: int
    norm: int
    lr: int

    def encode(self) -> bytes:
        """The 140 bytes; BadArtifact for something that is no digest or no finite pattern."""
        digests = (self.state_after, self.batch, self.gradient, self.micro_root)
        raw = [bytes.fromhex(check_digest(digest, "record row")) for digest in digests]
        for pattern in (self.loss, self.norm, self.lr):
            check_f32_bits(pattern, "record row")
        return _ROW.pack(*raw, self.loss, self.norm, self.lr)


@dataclass(frozen=True, slots=True)
class RecordFile:
    """The rows of all steps, step 0 first."""

    rows: tuple[RecordRow, ...]

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The rows of a whole file; BadArtifact for another magic, a partial row or a number that is not finite."""
        if data[:16] != MAGIC:
            raise BadArtifact("records: does not begin with AUDITKIT-REC-v1")
        body = memoryview(data)[16:]
        if len(body) % ROW_BYTES:
            raise BadArtifact(f"records: {len(body) % ROW_BYTES} bytes after the last whole row (truncated?)")
        if len(body) // ROW_BYTES > LIMITS.steps:
            raise BadArtifact(f"records: more than {LIMITS.steps} steps")
        rows: list[RecordRow] = []
        for after, batch, gradient, micro, loss, norm, lr in _ROW.iter_unpack(body):
            if loss & _EXPONENT == _EXPONENT or norm & _EXPONENT == _EXPONENT or lr & _EXPONENT == _EXPONENT:
                raise BadArtifact(f"records: loss, norm or learning rate of step {len(rows)} is not finite")
            rows.append(RecordRow(after.hex(), batch.hex(), gradient.hex(), micro.hex(), loss, norm, lr))
        return cls(tuple(rows))

    def encode(self) -> bytes:
        """The whole file."""
        return MAGIC + b"".join(row.encode() for row in self.rows)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """The claim: step `step` of run `run` took state_before and the batch to state_after.

    `loss`, `norm` and `lr` are binary32 bit patterns; `micro_batches` leaves lie under `micro_root`; `previous` is the
    digest of the record before (64 zeros at step 0).
    """

    run: Digest
    step: int
    previous: Digest
    state_before: Digest
    state_after: Digest
    batch: Digest
    gradient: Digest
    micro_batches: int
    micro_root: Digest
    loss: int
    norm: int
    lr: int
    numerics: int

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The record of canonical JSON; BadArtifact naming the field."""
        fields = Fields(canonical.loads(data, what="record", limit=LIMITS.record_bytes), "record")
        fields.format(FORMAT)
        micro = fields.fields("micro_batches")
        record = cls(
            run=fields.digest("run"),
            step=fields.integer("step", 0, LIMITS.steps - 1),
            previous=fields.digest("previous"),
            state_before=fields.digest("state_before"),
            state_after=fields.digest("state_after"),
            batch=fields.digest("batch"),
            gradient=fields.digest("gradient"),
            micro_batches=micro.integer("count", 1, LIMITS.micro_batches_per_step),
            micro_root=micro.digest("root"),
            loss=fields.f32_bits("loss"),
            norm=fields.f32_bits("norm"),
            lr=fields.f32_bits("lr"),
            numerics=fields.integer("numerics", 1, 1 << 16),
        )
        micro.done()
        fields.done()
        if record.step == 0 and record.previous != ZERO_DIGEST:
            raise BadArtifact("record.previous: step 0 has no previous record, 64 zeros are expected")
        return record

    def encode(self) -> bytes:
        """Canonical JSON, written directly: every step has a record, and a general writer is 20 times slower."""
        return (
            f'{{"batch":"{self.batch}","format":"{FORMAT}","gradient":"{self.gradient}","loss":"f32:{self.loss:08x}",'
            f'"lr":"f32:{self.lr:08x}","micro_batches":{{"count":{self.micro_batches},"root":"{self.micro_root}"}},'
            f'"norm":"f32:{self.norm:08x}","numerics":{self.numerics},"previous":"{self.previous}","run":"{self.run}",'
            f'"state_after":"{self.state_after}","state_before":"{self.state_before}","step":{self.step}}}'
        ).encode("ascii")

    def digest(self) -> Digest:
        """Plain BLAKE3 of the canonical JSON."""
        return content_digest(self.encode())

    def row(self) -> RecordRow:
        """The row that `records.bin` keeps of this record."""
        return RecordRow(self.state_after, self.batch, self.gradient, self.micro_root, self.loss, self.norm, self.lr)


def expand(
    rows: Sequence[RecordRow],
    *,
    run_id: Digest,
    numerics: int,
    micro_batches: int,
    state0: Digest,
    first: int = 0,
    previous: Digest = ZERO_DIGEST,
) -> list[StepRecord]:
    """The full chain of records: each names the digest of the one before and starts from the state it ended in.

    The rows are those of step `first` on, which begins from the state of root `state0` and names `previous`.
    """
    records = []
    before = check_digest(state0, f"state root of step {first}")
    check_digest(run_id, "run id")
    for step, row in enumerate(rows, start=first):
        record = StepRecord(
            run=run_id,
            step=step,
            previous=previous,
            state_before=before,
            state_after=row.state_after,
            batch=row.batch,
            gradient=row.gradient,
            micro_batches=micro_batches,
            micro_root=row.micro_root,
            loss=row.loss,
            norm=row.norm,
            lr=row.lr,
            numerics=numerics,
        )
        records.append(record)
        previous, before = record.digest(), row.state_after
    return records


class Entry(Protocol):
    """An entry of the log: the record of a step or of a segment."""

    def encode(self) -> bytes: ...


def log_root(entries: Iterable[Entry]) -> Digest:
    """Root of the RFC 6962 tree over the encoded records in the order of the log, as hex."""
    return merkle.tree_root([merkle.leaf_hash(entry.encode()) for entry in entries]).hex()
