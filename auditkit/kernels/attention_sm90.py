"""Attention on sm_90 without scores in memory (cuda/attention_forward_sm90.cu); SPEC.md section 8."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditkit.kernels.attention_chunks import Sizes
from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.exact_dot_planes import DeviceRows
from auditkit.numerics.attention import attention_scale

ARCHITECTURE = "90"
BITS, DIM = 14, 128  # what the kernels are written for
MOST_KEYS = 1 << 16  # of a weighted sum: their products of digits, below 191 * 128, stay below 2^31

_TILE, _NORM_THREADS = 64, 256
_OPERAND, _DIGITS, _HEADER = 3 * _TILE * DIM, 3 * _TILE * _TILE, 16


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
        return _TILE * (1 if self.sum_stages else self.scorers)

    @property
    def threads(self) -> int:
        """Of a block."""
        return 128 * (1 + self.scorers + (1 if self.sum_stages else 0))

    @property
    def record(self) -> int:
        """Bytes of a record of 64 columns."""
        return _HEADER + 4 * self.vectors * _TILE

    @property
    def shared(self) -> int:
        """Bytes of shared memory."""
        operands = self.row_stages * self.rows // _TILE + self.column_stages
        records = self.column_stages + (self.scorers if self.sum_stages else 1)
        barriers = 2 * (self.row_stages + self.column_stages + 2 * self.sum_stages + 1)
        return (
            operands * self.products * _OPERAND
            + self.sum_stages * (_OPERAND + _DIGITS)
            + records * self.record
            + (self.scorers * 8 * _TILE if self.row_sums else 0)
            + 8 * barriers
            + 1024
        )

    def grid(self, device: Device, sizes: Sizes, rows: int) -> int:
        """Blocks: one a multiprocessor, where there is work for all."""
        units = sizes.groups * blocks_for(rows, self.rows * self.cluster)
        return self.cluster * min(units, max(1, device.multiprocessors // self.cluster))


SCAN = Pipe(products=1, scorers=3, row_stages=1, column_stages=4, sum_stages=0, vectors=2)
SUM = Pipe(products=1, scorers=2, row_stages=2, column_stages=3, sum_stages=2, vectors=2, row_sums=True)


def fits(device: Device, sizes: Sizes, dim: int, bits: int) -> bool:
    """Whether these kernels take such an attention; no choice can change a bit."""
    return device.architecture == ARCHITECTURE and (dim, bits) == (DIM, BITS) and sizes.tokens <= MOST_KEYS


def row_norms(device: Device, rows: DeviceRows) -> Array:
    """Norms of each 64 rows, float32 (batch * blocks,); infinite where an exponent is not tame."""
    blocks = rows.batch * blocks_for(rows.rows, _TILE)
    norms = device.empty((blocks,), np.float32)
    args = (rows.planes, rows.exponents, norms, np.int32(rows.batch), np.int32(rows.rows))
    device.launch("attention_forward_sm90", "attention_row_norms", blocks, _NORM_THREADS, args)
    return norms


def forward(
    device: Device,
    status: Array,
    rows: tuple[DeviceRows, DeviceRows, DeviceRows],
    columns: DeviceRows,
    sizes: Sizes,
    shape: tuple[int, ...],
) -> tuple[Array, Array, Array]:
    """The output, float32 of `shape` (B, H, T, D); row maxima and row sums, float32 (groups * T * R,).

    rows: q, k and v. columns: those of v, turned in the order of the weights. An infinite maximum sets `status`.
    """
    q, k, v = rows
    count, blocks = sizes.groups * q.rows, sizes.groups * blocks_for(sizes.tokens, _TILE)
    out, row_max, row_sum = (device.empty(size, np.float32) for size in (shape, (count,), (count,)))
    records, bounds = device.empty((blocks * SUM.record,), np.int8), device.empty((count,), np.int32)
    args = (k.planes, k.exponents, v.exponents, records, np.int32(sizes.groups), np.int32(sizes.tokens))
    device.launch("attention_forward_sm90", "attention_key_records", blocks, _NORM_THREADS, args)
    exponents = (q.exponents, k.exponents, v.exponents)
    numbers = (sizes.groups, sizes.tokens, sizes.heads, sizes.window)
    more = (*(np.int32(n) for n in numbers), attention_scale(DIM))
    given = (*exponents, row_norms(device, q), records, row_max, bounds)
    _launch(device, SCAN, "scan", sizes, (q.planes, k.planes, *given, status, *more))
    _launch(device, SUM, "sums", sizes, (q.planes, k.planes, columns.planes, *given, row_sum, out, *more))
    return out, row_max, row_sum


def _launch(device: Device, pipe: Pipe, kernel: str, sizes: Sizes, args: tuple[object, ...]) -> None:
    """A kernel whose rows are queries."""
    grid = pipe.grid(device, sizes, sizes.heads * sizes.tokens)
    device.launch("attention_forward_sm90", f"attention_forward_{kernel}", grid, pipe.threads, args, shared=pipe.shared)
