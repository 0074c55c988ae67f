"""Plain binary32 dot products in a fixed order on the device (cuda/f32_dot.cu); SPEC.md section 16."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.elementwise import launch_quads

_TILES = {"small": (64, 64), "large": (128, 256)}  # rows and columns of a tile, threads of a block
CHOSEN = tuple(_TILES)  # kernels that `dot` chooses from
_MOST_BLOCKS = 1 << 20


@dataclass(frozen=True)
class F32DeviceRows:
    """Operand of an f32 dot: the array itself, no copy, so it must stay as it is.

    values  float32 (batch, rows, length), or (batch, length, rows) if `turned`
    """

    values: Array
    turned: bool
    batch: int
    rows: int
    length: int


def rows(device: Device, status: Array, x: Array) -> F32DeviceRows:
    """The rows of x (..., M, K) float32; leading axes are the batch. A non-finite element sets `status`."""
    launch_quads(device, "f32_dot", "f32_dot_operand", x.size, (x, status))
    return finite_rows(x)


def rows_t(device: Device, status: Array, x: Array) -> F32DeviceRows:
    """The rows of the transposes of x (..., M, K) float32: K rows of M elements. A non-finite element sets `status`."""
    return turned(rows(device, status, x))


def finite_rows(x: Array) -> F32DeviceRows:
    """`rows` of an array whose elements have been looked at."""
    batch = int(np.prod(x.shape[:-2], dtype=np.int64))
    return F32DeviceRows(x, False, batch, int(x.shape[-2]), int(x.shape[-1]))


def turned(x: F32DeviceRows) -> F32DeviceRows:
    """The rows of the transposed matrices."""
    return F32DeviceRows(x.values, not x.turned, x.batch, x.length, x.rows)


def dot(device: Device, a: F32DeviceRows, b: F32DeviceRows, *, kernel: str = "") -> Array:
    """Every row of a with every row of b, batch by batch: (batch, M, N) float32, or (M, N) for a batch of one.

    kernel: `small`, `large` or `plain`; empty for the fastest. All give the same bits.
    """
    if (a.batch, a.length) != (b.batch, b.length):
        raise ValueError("operands do not fit each other")  # a programming error, never data
    batch, m, n = a.batch, a.rows, b.rows
    c = device.empty((batch, m, n) if batch != 1 else (m, n), np.float32)
    sizes = (np.int64(batch), np.int64(m), np.int64(n), np.int64(a.length))
    args = (a.values, b.values, c, *sizes, np.int32(a.turned), np.int32(b.turned))
    chosen = kernel or _choose(device, batch, m, n)
    if chosen == "plain":
        device.launch("f32_dot", "f32_dot_plain", min(blocks_for(batch * m * n, 256), _MOST_BLOCKS), 256, args)
    else:
        tile, threads = _TILES[chosen]
        grid = batch * blocks_for(m, tile) * blocks_for(n, tile)
        device.launch("f32_dot", f"f32_dot_{chosen}", grid, threads, args)
    return c


def _choose(device: Device, batch: int, m: int, n: int) -> str:
    """Large tiles when they fill the device and are not mostly padding, else small ones."""
    tile = _TILES["large"][0]
    tiles = batch * blocks_for(m, tile) * blocks_for(n, tile)
    return "large" if tiles >= device.multiprocessors and min(m, n) > tile // 2 else "small"
