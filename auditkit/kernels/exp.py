"""e^x on the device (cuda/exp.cu); SPEC.md section 6.2."""

from __future__ import annotations

from auditkit.kernels.device import Array, Device
from auditkit.kernels.elementwise import map_elements


def exp(device: Device, x: Array, *, block: int | None = None) -> Array:
    """e^x, elementwise. x: float32, any shape -> float32 of the same shape."""
    return map_elements(device, "exp", x, block)
