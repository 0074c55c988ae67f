"""Rows and columns to fixed point on the device (cuda/quantise.cu); SPEC.md section 3."""

from __future__ import annotations

from typing import Any

import numpy as np

from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.exact_dot_planes import DeviceRows, empty_planes, padded_length

_BLOCK = 256  # threads
_PAIR_COLUMNS = 64  # of two rows that a warp takes at a time (cuda/quantise_rows.cuh)
HELD = (1, 2, 4, 8)  # times as many that it may hold
_MOST_WARPS = 32  # of a block
_TILE = 64  # rows and columns of a block of the second pass
_STRIP = 256  # columns of a block of the first pass
_HEIGHTS = (128, 32)  # its rows: many for a large matrix, few where the blocks would not fill the device
_WAVES = 4  # blocks of the first pass that a multiprocessor has at once
_NONE = np.uint64(0)


def empty_rows(device: Device, bits: int, batch: int, rows: int, length: int) -> DeviceRows:
    """Room for `batch` matrices of `rows` rows of `length` elements."""
    planes = empty_planes(device, bits, batch, rows, padded_length(length))
    return DeviceRows(planes, device.empty((batch * rows,), np.int32), bits, batch, rows, length)


def longest_row() -> int:
    """Elements of the longest row that a block holds, so that it is read once."""
    return _PAIR_COLUMNS * _MOST_WARPS * HELD[-1]


def quantise(device: Device, status: Array, x: Array, bits: int) -> DeviceRows:
    """Rows of x (..., M, K) float32 to fixed point; leading axes are the batch. A non-finite element sets `status`."""
    batch, m, k = _sizes(x)
    rows = empty_rows(device, bits, batch, m, k)
    if k > longest_row():
        _in_two_passes(device, status, x, rows, None)
        return rows
    pieces = rows.padded // _PAIR_COLUMNS
    warps = blocks_for(pieces, HELD[-1])
    held = next(held for held in HELD if held * warps >= pieces)
    pairs = blocks_for(batch * m, 2)
    grid, block = (blocks_for(32 * pairs, _BLOCK), _BLOCK) if warps == 1 else (pairs, 32 * warps)
    sizes = (np.int64(batch), np.int64(m), np.int64(k), np.int64(rows.padded), np.int32(warps))
    args = (x, rows.exponents, rows.planes, status, *sizes)
    device.launch("quantise", f"quantise_rows_{bits}_{held}", grid, block, args)
    return rows


def quantise_t(device: Device, status: Array, x: Array, bits: int) -> DeviceRows:
    """Rows of the transposes of x (..., M, K) float32: K rows of M elements for each matrix of the batch."""
    batch, m, k = _sizes(x)
    columns = empty_rows(device, bits, batch, k, m)
    _in_two_passes(device, status, x, None, columns)
    return columns


def quantise_both(device: Device, status: Array, x: Array, bits: int) -> tuple[DeviceRows, DeviceRows]:
    """`quantise` and `quantise_t` of x, which is read twice for both instead of once and twice."""
    batch, m, k = _sizes(x)
    rows, columns = empty_rows(device, bits, batch, m, k), empty_rows(device, bits, batch, k, m)
    _in_two_passes(device, status, x, rows, columns)
    return rows, columns


def _in_two_passes(
    device: Device, status: Array, x: Array, rows: DeviceRows | None, columns: DeviceRows | None
) -> None:
    """Fill in rows, columns or both of x: the largest magnitudes first, then the planes."""
    batch, m, k = _sizes(x)
    of_rows, of_columns = _largest(device, x, rows is not None, columns is not None)
    across = blocks_for(k, _TILE) if rows is None else rows.padded // _TILE
    down = blocks_for(m, _TILE) if columns is None else columns.padded // _TILE
    made = rows or columns
    assert made is not None
    kind = "both" if rows and columns else "long_rows" if rows else "columns"
    args = (
        x, *_out(of_rows, rows), *_out(of_columns, columns), status,
        np.int64(batch), np.int64(m), np.int64(k), np.uint32(across), np.uint32(down),
    )  # fmt: skip
    device.launch("quantise", f"quantise_{kind}_{made.bits}", batch * across * down, _BLOCK, args)


def _out(largest: Array | None, made: DeviceRows | None) -> tuple[Any, ...]:
    if made is None:
        return _NONE, _NONE, _NONE, np.int64(0)
    return largest, made.exponents, made.planes, np.int64(made.padded)


def _largest(device: Device, x: Array, by_rows: bool, by_columns: bool) -> tuple[Array | None, Array | None]:
    """Bits of the largest magnitudes, uint32: of rows (batch * M,), of columns (batch * K,)."""
    batch, m, k = _sizes(x)
    count = batch * m if by_rows else 0
    found = device.zeros((count + (batch * k if by_columns else 0),), np.uint32)
    of_rows, of_columns = found[:count] if by_rows else None, found[count:] if by_columns else None
    across, tall, low = blocks_for(k, _STRIP), *_HEIGHTS
    enough = batch * across * blocks_for(m, tall) >= _WAVES * device.multiprocessors
    height = tall if enough else low
    down = blocks_for(m, height)
    kind = "both" if by_rows and by_columns else "rows" if by_rows else "columns"
    args = (
        x, _NONE if of_rows is None else of_rows, _NONE if of_columns is None else of_columns,
        np.int64(m), np.int64(k), np.uint32(across), np.uint32(down), np.int32(height),
    )  # fmt: skip
    device.launch("quantise", f"largest_of_{kind}", batch * across * down, _BLOCK, args)
    return of_rows, of_columns


def _sizes(x: Array) -> tuple[int, int, int]:
    """Matrices, rows and columns of x (..., M, K)."""
    return int(np.prod(x.shape[:-2], dtype=np.int64)), int(x.shape[-2]), int(x.shape[-1])
