"""Rows and columns to fixed point on the device (cuda/quantise.cu); SPEC.md section 3."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.exact_dot_planes import DeviceRows, padded_length, planes_memory

_BLOCK = 256  # threads
_PAIR_COLUMNS = 64  # of two rows that a warp takes at a time (cuda/quantise_rows.cuh)
HELD: tuple[int, ...] = (1, 2, 4, 8)  # times as many that it may hold
_MOST_WARPS = 32  # of a block
_TILE = 64  # rows and columns of a block of the second pass
_STRIP = 256  # columns of a block of the first pass
_HEIGHTS = (128, 32)  # its rows: many for a large matrix, few where the blocks would not fill the device
_WAVES = 4  # blocks of the first pass that a multiprocessor has at once
_NONE = np.uint64(0)
_QUAD = 16  # bytes of four elements that a kernel reads at a time


def empty_rows(device: Device, bits: int, batch: int, rows: int, length: int) -> DeviceRows:
    """Room for `batch` matrices of `rows` rows of `length` elements."""
    memory = planes_memory(device, bits, batch, rows, padded_length(length))
    return DeviceRows.of(memory, device.empty((batch * rows,), np.int32), bits, batch, rows, length)


def rows_given(device: Device, status: Array, x: Array, largest: Array, bits: int) -> DeviceRows:
    """`quantise` of x (M, K) float32 whose rows' largest magnitudes are known, as bits, uint32 (M,)."""
    m, k = (int(size) for size in x.shape)
    rows = empty_rows(device, bits, 1, m, k)
    found = Largest(largest, None)
    _second_pass(device, status, ("quantise", f"quantise_long_rows_{bits}"), (x,), found, (1, m, k), rows, None)
    return rows


def longest_row(held: int = HELD[-1], warps: int = _MOST_WARPS) -> int:
    """Elements of the longest row that a block of so many warps holds, so that it is read once.

    held: times as many of two rows' 64 columns that a warp holds.
    """
    return _PAIR_COLUMNS * warps * held


def quantise(device: Device, status: Array, x: Array, bits: int) -> DeviceRows:
    """Rows of x (..., M, K) float32 to fixed point; leading axes are the batch. A non-finite element sets `status`."""
    batch, m, k = _sizes(x)
    rows = empty_rows(device, bits, batch, m, k)
    if k > longest_row():
        _in_two_passes(device, status, "rows", (x,), (batch, m, k), rows, None)
        return rows
    launch_rows(device, ("quantise", f"quantise_rows_{bits}"), (x,), rows, status, HELD)
    return rows


def launch_rows(
    device: Device,
    kernels: tuple[str, str],
    source: Sequence[Any],
    rows: DeviceRows,
    status: Array,
    held: tuple[int, ...],
) -> None:
    """Fill in rows that a block holds (quantise_rows.cuh): by the kernel of an op whose name ends with the fewest
    pieces of `held` that suffice.
    """
    pieces = rows.padded // _PAIR_COLUMNS
    warps = blocks_for(pieces, held[-1])
    least = next(count for count in held if count * warps >= pieces)
    pairs = blocks_for(rows.batch * rows.rows, 2)
    grid, block = (blocks_for(32 * pairs, _BLOCK), _BLOCK) if warps == 1 else (pairs, 32 * warps)
    sizes = (rows.batch, rows.rows, rows.length, rows.padded)
    args = (*source, rows.exponents, rows.planes, status, *(np.int64(size) for size in sizes), np.int32(warps))
    op, name = kernels
    device.launch(op, f"{name}_{least}", grid, block, args)


def quantise_t(device: Device, status: Array, x: Array, bits: int) -> DeviceRows:
    """Rows of the transposes of x (..., M, K) float32: K rows of M elements for each matrix of the batch."""
    batch, m, k = _sizes(x)
    columns = empty_rows(device, bits, batch, k, m)
    _in_two_passes(device, status, "columns", (x,), (batch, m, k), None, columns)
    return columns


def quantise_both(device: Device, status: Array, x: Array, bits: int) -> tuple[DeviceRows, DeviceRows]:
    """`quantise` and `quantise_t` of x, which is read twice for both instead of once and twice."""
    batch, m, k = _sizes(x)
    rows, columns = empty_rows(device, bits, batch, m, k), empty_rows(device, bits, batch, k, m)
    _in_two_passes(device, status, "both", (x,), (batch, m, k), rows, columns)
    return rows, columns


def quantise_heads(device: Device, status: Array, x: Array, bits: int) -> tuple[DeviceRows, DeviceRows]:
    """`quantise_both` of `merge_heads` of x (B, H, T, D) float32, which is not made: B * T rows of H * D elements.

    For fewer than 2^32 rows.
    """
    batch, heads, tokens, dim = (int(size) for size in x.shape)
    m, k = batch * tokens, heads * dim
    rows, columns = empty_rows(device, bits, 1, m, k), empty_rows(device, bits, 1, k, m)
    source = (x, *(np.uint32(size) for size in (heads, tokens, dim)))
    _in_two_passes(device, status, "heads", source, (1, m, k), rows, columns)
    return rows, columns


def quantise_head_rows(device: Device, status: Array, x: Array) -> DeviceRows:
    """`quantise` of 14 bits of `merge_heads` of x (B, H, T, D) float32, which is not made.

    For fewer than 2^32 rows of at most `longest_row` elements.
    """
    batch, heads, tokens, dim = (int(size) for size in x.shape)
    rows = empty_rows(device, 14, 1, batch * tokens, heads * dim)
    source = (x, *(np.uint32(size) for size in (heads, tokens, dim)))
    launch_rows(device, ("quantise", "quantise_head_rows_14"), source, rows, status, HELD)
    return rows


def quantise_parts(
    device: Device, status: Array, parts: Sequence[Array], first: int, stop: int, bits: int
) -> DeviceRows:
    """`quantise_t` of columns first .. stop - 1 of a matrix in parts (n, V) float32, which are not gathered.

    For fewer than 2^32 rows. ValueError: parts of other heights than the first, but for a last one that is less high,
    or a part that does not begin at a multiple of 16 bytes.
    """
    heights, width = [int(part.shape[0]) for part in parts], int(parts[0].shape[1])
    if any(height != heights[0] for height in heights[:-1]) or heights[-1] > heights[0]:
        raise ValueError(f"parts of {heights} rows")
    addresses = [device.address(part) for part in parts]
    if any(address % _QUAD for address in addresses):
        raise ValueError("a part begins between multiples of 16 bytes")
    m, k = sum(heights), stop - first
    columns = empty_rows(device, bits, 1, k, m)
    table = device.upload(np.array(addresses, np.uint64))
    source = table, np.uint32(heights[0]), np.int64(width), np.int64(first)
    _in_two_passes(device, status, "parts", source, (1, m, k), None, columns)
    return columns


@dataclass(frozen=True)
class Largest:
    """The largest magnitudes of matrices as bits, uint32: of rows (batch * M,), of columns (batch * K,); zero before
    they are found.
    """

    rows: Array | None
    columns: Array | None


def empty_largest(device: Device, count: int, columns: int) -> Largest:
    """Room for those of so many rows and columns; None for none."""
    found = device.zero_words(count + columns)
    return Largest(found[:count] if count else None, found[count:] if columns else None)


def strips(device: Device, batch: int, m: int, k: int, width: int) -> tuple[int, tuple[Any, ...]]:
    """Blocks of a first pass that takes `width` columns each, and what its kernel is told of them."""
    across, tall, low = blocks_for(k, width), *_HEIGHTS
    enough = batch * across * blocks_for(m, tall) >= _WAVES * device.multiprocessors
    height = tall if enough else low
    down = blocks_for(m, height)
    return batch * across * down, (np.int64(m), np.int64(k), np.uint32(across), np.uint32(down), np.int32(height))


def largest_of_columns(device: Device, x: Array, found: Array) -> None:
    """Make `found`, uint32 (K,), 0 before, the largest magnitudes of the columns of x (M, K) float32 as bits."""
    grid, strip = strips(device, 1, int(x.shape[0]), int(x.shape[1]), _STRIP)
    device.launch("quantise", "largest_of_columns", grid, _BLOCK, (x, _NONE, found, *strip))


def both_given(
    device: Device,
    status: Array,
    x: Array,
    largest: Largest,
    bits: int,
    op: str = "quantise",
    more: Sequence[Array] = (),
) -> tuple[DeviceRows, DeviceRows]:
    """`quantise_both` of an array whose largest magnitudes are known: of x (M, K) float32, or of what the second pass
    of another `op` makes of x and more arrays.
    """
    m, k = (int(size) for size in x.shape)
    rows, columns = empty_rows(device, bits, 1, m, k), empty_rows(device, bits, 1, k, m)
    _second_pass(device, status, (op, f"{op}_both_{bits}"), (x, *more), largest, (1, m, k), rows, columns)
    return rows, columns


def columns_given(device: Device, status: Array, x: Array, largest: Largest, bits: int) -> DeviceRows:
    """`quantise_t` of x (M, K) float32 whose columns' largest magnitudes are known."""
    m, k = (int(size) for size in x.shape)
    columns = empty_rows(device, bits, 1, k, m)
    _second_pass(device, status, ("quantise", f"quantise_columns_{bits}"), (x,), largest, (1, m, k), None, columns)
    return columns


def _in_two_passes(
    device: Device,
    status: Array,
    kind: str,
    source: Sequence[Any],
    sizes: tuple[int, int, int],
    rows: DeviceRows | None,
    columns: DeviceRows | None,
) -> None:
    """Fill in rows, columns or both of what the kernels of this kind read from their source: the largest magnitudes
    first, then the planes.
    """
    batch, m, k = sizes
    made = rows or columns
    assert made is not None
    largest = empty_largest(device, batch * m if rows else 0, batch * k if columns else 0)
    grid, strip = strips(device, batch, m, k, _STRIP)
    found = (_NONE if array is None else array for array in (largest.rows, largest.columns))
    device.launch("quantise", f"largest_of_{kind}", grid, _BLOCK, (*source, *found, *strip))
    kernel = ("quantise", f"quantise_{'long_rows' if kind == 'rows' else kind}_{made.bits}")
    _second_pass(device, status, kernel, source, largest, sizes, rows, columns)


def _second_pass(
    device: Device,
    status: Array,
    kernel: tuple[str, str],
    source: Sequence[Any],
    largest: Largest,
    sizes: tuple[int, int, int],
    rows: DeviceRows | None,
    columns: DeviceRows | None,
) -> None:
    """Planes and exponents of rows, columns or both from the largest magnitudes (quantise_tile.cuh)."""
    batch, m, k = sizes
    across = blocks_for(k, _TILE) if rows is None else rows.padded // _TILE
    down = blocks_for(m, _TILE) if columns is None else columns.padded // _TILE
    args = (
        *source, *_out(largest.rows, rows), *_out(largest.columns, columns), status,
        *(np.int64(size) for size in sizes), np.uint32(across), np.uint32(down),
    )  # fmt: skip
    device.launch(*kernel, batch * across * down, _BLOCK, args)


def _out(largest: Array | None, made: DeviceRows | None) -> tuple[Any, ...]:
    if made is None:
        return _NONE, _NONE, _NONE, np.int64(0)
    return _NONE if largest is None else largest, made.exponents, made.planes, np.int64(made.padded)


def _sizes(x: Array) -> tuple[int, int, int]:
    """Matrices, rows and columns of x (..., M, K)."""
    *matrices, m, k = x.shape
    return math.prod(matrices), m, k
