"""Micro-batch leaves, the file `leaves.bin`: what each micro-batch added to its step, to locate a mismatch.

A leaf is 40 bytes: i64 little-endian loss sum, then the 32 bytes of the gradient root. The file is 16 bytes of magic
and the leaves of step 0, of step 1, ..., the same number for each step.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats import merkle
from auditkit.formats.digest import Digest, check_digest
from auditkit.formats.limits import LIMITS

MAGIC = b"AUDITKIT-LEA-v1\n"
LEAF_BYTES = 40

_LEAF = struct.Struct("<q32s")


@dataclass(frozen=True, slots=True)
class MicroBatchLeaf:
    """Loss sum over the micro-batch's targets in units of 2^-32, and the root of its exact gradient sums."""

    loss_sum: int
    gradient: Digest

    def encode(self) -> bytes:
        """The 40 bytes; BadArtifact when the loss sum does not fit 64 bits or the gradient is no digest."""
        check_digest(self.gradient, "micro-batch leaf: gradient")
        if type(self.loss_sum) is not int or not -(1 << 63) <= self.loss_sum < 1 << 63:
            raise BadArtifact("micro-batch leaf: loss sum is not a 64-bit integer")
        return _LEAF.pack(self.loss_sum, bytes.fromhex(self.gradient))


def parse_leaves(data: bytes | memoryview, count: int) -> tuple[MicroBatchLeaf, ...]:
    """Exactly `count` leaves, e.g. the byte range of one step; BadArtifact when the length is another."""
    if len(data) != count * LEAF_BYTES:
        raise BadArtifact(f"micro-batch leaves: {len(data)} bytes, {count} leaves have {count * LEAF_BYTES}")
    return tuple(MicroBatchLeaf(loss, digest.hex()) for loss, digest in _LEAF.iter_unpack(data))


def micro_root(leaves: Sequence[MicroBatchLeaf]) -> Digest:
    """Root of the RFC 6962 tree over the 40-byte leaves, as hex; BadArtifact when there is none."""
    if not leaves:
        raise BadArtifact("micro-batch leaves: none")
    return merkle.tree_root([merkle.leaf_hash(leaf.encode()) for leaf in leaves]).hex()


def span(step: int, micro_batches: int) -> tuple[int, int]:
    """Offset and length, in bytes, of the leaves of one step within the file."""
    length = micro_batches * LEAF_BYTES
    return len(MAGIC) + step * length, length


@dataclass(frozen=True, slots=True)
class LeavesFile:
    """The leaves of every step; `micro_batches` of them a step."""

    micro_batches: int
    steps: tuple[tuple[MicroBatchLeaf, ...], ...]

    @classmethod
    def parse(cls, data: bytes, *, micro_batches: int) -> Self:
        """All steps of a whole file; BadArtifact for another magic, a partial step or too many steps."""
        if not 1 <= micro_batches <= LIMITS.micro_batches_per_step:
            raise BadArtifact(f"leaves: {micro_batches} micro-batches a step, 1 to 2^20 are allowed")
        if data[:16] != MAGIC:
            raise BadArtifact("leaves: does not begin with AUDITKIT-LEA-v1")
        body = memoryview(data)[16:]
        width = micro_batches * LEAF_BYTES
        if len(body) % width:
            raise BadArtifact(f"leaves: {len(body) % width} bytes after the last whole step (truncated?)")
        if len(body) // width > LIMITS.steps:
            raise BadArtifact(f"leaves: more than {LIMITS.steps} steps")
        rows = [MicroBatchLeaf(loss, digest.hex()) for loss, digest in _LEAF.iter_unpack(body)]
        return cls(micro_batches, tuple(tuple(rows[i : i + micro_batches]) for i in range(0, len(rows), micro_batches)))

    def encode(self) -> bytes:
        """The whole file; BadArtifact when a step has another number of leaves."""
        if any(len(step) != self.micro_batches for step in self.steps):
            raise BadArtifact(f"leaves: a step does not have {self.micro_batches} leaves")
        return MAGIC + b"".join(leaf.encode() for step in self.steps for leaf in step)
