"""Ordered row sums on the device (cuda/row_sum.cu), and how rows are shared among threads; SPEC.md section 5."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditkit.errors import Unsupported
from auditkit.kernels.device import Array, Device, blocks_for

WARP = 32

_LEVELS = 23  # of the tree that one thread folds (ROW_LEVELS of cuda/row_sum.cuh)
_HELD = (1, 2, 3, 4, 6, 8)  # cells of four elements that a thread may hold
_WIDEST = 512  # threads of a block: more would leave too few registers for eight cells


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


def held_cells(width: int, team: int) -> int:
    """Cells of four elements that a thread holds when a team keeps the whole row in registers."""
    return -(-width // (4 * team))


def team_for(width: int, held: int, widest: int) -> int:
    """The fewest threads, a power of two of at least a warp, that keep a row in `held` cells each; at most `widest`."""
    return min(widest, max(WARP, padded_width(held_cells(width, held))))


def held_kind(width: int, team: int, kinds: tuple[int, ...]) -> str:
    """The suffix of a kernel: the fewest cells of `kinds` that hold a row, or `any`.

    Raises Unsupported for a row that is too long for a team.
    """
    check_width(width, team)
    enough = [kind for kind in kinds if held_cells(width, team) <= kind]
    return str(enough[0]) if enough and width % 4 == 0 else "any"


def row_sum(device: Device, x: Array, *, shape: RowShape | None = None) -> Array:
    """Sum x (..., K) float32 over its last axis by the halving tree -> (...,) float32."""
    width = int(x.shape[-1])
    rows = int(np.prod(x.shape[:-1], dtype=np.int64))
    chosen = shape or _shape(width)
    kind = held_kind(width, chosen.team, _HELD)
    sums = device.empty(x.shape[:-1], np.float32)
    args = (x, sums, np.int64(rows), np.int64(width), np.int64(padded_width(width)), np.int32(chosen.team))
    device.launch("row_sum", f"row_sum_{kind}", chosen.blocks(rows), chosen.block, args)
    return sums


def _shape(width: int) -> RowShape:
    """A warp a row while it holds it; else as few warps as hold it, a block of their own."""
    team = team_for(width, _HELD[-1], _WIDEST)
    return RowShape(team, 256 if team == WARP else team)
