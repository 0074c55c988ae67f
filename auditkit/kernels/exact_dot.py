"""Exact dot products on the device (cuda/exact_dot.cu); SPEC.md section 3."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.errors import Unsupported
from auditkit.kernels import exact_dot_sm90
from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.exact_dot_planes import DeviceRows, Operand
from auditkit.kernels.quantise import quantise, quantise_both, quantise_t

__all__ = ["dot", "quantise", "quantise_both", "quantise_t"]

_THREADS = 128
_LARGE_K = 128  # bytes of a row that large128 takes at a time


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


def dot(
    device: Device,
    a: DeviceRows | Operand,
    b: DeviceRows | Operand,
    *,
    into: Array | None = None,
    at: tuple[int, int] = (0, 0),
    kernel: str = "",
) -> Array:
    """Every row of a with every row of b, batch by batch: (batch, M, N) float32, or (M, N) for a batch of one.

    into: a float32 array (.., M', N') of as many matrices, which is returned: the result becomes the part of it that
    begins at row and column `at`, and the rest stays.
    kernel: `small`, `large64`, `large128` (rows of whole 128 bytes) or `plain`; on sm_90 for rows of whole 128 bytes
    `wgmma`, which is the first that fits of `wgmma_short`, `wgmma_long`, `wgmma_wide`; empty for the fastest. All give
    the same bits. Raises Unsupported for K >= 2^(65 - 2 bits), where a sum could leave 63 bits.
    """
    a, b = (rows.operand if isinstance(rows, DeviceRows) else rows for rows in (a, b))
    if (a.bits, a.batch, a.length) != (b.bits, b.batch, b.length):
        raise ValueError("operands do not fit each other")
    if a.length >= 1 << (65 - 2 * a.bits):
        raise Unsupported(f"an exact dot of {a.length} terms of {a.bits} bits does not fit 63 bits")
    if into is None:
        into = device.empty((a.batch, a.rows, b.rows) if a.batch != 1 else (a.rows, b.rows), np.float32)
    arguments = (*a.arguments, *b.arguments, *_result(into, at, a, b))
    chosen = kernel or _choose(device, a, b)
    if chosen.startswith("wgmma"):
        exact_dot_sm90.launch(device, a, b, arguments, chosen)
    else:
        _launch(device, a, b, arguments, chosen)
    return into


def _result(into: Array, at: tuple[int, int], a: Operand, b: Operand) -> tuple[Any, ...]:
    """What a kernel takes: RESULT of cuda/exact_dot_operand.cuh, and the sizes."""
    row, column = at
    height, width = (int(size) for size in into.shape[-2:])
    fits = 0 <= row <= height - a.rows and 0 <= column <= width - b.rows
    if not fits or _batch(into) != a.batch or into.dtype != np.float32:
        raise ValueError(f"{a.batch} results of {a.rows} by {b.rows} do not fit {into.dtype} {into.shape} at {at}")
    sizes = (height * width, width, a.batch, a.rows, b.rows, a.padded)
    return into.reshape((-1,))[row * width + column :], *(np.int64(size) for size in sizes)


def _launch(device: Device, a: Operand, b: Operand, arguments: tuple[Any, ...], chosen: str) -> None:
    """A kernel of cuda/exact_dot.cu."""
    name = f"exact_dot_{chosen}_{a.bits}"
    if chosen == "plain":
        grid = min(blocks_for(a.batch * a.rows * b.rows, 256), 1 << 20)
        device.launch("exact_dot", name, grid, 256, arguments)
        return
    tile = _TILES[chosen]
    grid = min(_tiles(a, b, tile), tile.resident * device.multiprocessors)
    scratch = device.empty((grid * tile.side * tile.side,), np.int64)
    device.launch("exact_dot", name, grid, _THREADS, (*arguments, scratch), shared=tile.shared)


def _tiles(a: Operand, b: Operand, tile: _Tile) -> int:
    return a.batch * blocks_for(a.rows, tile.side) * blocks_for(b.rows, tile.side)


def _choose(device: Device, a: Operand, b: Operand) -> str:
    """The asynchronous tensor cores where they suit; else large tiles when they exist and fill the device, or small."""
    if exact_dot_sm90.suits(device, a, b):
        return "wgmma"
    lacking = a.bits == 21 and int(device.architecture) >= _NO_LARGE_21
    if lacking or not exact_dot_sm90.fill(device, _tiles(a, b, _TILES["large64"])):
        return "small"
    return "large128" if device.architecture in _ROOMY and a.padded % _LARGE_K == 0 else "large64"


def _batch(x: Array) -> int:
    return int(np.prod(x.shape[:-2], dtype=np.int64))
