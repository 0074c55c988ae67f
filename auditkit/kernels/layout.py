"""Moves and plain additions between the ops on the device (cuda/layout.cu); SPEC.md section 15."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.elementwise import BLOCK, launch_quads
from auditkit.kernels.tensor_table import TensorTable
from auditkit.numerics.nonfinite import NonFinite


def add(device: Device, x: Array, y: Array, *, block: int | None = None) -> Array:
    """x + y elementwise, float32 of one shape."""
    if x.shape != y.shape:
        raise ValueError(f"shapes {x.shape} and {y.shape} differ")
    z = device.empty(x.shape, np.float32)
    launch_quads(device, "layout", "add", x.size, (x, y, z), block)
    return z


def split_heads(device: Device, x: Array, batch: int, heads: int, *, block: int | None = None) -> Array:
    """(N, heads * D) -> (B, heads, T, D), float32."""
    if batch < 1 or x.shape[0] % batch or x.shape[1] % heads:
        raise ValueError(f"{x.shape} does not fall into {batch} sequences and {heads} heads")
    tokens, dim = int(x.shape[0]) // batch, int(x.shape[1]) // heads
    y = device.empty((batch, heads, tokens, dim), np.float32)
    _move(device, "split_heads", x, y, (heads, tokens, dim), block)
    return y


def merge_heads(device: Device, x: Array, *, block: int | None = None) -> Array:
    """(B, heads, T, D) -> (N, heads * D), float32."""
    batch, heads, tokens, dim = x.shape
    y = device.empty((batch * tokens, heads * dim), np.float32)
    _move(device, "merge_heads", x, y, (heads, tokens, dim), block)
    return y


def join_rows(device: Device, parts: Sequence[Array]) -> Array:
    """Parts (n, ...) of one dtype and width, one below the other, as a new array; a single part is itself."""
    if len(parts) == 1:
        return parts[0]
    joined = device.empty((sum(int(part.shape[0]) for part in parts), *parts[0].shape[1:]), parts[0].dtype)
    at = 0
    for part in parts:
        device.copy(joined[at : at + part.shape[0]], part)
        at += int(part.shape[0])
    return joined


def columns(device: Device, parts: Sequence[Array], first: int, stop: int, *, block: int | None = None) -> Array:
    """Columns first .. stop - 1 of parts (n, V) float32 that lie one below the other, as a new array (N, stop - first);
    all of a single part are itself.
    """
    if len(parts) == 1 and (first, stop) == (0, parts[0].shape[1]):
        return parts[0]
    count, step, threads = stop - first, 4 if first % 4 == stop % 4 == parts[0].shape[1] % 4 == 0 else 1, block or BLOCK
    y = device.empty((sum(int(part.shape[0]) for part in parts), count), np.float32)
    at = 0
    for part in parts:
        rows, width = (int(size) for size in part.shape)
        size = rows * count
        args = (part, y[at : at + rows], *(np.int64(number) for number in (size, count, width, first)))
        device.launch("layout", f"columns_{step}", blocks_for(size, step * threads), threads, args)
        at += rows
    return y


def _move(device: Device, name: str, x: Array, y: Array, sizes: tuple[int, int, int], block: int | None) -> None:
    step, threads = 4 if sizes[2] % 4 == 0 else 1, block or BLOCK
    args = (x, y, np.int64(x.size), *(np.int64(size) for size in sizes))
    device.launch("layout", f"{name}_{step}", blocks_for(x.size, step * threads), threads, args)


def check_finite(device: Device, arrays: Mapping[str, Array], *, block: int | None = None) -> None:
    """Raises NonFinite naming the first float32 array that holds inf or NaN; waits for the device."""
    names = list(arrays)
    found = device.zeros((1,), np.uint32)
    TensorTable.of(device, list(arrays.values())).launch(device, "layout", "check_finite", (found,), block=block)
    from_end = int(device.download(found)[0])
    if from_end:
        raise NonFinite(f"the update makes {names[len(names) - from_end]} non-finite")
