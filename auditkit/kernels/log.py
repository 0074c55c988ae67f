"""Natural logarithm on the device (cuda/log.cu); SPEC.md section 6.3."""

from __future__ import annotations

from auditkit.kernels.device import Array, Device
from auditkit.kernels.elementwise import map_elements


def log(device: Device, x: Array, *, block: int | None = None) -> Array:
    """ln x, elementwise. x: float32, any shape -> float32 of the same shape."""
    return map_elements(device, "log", x, block)
