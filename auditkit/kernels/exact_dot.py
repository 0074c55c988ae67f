"""Exact dot products on the device (cuda/exact_dot.cu); SPEC.md section 3."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.errors import Unsupported
from auditkit.kernels import exact_dot_choice, exact_dot_sm90
from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.exact_dot_choice import Size, Way, can_split
from auditkit.kernels.exact_dot_planes import DeviceRows, Operand
from auditkit.kernels.quantise import quantise, quantise_both, quantise_t

__all__ = ["dot", "quantise", "quantise_both", "quantise_t"]

_THREADS = 128


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


def dot(
    device: Device,
    a: DeviceRows | Operand,
    b: DeviceRows | Operand,
    *,
    into: Array | None = None,
    at: tuple[int, int] = (0, 0),
    kernel: str = "",
    ranges: int = 1,
) -> Array:
    """Every row of a with every row of b, batch by batch: (batch, M, N) float32, or (M, N) for a batch of one.

    into: a float32 array (.., M', N') of as many matrices, which is returned: the result becomes the part of it that
    begins at row and column `at`, and the rest stays.
    kernel: `plain`, `small`, or where the architecture has them `large64` and `large128` (rows of whole 128 bytes); on
    sm_90 for rows of whole 128 bytes `wgmma`, which is the first that fits of `wgmma_short`, `wgmma_long`,
    `wgmma_wide`; empty for the fastest way, in as many ranges of K as that takes. ranges: into how many equal ranges of
    K the given kernel divides the product, each a multiple of 128 long. All give the same bits.
    Raises Unsupported for K >= 2^(65 - 2 bits), where a sum could leave 63 bits; ValueError for what does not fit.
    """
    a, b = (rows.operand if isinstance(rows, DeviceRows) else rows for rows in (a, b))
    if (a.bits, a.batch, a.length) != (b.bits, b.batch, b.length):
        raise ValueError("operands do not fit each other")
    if a.length >= 1 << (65 - 2 * a.bits):
        raise Unsupported(f"an exact dot of {a.length} terms of {a.bits} bits does not fit 63 bits")
    if into is None:
        into = device.empty((a.batch, a.rows, b.rows) if a.batch != 1 else (a.rows, b.rows), np.float32)
    size = Size(a.bits, a.batch, a.rows, b.rows, a.padded)
    card = device.architecture, device.multiprocessors
    way = Way(kernel, ranges) if kernel else exact_dot_choice.choose(*card, size)
    result = _result(into, at, a, b)
    if way.ranges == 1:
        _launch(device, a, b, result, way.kernel)
    else:
        _in_ranges(device, a, b, result, size, way)
    return into


def _result(into: Array, at: tuple[int, int], a: Operand, b: Operand) -> tuple[Any, ...]:
    """What a kernel takes: RESULT of cuda/exact_dot_operand.cuh."""
    row, column = at
    height, width = (int(size) for size in into.shape[-2:])
    fits = 0 <= row <= height - a.rows and 0 <= column <= width - b.rows
    if not fits or _batch(into) != a.batch or into.dtype != np.float32:
        raise ValueError(f"{a.batch} results of {a.rows} by {b.rows} do not fit {into.dtype} {into.shape} at {at}")
    return into.reshape((-1,))[row * width + column :], np.int64(height * width), np.int64(width)


def _in_ranges(device: Device, a: Operand, b: Operand, result: tuple[Any, ...], size: Size, way: Way) -> None:
    """Exact sums of each range of K, as a batch; then all are added up and rounded."""
    if way.kernel == "plain" or not can_split(size, way.ranges):
        raise ValueError(f"{way.kernel} does not divide {size} into {way.ranges} ranges")
    count = a.rows * b.rows
    sums = device.empty((way.ranges, a.rows, b.rows), np.int64)
    exact = sums, np.int64(count), np.int64(b.rows)
    _launch(device, a.ranges(way.ranges), b.ranges(way.ranges), exact, way.kernel, exact=True)
    arguments = (*_arguments(a, b, result), sums, np.int64(way.ranges))
    device.launch("exact_dot", f"exact_dot_round_{a.bits}", min(blocks_for(count, 256), 1 << 20), 256, arguments)


def _arguments(a: Operand, b: Operand, result: tuple[Any, ...]) -> tuple[Any, ...]:
    sizes = (a.batch, a.rows, b.rows, a.padded)
    return *a.arguments, *b.arguments, *result, *(np.int64(size) for size in sizes)


def _launch(
    device: Device, a: Operand, b: Operand, result: tuple[Any, ...], kernel: str, *, exact: bool = False
) -> None:
    """One kernel. exact: `result` takes sums before rounding."""
    arguments = _arguments(a, b, result)
    name = f"exact_dot_{kernel}_{a.bits}"
    if kernel == "plain":
        device.launch("exact_dot", name, min(blocks_for(a.batch * a.rows * b.rows, 256), 1 << 20), 256, arguments)
        return
    arguments += (np.int32(exact),)
    if kernel.startswith("wgmma"):
        exact_dot_sm90.launch(device, a, b, arguments, kernel)
        return
    if kernel not in exact_dot_choice.compiled(device.architecture, a.bits):
        raise ValueError(f"sm_{device.architecture} has no kernel {kernel} for {a.bits} bits")
    tile = _TILES[kernel]
    tiles = a.batch * blocks_for(a.rows, tile.side) * blocks_for(b.rows, tile.side)
    grid = min(tiles, tile.resident * device.multiprocessors)
    scratch = device.empty((grid * tile.side * tile.side,), np.int64)
    device.launch("exact_dot", name, grid, _THREADS, (*arguments, scratch), shared=tile.shared)


def _batch(x: Array) -> int:
    return math.prod(x.shape[:-2])
