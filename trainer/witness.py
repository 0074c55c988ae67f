"""A digest of every step's record and leaves, taken when the step was made: later damage to the disk shows.

A record holds digests that nothing else in a work folder repeats (unpublished states, gradients, norms). A flipped bit
there would be published, and whoever replays the step would accuse the publisher.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from auditkit.cli import console
from auditkit.errors import BadArtifact
from auditkit.formats import leaves
from auditkit.formats.digest import content_digest
from auditkit.formats.leaves import MicroBatchLeaf, parse_leaves
from auditkit.formats.record import RecordRow
from auditkit.formats.run import LEAVES, RECORDS
from trainer.disk import read_bytes, write_atomic

CHECKS = "checks.bin"
CHECK_BYTES = 32

LeavesBefore = Callable[[int], int]
"""How many micro-batch leaves the steps before a step have: a run of several segments has others in each."""


def check_of(row: RecordRow, parts: Sequence[MicroBatchLeaf]) -> bytes:
    """The 32 bytes of one step: BLAKE3 of its record row and its leaves as they are written."""
    return bytes.fromhex(content_digest(row.encode() + b"".join(leaf.encode() for leaf in parts)))


def leaves_end(before: LeavesBefore, step: int) -> int:
    """The bytes of leaves.bin that the steps before a step fill."""
    return len(leaves.MAGIC) + before(step) * leaves.LEAF_BYTES


def read_leaves(folder: Path, steps: int, before: LeavesBefore) -> tuple[tuple[MicroBatchLeaf, ...], ...]:
    """The leaves of the first `steps` steps; raises `BadArtifact` or `Unavailable`."""
    end, data = leaves_end(before, steps), read_bytes(folder / LEAVES)
    if len(data) < end:
        raise BadArtifact(f"{folder / LEAVES}: {len(data)} bytes, but {steps} steps fill {end}")
    if data[: len(leaves.MAGIC)] != leaves.MAGIC:
        raise BadArtifact(f"{folder / LEAVES}: does not begin with AUDITKIT-LEA-v1")
    ends = [leaves_end(before, step) for step in range(steps + 1)]
    view = memoryview(data)
    return tuple(
        parse_leaves(view[first:stop], (stop - first) // leaves.LEAF_BYTES)
        for first, stop in zip(ends[:-1], ends[1:], strict=True)
    )


def check(folder: Path, rows: Sequence[RecordRow], before: LeavesBefore) -> None:
    """Records and leaves are what the trainer wrote; raises `BadArtifact` naming files and step.

    A folder without checks was made before there were any: it is taken with a note.
    """
    if not (folder / CHECKS).is_file():
        console.tell(f"note: no {CHECKS} in {folder}: damage to {RECORDS} since the training may not show")
        return
    noted = read_bytes(folder / CHECKS)
    if len(noted) < len(rows) * CHECK_BYTES:
        raise BadArtifact(
            f"{folder / CHECKS}: {len(noted)} bytes, but {len(rows)} steps fill {len(rows) * CHECK_BYTES}"
        )
    for step, (row, parts) in enumerate(zip(rows, read_leaves(folder, len(rows), before), strict=True)):
        if check_of(row, parts) != noted[step * CHECK_BYTES : (step + 1) * CHECK_BYTES]:
            raise BadArtifact(
                f"{folder / RECORDS}: record {step}, or its leaves, are not what was written when the step was made"
                f" ({CHECKS})",
                hint="the disk may have failed; resume from a state before that step, or from a copy",
            )


def begin_checks(folder: Path, rows: Sequence[RecordRow], before: LeavesBefore) -> None:
    """Give a folder that has no checks those of what is there, so that later steps can be appended."""
    parts = read_leaves(folder, len(rows), before)
    write_atomic(folder / CHECKS, b"".join(map(check_of, rows, parts)))
