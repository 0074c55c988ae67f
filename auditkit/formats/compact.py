"""Compact records, `records.bin` of a run whose batches are cut from its token ids: nothing that anything else gives.

16 bytes of magic and a row a step: 32 bytes state root after the step, 32 bytes gradient root, u32 pattern of the norm,
then the step's micro-batch leaves (leaves.py, 40 bytes each); all little-endian. The batch digest follows from the ids,
the learning rate from the recipe, the loss and the micro-batch root from the leaves; `rows` puts them back. Where a run
has several segments, the rows of each have as many leaves as its recipe has micro-batches (`parse_all`).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats.bits import check_f32_bits
from auditkit.formats.digest import Digest, check_digest
from auditkit.formats.leaves import LEAF_BYTES, MicroBatchLeaf, micro_root, parse_leaves
from auditkit.formats.limits import LIMITS
from auditkit.formats.record import RecordRow

MAGIC = b"AUDITKIT-REC-v2\n"
HEAD_BYTES = 68

_HEAD = struct.Struct("<32s32sI")
_EXPONENT = 0x7F800000


@dataclass(frozen=True, slots=True)
class CompactRow:
    """What only the training itself can tell of a step: two digests, the pattern of the norm, the leaves."""

    state_after: Digest
    gradient: Digest
    norm: int
    leaves: tuple[MicroBatchLeaf, ...]

    @property
    def loss_sum(self) -> int:
        """The step's exact loss sum, in units of 2^-32."""
        return sum(leaf.loss_sum for leaf in self.leaves)

    def encode(self) -> bytes:
        """The bytes of the row; BadArtifact for something that is no digest, no leaf or no finite pattern."""
        digests = (bytes.fromhex(check_digest(text, "record row")) for text in (self.state_after, self.gradient))
        head = _HEAD.pack(*digests, check_f32_bits(self.norm, "record row"))
        return head + b"".join(leaf.encode() for leaf in self.leaves)


@dataclass(frozen=True, slots=True)
class CompactRecords:
    """The rows of all steps, step 0 first, each with `micro_batches` leaves; or those of the steps of one segment."""

    micro_batches: int
    steps: tuple[CompactRow, ...]

    @classmethod
    def parse(cls, data: bytes, *, micro_batches: int, first: int = 0) -> Self:
        """The rows of a whole file; BadArtifact for another magic, a partial row or a norm that is not finite.

        `first` is the step of the first row, for messages.
        """
        if not 1 <= micro_batches <= LIMITS.micro_batches_per_step:
            raise BadArtifact(f"records: {micro_batches} micro-batches a step, 1 to 2^20 are allowed")
        if data[:16] != MAGIC:
            raise BadArtifact("records: does not begin with AUDITKIT-REC-v2")
        width = row_bytes(micro_batches)
        count, left = divmod(len(data) - 16, width)
        if left:
            raise BadArtifact(f"records: {left} bytes after the last whole row (truncated?)")
        if count > LIMITS.steps:
            raise BadArtifact(f"records: more than {LIMITS.steps} steps")
        body = memoryview(data)[16:]
        return cls(micro_batches, tuple(_row(body, step * width, micro_batches, first + step) for step in range(count)))

    def encode(self) -> bytes:
        """The whole file; BadArtifact when a step has another number of leaves."""
        if any(len(row.leaves) != self.micro_batches for row in self.steps):
            raise BadArtifact(f"records: a step does not have {self.micro_batches} leaves")
        return MAGIC + b"".join(row.encode() for row in self.steps)

    def rows(self, *, batches: Sequence[Digest], losses: Sequence[int], rates: Sequence[int]) -> tuple[RecordRow, ...]:
        """The full rows, given what follows from elsewhere, one of each a step.

        `batches` are batch digests, `losses` and `rates` the binary32 patterns of mean loss and learning rate.
        """
        given = zip(self.steps, batches, losses, rates, strict=True)
        return tuple(
            RecordRow(row.state_after, batch, row.gradient, micro_root(row.leaves), loss, row.norm, rate)
            for row, batch, loss, rate in given
        )


def row_bytes(micro_batches: int) -> int:
    """Bytes of one row."""
    return HEAD_BYTES + micro_batches * LEAF_BYTES


def file_bytes(steps: int, leaves: int) -> int:
    """Bytes of the file of `steps` steps that have `leaves` micro-batches together."""
    return len(MAGIC) + steps * HEAD_BYTES + leaves * LEAF_BYTES


def parse_all(data: bytes, layout: Sequence[tuple[int, int]]) -> tuple[CompactRecords, ...]:
    """The rows of a whole file, for each (steps, micro-batches a step) of `layout` in turn; BadArtifact as for one."""
    found: list[CompactRecords] = []
    begin, first = len(MAGIC), 0
    for steps, micro_batches in layout:
        end = begin + steps * row_bytes(micro_batches)
        if end > len(data):
            raise BadArtifact(f"records: {len(data)} bytes end within steps {first} to {first + steps - 1}")
        part = data if len(layout) == 1 else data[: len(MAGIC)] + data[begin:end]
        found.append(CompactRecords.parse(part, micro_batches=micro_batches, first=first))
        begin, first = end, first + steps
    if begin != len(data):
        raise BadArtifact(f"records: {len(data) - begin} bytes after step {first - 1}")
    return tuple(found)


def encode_all(parts: Sequence[CompactRecords]) -> bytes:
    """The whole file of consecutive parts; BadArtifact as for one."""
    return MAGIC + b"".join(part.encode()[len(MAGIC) :] for part in parts)


def _row(body: memoryview, at: int, micro_batches: int, step: int) -> CompactRow:
    state, gradient, norm = _HEAD.unpack_from(body, at)
    if norm & _EXPONENT == _EXPONENT:
        raise BadArtifact(f"records: norm of step {step} is not finite")
    begin = at + HEAD_BYTES
    leaves = parse_leaves(body[begin : begin + micro_batches * LEAF_BYTES], micro_batches)
    return CompactRow(state.hex(), gradient.hex(), norm, leaves)
