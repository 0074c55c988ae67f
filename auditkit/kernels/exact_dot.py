"""Exact dot products on the device (cuda/exact_dot.cu); SPEC.md section 3."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditkit.errors import Unsupported
from auditkit.kernels.device import Array, Device, blocks_for

PIECE = 64  # a row of planes is padded with zeros to this many bytes, or to a multiple of twice as many
PLANES = {14: 3, 21: 6}

_THREADS = 128
_LARGE = 128  # rows and columns of a large tile
_SMALL = 64
# dynamic shared memory of each tensor-core kernel, bytes: stages * (rows + columns of the tile) * bytes of K
_SHARED = {"small": 4 * 128 * 64, "large64": 4 * 256 * 64, "large128": 3 * 256 * 128}
_LARGE_CHUNK = 3840  # K above which exact_dot_large_14 needs a workspace
_ROOMY = ("90", "100")  # two blocks of large128 fit a multiprocessor
_COLUMN_HEIGHT = 512  # rows of x that one block of column_magnitudes reads


@dataclass(frozen=True)
class DeviceRows:
    """Rows in fixed point on the device.

    planes     int8 (PLANES[bits], batch * rows, padded), zero beyond `length` elements of each row
    exponents  int32 (batch * rows,)
    """

    planes: Array
    exponents: Array
    bits: int
    batch: int
    rows: int
    length: int

    @property
    def padded(self) -> int:
        """Bytes of a row of one plane."""
        return int(self.planes.shape[2])


def empty_planes(device: Device, bits: int, rows: int, padded: int) -> Array:
    """Memory for digit planes, int8 (PLANES[bits], rows, padded), readable for a tile of rows beyond its end."""
    count = PLANES[bits]
    flat = device.empty(((count * rows + _LARGE) * padded,), np.int8)
    return flat[: count * rows * padded].reshape((count, rows, padded))


def padded_length(length: int) -> int:
    """`length` rounded up to one piece or to pairs of pieces; an empty row is a row of zeros."""
    return PIECE if length <= PIECE else blocks_for(length, 2 * PIECE) * 2 * PIECE


def quantise(device: Device, status: Array, x: Array, bits: int) -> DeviceRows:
    """Rows of x (..., M, K) float32 to fixed point; leading axes are the batch. A non-finite element sets `status`."""
    rows, length = int(np.prod(x.shape[:-1], dtype=np.int64)), int(x.shape[-1])
    padded = padded_length(length)
    planes = empty_planes(device, bits, rows, padded)
    exponents = device.empty((rows,), np.int32)
    args = (x, exponents, planes, status, np.int64(rows), np.int64(length), np.int64(padded))
    device.launch("exact_dot", f"quantise_rows_{bits}", blocks_for(rows * 32, 256), 256, args)
    return DeviceRows(planes, exponents, bits, _batch(x), int(x.shape[-2]), length)


def quantise_t(device: Device, status: Array, x: Array, bits: int) -> DeviceRows:
    """Rows of the transposes of x (..., M, K) float32: K rows of M elements for each matrix of the batch."""
    batch, rows, columns = _batch(x), int(x.shape[-2]), int(x.shape[-1])
    padded = padded_length(rows)
    planes = empty_planes(device, bits, batch * columns, padded)
    exponents = device.empty((batch * columns,), np.int32)
    largest = device.zeros((batch * columns,), np.uint32)
    sizes = (np.int64(batch), np.int64(rows), np.int64(columns))
    grid = batch * blocks_for(columns, 32) * blocks_for(rows, _COLUMN_HEIGHT)
    device.launch("exact_dot", "column_magnitudes", grid, 256, (x, largest, *sizes, np.int64(_COLUMN_HEIGHT)))
    count = batch * columns
    device.launch(
        "exact_dot", "column_exponents", blocks_for(count, 256), 256, (largest, exponents, status, np.int64(count))
    )
    grid = batch * blocks_for(columns, 64) * (padded // 64)
    device.launch("exact_dot", f"quantise_columns_{bits}", grid, 256, (x, exponents, planes, *sizes, np.int64(padded)))
    return DeviceRows(planes, exponents, bits, batch, columns, rows)


def dot(device: Device, a: DeviceRows, b: DeviceRows, *, kernel: str = "") -> Array:
    """Every row of a with every row of b, batch by batch: (batch, M, N) float32, or (M, N) for a batch of one.

    kernel: `small`, `large64`, `large128` (14 bits) or `plain`; empty for the fastest. All give the same bits.
    Raises Unsupported for K >= 2^(65 - 2 bits), where a sum could leave 63 bits.
    """
    if (a.bits, a.batch, a.length) != (b.bits, b.batch, b.length):
        raise ValueError("operands do not fit each other")
    if a.length >= 1 << (65 - 2 * a.bits):
        raise Unsupported(f"an exact dot of {a.length} terms of {a.bits} bits does not fit 63 bits")
    batch, m, n, k = a.batch, a.rows, b.rows, a.padded
    c = device.empty((batch, m, n) if batch != 1 else (m, n), np.float32)
    sizes = tuple(np.int64(size) for size in (batch, m, n, k))
    operands = (a.planes, b.planes, a.exponents, b.exponents, c)
    chosen = kernel or _choose(device, a, m, n)
    if chosen == "plain":
        grid = min(blocks_for(batch * m * n, 256), 1 << 20)
        device.launch("exact_dot", f"exact_dot_plain_{a.bits}", grid, 256, (*operands, *sizes))
    else:
        tile = _SMALL if chosen == "small" else _LARGE
        wide = [device.empty((batch * m * n if k > _LARGE_CHUNK else 1,), np.int64)] if tile == _LARGE else []
        grid = batch * blocks_for(m, tile) * blocks_for(n, tile)
        args = (*operands, *wide, *sizes)
        device.launch("exact_dot", f"exact_dot_{chosen}_{a.bits}", grid, _THREADS, args, shared=_SHARED[chosen])
    return c


def _choose(device: Device, a: DeviceRows, m: int, n: int) -> str:
    """Large tiles when they fill the device; small ones else, and for 21 bits, where there is no other."""
    tiles = a.batch * blocks_for(m, _LARGE) * blocks_for(n, _LARGE)
    if a.bits != 14 or tiles < device.multiprocessors:
        return "small"
    return "large128" if device.architecture in _ROOMY and a.padded % 128 == 0 else "large64"


def _batch(x: Array) -> int:
    return int(np.prod(x.shape[:-2], dtype=np.int64))
