"""Exact dot products on the device (cuda/exact_dot.cu); SPEC.md section 3."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditkit.errors import Unsupported
from auditkit.kernels import exact_dot_sm90
from auditkit.kernels.device import Array, Device, blocks_for

PIECE = 64  # a row of planes is padded with zeros to this many bytes, or to a multiple of twice as many
PLANES = {14: 3, 21: 6}

_THREADS = 128
_BLOCK_ROWS = 64  # planes lie in blocks of so many rows (cuda/exact_dot_planes.cuh)
_LARGE_K = 128  # bytes of a row that large128 takes at a time
_COLUMN_HEIGHT = 512  # rows of x that one block of column_magnitudes reads


@dataclass(frozen=True)
class _Tile:
    """A tensor-core kernel (cuda/exact_dot_tile.cuh): rows and columns of its tile, blocks that share a multiprocessor,
    bytes of shared memory of a block.
    """

    side: int
    resident: int
    shared: int


_TILES = {
    "small": _Tile(64, 3, 4 * 128 * 64),
    "large64": _Tile(128, 2, 4 * 256 * 64),
    "large128": _Tile(128, 2, 3 * 256 * 128),
}
_ROOMY = ("90", "100")  # two blocks of large128 fit a multiprocessor
_NO_LARGE_21 = 100  # from this architecture on the large tiles have too few registers for 21 bits


@dataclass(frozen=True)
class DeviceRows:
    """Rows in fixed point on the device.

    planes     int8 (PLANES[bits], batch * rows rounded up to whole blocks, padded), zero beyond `length` elements of
               each row; in blocks, not row by row (cuda/exact_dot_planes.cuh)
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


def empty_planes(device: Device, bits: int, batch: int, rows: int, padded: int) -> Array:
    """Memory for the digit planes of `batch` matrices of `rows` rows, readable for a block of rows beyond its end."""
    count, lines = PLANES[bits], batch * blocks_for(rows, _BLOCK_ROWS) * _BLOCK_ROWS
    flat = device.empty(((count * lines + _BLOCK_ROWS) * padded,), np.int8)
    return flat[: count * lines * padded].reshape((count, lines, padded))


def padded_length(length: int) -> int:
    """`length` rounded up to one piece or to pairs of pieces; an empty row is a row of zeros."""
    return PIECE if length <= PIECE else blocks_for(length, 2 * PIECE) * 2 * PIECE


def quantise(device: Device, status: Array, x: Array, bits: int) -> DeviceRows:
    """Rows of x (..., M, K) float32 to fixed point; leading axes are the batch. A non-finite element sets `status`."""
    batch, rows, length = _batch(x), int(x.shape[-2]), int(x.shape[-1])
    padded = padded_length(length)
    planes = empty_planes(device, bits, batch, rows, padded)
    exponents = device.empty((batch * rows,), np.int32)
    sizes = tuple(np.int64(size) for size in (batch, rows, length, padded))
    grid = blocks_for(batch * rows * 32, 256)
    device.launch("exact_dot", f"quantise_rows_{bits}", grid, 256, (x, exponents, planes, status, *sizes))
    return DeviceRows(planes, exponents, bits, batch, rows, length)


def quantise_t(device: Device, status: Array, x: Array, bits: int) -> DeviceRows:
    """Rows of the transposes of x (..., M, K) float32: K rows of M elements for each matrix of the batch."""
    batch, rows, columns = _batch(x), int(x.shape[-2]), int(x.shape[-1])
    padded = padded_length(rows)
    planes = empty_planes(device, bits, batch, columns, padded)
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

    kernel: `small`, `large64`, `large128` (rows of whole 128 bytes) or `plain`; on sm_90 for rows of whole 128 bytes
    `wgmma`, which is the first that fits of `wgmma_short`, `wgmma_long`, `wgmma_wide`; empty for the fastest. All give
    the same bits. Raises Unsupported for K >= 2^(65 - 2 bits), where a sum could leave 63 bits.
    """
    if (a.bits, a.batch, a.length) != (b.bits, b.batch, b.length):
        raise ValueError("operands do not fit each other")
    if a.length >= 1 << (65 - 2 * a.bits):
        raise Unsupported(f"an exact dot of {a.length} terms of {a.bits} bits does not fit 63 bits")
    batch, m, n, k = a.batch, a.rows, b.rows, a.padded
    c = device.empty((batch, m, n) if batch != 1 else (m, n), np.float32)
    sizes = tuple(np.int64(size) for size in (batch, m, n, k))
    operands = (a.planes, b.planes, a.exponents, b.exponents, c)
    chosen = kernel or _choose(device, a, b)
    if chosen.startswith("wgmma"):
        exact_dot_sm90.dot(device, a, b, c, chosen)
        return c
    name = f"exact_dot_{chosen}_{a.bits}"
    if chosen == "plain":
        grid = min(blocks_for(batch * m * n, 256), 1 << 20)
        device.launch("exact_dot", name, grid, 256, (*operands, *sizes))
        return c
    tile = _TILES[chosen]
    grid = min(_tiles(a, b, tile), tile.resident * device.multiprocessors)
    scratch = device.empty((grid * tile.side * tile.side,), np.int64)
    device.launch("exact_dot", name, grid, _THREADS, (*operands, scratch, *sizes), shared=tile.shared)
    return c


def _tiles(a: DeviceRows, b: DeviceRows, tile: _Tile) -> int:
    return a.batch * blocks_for(a.rows, tile.side) * blocks_for(b.rows, tile.side)


def _choose(device: Device, a: DeviceRows, b: DeviceRows) -> str:
    """The asynchronous tensor cores where they suit; else large tiles when they exist and fill the device, or small."""
    if exact_dot_sm90.suits(device, a, b):
        return "wgmma"
    lacking = a.bits == 21 and int(device.architecture) >= _NO_LARGE_21
    if lacking or _tiles(a, b, _TILES["large64"]) < device.multiprocessors:
        return "small"
    return "large128" if device.architecture in _ROOMY and a.padded % _LARGE_K == 0 else "large64"


def _batch(x: Array) -> int:
    return int(np.prod(x.shape[:-2], dtype=np.int64))
