"""Rotary position embedding in the half-split layout, forward and backward (SPEC.md section 9; Su et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditkit.numerics.arrays import F32, ieee
from auditkit.numerics.float64 import cos64, exp64, log64, sin64


@dataclass(frozen=True)
class RopeTable:
    """cos and sin of position * theta^(-2i/D), each (T, D/2) float32."""

    cos: F32
    sin: F32


def rope_table(tokens: int, head_dim: int, theta: float) -> RopeTable:
    """The table for positions 0 .. tokens-1: binary64 all through, rounded once to binary32."""
    pairs = head_dim // 2
    fraction = np.arange(pairs, dtype=np.float64) * 2.0 / float(head_dim)
    frequency = exp64(-(fraction * log64(np.float64(theta))))  # (D/2,)
    angle = np.arange(tokens, dtype=np.float64)[:, None] * frequency[None, :]  # (T, D/2) radians
    return RopeTable(cos64(angle).astype(np.float32), sin64(angle).astype(np.float32))


@ieee
def rope_forward(x: F32, table: RopeTable) -> F32:
    """Rotate each pair (x[i], x[i + D/2]) by its angle. x (..., T, D) float32 -> the same shape."""
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    y = np.empty_like(x)
    np.subtract(low * table.cos, high * table.sin, out=y[..., :half])
    np.add(high * table.cos, low * table.sin, out=y[..., half:])
    return y


@ieee
def rope_backward(dy: F32, table: RopeTable) -> F32:
    """Rotate back: the transpose of the rotation. dy (..., T, D) float32 -> dx of the same shape."""
    half = dy.shape[-1] // 2
    low, high = dy[..., :half], dy[..., half:]
    dx = np.empty_like(dy)
    np.add(low * table.cos, high * table.sin, out=dx[..., :half])
    np.subtract(high * table.cos, low * table.sin, out=dx[..., half:])
    return dx
