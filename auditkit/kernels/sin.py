"""Sine on the device (cuda/sin.cu); SPEC.md section 6.4."""

from __future__ import annotations

from auditkit.kernels.device import Array, Device
from auditkit.kernels.elementwise import map_elements


def sin(device: Device, x: Array, *, block: int | None = None) -> Array:
    """sin x, elementwise. x: float32, any shape -> float32 of the same shape."""
    return map_elements(device, "sin", x, block)
