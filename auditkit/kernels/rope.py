"""Rotary position embedding on the device (cuda/rope.cu); the table is the reference's. SPEC.md section 9."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditkit.kernels.device import Array, Device, blocks_for
from auditkit.kernels.elementwise import BLOCK
from auditkit.numerics import rope


@dataclass(frozen=True)
class RopeTable:
    """cos and sin of position * theta^(-2i/D), each (T, D/2) float32 on the device."""

    cos: Array
    sin: Array


def rope_table(device: Device, tokens: int, head_dim: int, theta: float) -> RopeTable:
    """The table for positions 0 .. tokens-1, computed on the host in binary64."""
    table = rope.rope_table(tokens, head_dim, theta)
    return RopeTable(device.upload(table.cos), device.upload(table.sin))


def rope_forward(device: Device, x: Array, table: RopeTable, *, block: int | None = None) -> Array:
    """Rotate each pair (x[i], x[i + D/2]) by its angle. x (..., T, D) float32 -> the same shape."""
    return _rotate(device, "rope_forward", x, table, block)


def rope_heads(
    device: Device, x: Array, batch: int, heads: int, table: RopeTable, *, block: int | None = None
) -> Array:
    """`rope_forward` of `split_heads` of x (B * T, H * D) float32, in one pass -> (B, H, T, D)."""
    rows, width = (int(size) for size in x.shape)
    if batch < 1 or rows % batch or width % heads:
        raise ValueError(f"{x.shape} does not fall into {batch} sequences and {heads} heads")
    return _rotate(device, "rope_heads", x, table, block, (batch, heads, rows // batch, width // heads))


def rope_backward(device: Device, dy: Array, table: RopeTable, *, block: int | None = None) -> Array:
    """Rotate back. dy (..., T, D) float32 -> dx of the same shape."""
    return _rotate(device, "rope_backward", dy, table, block)


def _rotate(
    device: Device, name: str, x: Array, table: RopeTable, block: int | None, split: tuple[int, ...] | None = None
) -> Array:
    """split: the shape of the result where x is not in heads yet."""
    shape = split or tuple(int(size) for size in x.shape)
    tokens, half = shape[-2], shape[-1] // 2
    if tuple(table.cos.shape) != (tokens, half):
        raise ValueError(f"the table is for {tuple(table.cos.shape)}, the array needs {(tokens, half)}")
    y = device.empty(shape, np.float32)
    pairs = x.size // 2
    step, threads = 4 if half % 4 == 0 else 1, block or BLOCK
    rows = pairs // half if half else 0
    heads = (np.int64(split[1]),) if split else ()
    args = (x, table.cos, table.sin, y, np.int64(rows), np.int64(tokens), np.int64(half), *heads)
    device.launch("rope", f"{name}_{step}", blocks_for(pairs, step * threads), threads, args)
    return y
