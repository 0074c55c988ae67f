"""Normal initial values on the device (cuda/normal.cu); SPEC.md section 6.7."""

from __future__ import annotations

import numpy as np

from auditkit.errors import UsageError
from auditkit.kernels.device import Array, Device
from auditkit.kernels.elementwise import launch_quads
from auditkit.numerics.normal import stream_of


def normal(
    device: Device, seed: int, tensor_name: str, shape: tuple[int, ...], std: np.float32, *, block: int | None = None
) -> Array:
    """Normal numbers of mean 0 -> float32 array of this shape. Raises UsageError unless 0 <= seed < 2^64."""
    if not 0 <= seed < 1 << 64:
        raise UsageError(f"random numbers: seed {seed} is outside 0 .. 2^64 - 1")
    x = device.empty(shape, np.float32)
    args = (x, np.uint64(seed), np.uint64(stream_of(tensor_name)), np.float32(std))
    launch_quads(device, "normal", "normal", x.size, args, block)
    return x
