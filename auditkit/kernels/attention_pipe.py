"""What the fused attention's kernels of sm_90 share (cuda/attention_sm90.cuh): where they fit, threads and memory."""

from __future__ import annotations

from dataclasses import dataclass

from auditkit.kernels.attention_chunks import Sizes
from auditkit.kernels.device import Device, blocks_for
from auditkit.kernels.exact_dot_sm90 import ARCHITECTURE

BITS, DIM = 14, 128  # what the kernels are written for
MOST_KEYS = 1 << 16  # of a weighted sum: their products of digits, below 191 * 128, stay below 2^31

TILE = 64  # rows and columns of a tile
NORM_THREADS = 256  # of a block that finds norms (cuda/attention_norms.cuh)

_OPERAND, _DIGITS, _HEADER = 3 * TILE * DIM, 3 * TILE * TILE, 16


@dataclass(frozen=True)
class Pipe:
    """The choices of a kernel (Pipe of cuda/attention_tiles.cuh): which must be the source's."""

    products: int
    scorers: int
    row_stages: int
    column_stages: int
    sum_stages: int  # 0 without sums
    vectors: int
    row_sums: bool = False
    cluster: int = 1

    @property
    def rows(self) -> int:
        """Rows of a block at a time."""
        return TILE * (1 if self.sum_stages else self.scorers)

    @property
    def threads(self) -> int:
        """Of a block."""
        return 128 * (1 + self.scorers + (1 if self.sum_stages else 0))

    @property
    def record(self) -> int:
        """Bytes of a record of 64 columns."""
        return _HEADER + 4 * self.vectors * TILE

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        operands = self.row_stages * self.rows // TILE + self.column_stages
        barriers = 2 * (self.row_stages + self.column_stages + 2 * self.sum_stages + 1 + self.scorers)
        return (
            operands * self.products * _OPERAND
            + self.sum_stages * (_OPERAND + _DIGITS)
            + 2 * self.scorers * self.record
            + (8 * TILE if self.row_sums else 0)
            + 8 * barriers
            + 16
            + self.scorers * 4 * 32  # what each warp compares
            + 1024
        )

    def grid(self, device: Device, sizes: Sizes, rows: int) -> int:
        """Blocks: one a multiprocessor, where there is work for all."""
        units = sizes.groups * blocks_for(rows, self.rows * self.cluster)
        return self.cluster * min(units, max(1, device.multiprocessors // self.cluster))


def fits(device: Device, sizes: Sizes, dim: int, bits: int) -> bool:
    """Whether these kernels take such an attention; no choice can change a bit."""
    counted = sizes.tokens <= MOST_KEYS and sizes.groups * sizes.heads * sizes.tokens < 1 << 31  # rows by int32
    return device.architecture == ARCHITECTURE and (dim, bits) == (DIM, BITS) and counted
