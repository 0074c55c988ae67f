"""SwiGLU on the device (cuda/swiglu.cu); SPEC.md section 10."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditkit.kernels.device import Array, Device
from auditkit.kernels.elementwise import launch_quads


@dataclass(frozen=True)
class SwigluCache:
    """gate and up (N, F) float32 as given; the sigmoid is computed again, the same bits."""

    gate: Array
    up: Array


def swiglu_forward(device: Device, gate: Array, up: Array, *, block: int | None = None) -> tuple[Array, SwigluCache]:
    """y = (gate * sigmoid(gate)) * up. gate, up (N, F) float32 -> (N, F) and the cache."""
    y = device.empty(gate.shape, np.float32)
    launch_quads(device, "swiglu", "swiglu_forward", gate.size, (gate, up, y), block)
    return y, SwigluCache(gate, up)


def swiglu_backward(device: Device, dy: Array, cache: SwigluCache, *, block: int | None = None) -> tuple[Array, Array]:
    """dgate and dup, (N, F) float32, from dy (N, F)."""
    dgate, dup = device.empty(dy.shape, np.float32), device.empty(dy.shape, np.float32)
    launch_quads(device, "swiglu", "swiglu_backward", dy.size, (dy, cache.gate, cache.up, dgate, dup), block)
    return dgate, dup
