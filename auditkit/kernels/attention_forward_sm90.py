"""Attention on sm_90 without scores in memory (cuda/attention_forward_sm90.cu); SPEC.md section 8."""

from __future__ import annotations

import numpy as np

from auditkit.kernels.attention_chunks import Sizes
from auditkit.kernels.attention_pipe import DIM, NORM_THREADS, TILE, Pipe
from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.exact_dot_planes import DeviceRows
from auditkit.numerics.attention import attention_scale

SCAN = Pipe(products=1, scorers=3, row_stages=1, column_stages=4, sum_stages=0, vectors=2)
SUM = Pipe(products=1, scorers=2, row_stages=2, column_stages=3, sum_stages=2, vectors=2, row_sums=True)


def row_norms(device: Device, rows: DeviceRows) -> Array:
    """Norms of each 64 rows, float32 (batch * blocks,); infinite where an exponent is not tame."""
    blocks = rows.batch * blocks_for(rows.rows, TILE)
    norms = device.empty((blocks,), np.float32)
    args = (rows.planes, rows.exponents, norms, np.int32(rows.batch), np.int32(rows.rows))
    device.launch("attention_forward_sm90", "attention_row_norms", blocks, NORM_THREADS, args)
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
    count, blocks = sizes.groups * q.rows, sizes.groups * blocks_for(sizes.tokens, TILE)
    out, row_max, row_sum = (device.empty(size, np.float32) for size in (shape, (count,), (count,)))
    records, bounds = device.empty((blocks * SUM.record,), np.int8), device.empty((count,), np.int32)
    args = (k.planes, k.exponents, v.exponents, records, np.int32(sizes.groups), np.int32(sizes.tokens))
    device.launch("attention_forward_sm90", "attention_key_records", blocks, NORM_THREADS, args)
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
