"""SwiGLU, forward and backward (SPEC.md section 10; Shazeer, 2020)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditkit.numerics.arrays import F32, ieee, row_blocks
from auditkit.numerics.exp import exp


@dataclass(frozen=True)
class SwigluCache:
    """gate and up (N, F) as given, and sigmoid (N, F) of the gate, float32."""

    gate: F32
    up: F32
    sigmoid: F32


@ieee
def swiglu_forward(gate: F32, up: F32) -> tuple[F32, SwigluCache]:
    """y = (gate * sigmoid(gate)) * up. gate, up (N, F) float32 -> (N, F) and the cache."""
    y = np.empty_like(gate)
    sigma = np.empty_like(gate)
    for at in row_blocks(*gate.shape):
        sigma[at] = sigmoid(gate[at])
        np.multiply(gate[at], sigma[at], out=y[at])
        y[at] *= up[at]
    return y, SwigluCache(gate, up, sigma)


@ieee
def swiglu_backward(dy: F32, cache: SwigluCache) -> tuple[F32, F32]:
    """dup = dy * (gate * sigmoid); dgate = (dy * up) * (sigmoid * (1 + gate * (1 - sigmoid))). All (N, F) float32."""
    dgate = np.empty_like(dy)
    dup = np.empty_like(dy)
    one = np.float32(1)
    for at in row_blocks(*dy.shape):
        gate, sigma = cache.gate[at], cache.sigmoid[at]
        np.multiply(gate, sigma, out=dup[at])
        dup[at] *= dy[at]
        slope = one - sigma
        slope *= gate
        slope += one
        slope *= sigma
        np.multiply(dy[at], cache.up[at], out=dgate[at])
        dgate[at] *= slope
    return dgate, dup


def sigmoid(x: F32) -> F32:
    """1 / (1 + t) for x >= 0 and t / (1 + t) below, with t = exp(-|x|): no overflow on either side."""
    t = np.abs(x)
    np.negative(t, out=t)
    exp(t, out=t)
    top: F32 = np.maximum(t, x >= 0)  # t <= 1: 1 where x >= 0, else t; np.where takes ten times as long on mixed signs
    t += np.float32(1)
    top /= t
    return top
