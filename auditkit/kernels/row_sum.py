"""Ordered row sums on the device (cuda/row_sum.cu), and how rows are shared among threads; SPEC.md section 5."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditkit.errors import Unsupported
from auditkit.kernels.device import Array, Device, blocks_for

WARP = 32

_LEVELS = 23  # of the tree that one thread folds (ROW_LEVELS of cuda/row_sum.cuh)
_SHORT = 1024  # up to this padded width a warp takes a row


@dataclass(frozen=True)
class RowShape:
    """team: threads that share a row, 32 or the whole block; block: threads, where shared a power of two of warps.

    most: the most blocks, which then take several rows one after the other; 0 for no limit.
    """

    team: int
    block: int
    most: int = 0

    def blocks(self, rows: int) -> int:
        """Blocks that give each team one row, or fewer."""
        needed = blocks_for(rows, self.block // self.team)
        return min(needed, self.most) if self.most else needed


def padded_width(width: int) -> int:
    """The smallest power of two that is not below width; 1 for a width of 0."""
    return 1 << max(0, width - 1).bit_length()


def check_width(width: int, team: int) -> None:
    """Raises Unsupported for a row that is too long for a team."""
    if padded_width(width) > team << _LEVELS:
        raise Unsupported(f"a row of {width} elements is longer than {team} threads can sum")


def row_sum(device: Device, x: Array, *, shape: RowShape | None = None) -> Array:
    """Sum x (..., K) float32 over its last axis by the halving tree -> (...,) float32."""
    width = int(x.shape[-1])
    rows = int(np.prod(x.shape[:-1], dtype=np.int64))
    padded = padded_width(width)
    chosen = shape or (RowShape(WARP, 256) if padded <= _SHORT else RowShape(256, 256))
    check_width(width, chosen.team)
    sums = device.empty(x.shape[:-1], np.float32)
    args = (x, sums, np.int64(rows), np.int64(width), np.int64(padded), np.int32(chosen.team))
    device.launch("row_sum", "row_sum", chosen.blocks(rows), chosen.block, args)
    return sums
