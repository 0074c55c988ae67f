"""Launches of kernels that treat every element alone, four at a time (cuda/quad.cuh)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from auditkit.kernels.device import Array, Device, blocks_for

BLOCK = 256


def launch_quads(device: Device, op: str, kernel: str, n: int, args: Sequence[Any], block: int | None = None) -> None:
    """Launch a kernel that takes (*args, n) on n elements, a thread for every four."""
    threads = block or BLOCK
    device.launch(op, kernel, blocks_for(n, 4 * threads), threads, (*args, np.int64(n)))


def map_elements(device: Device, op: str, x: Array, block: int | None) -> Array:
    """The elementary function of cuda/<op>.cu over x, float32 of any shape."""
    y = device.empty(x.shape, np.float32)
    launch_quads(device, op, f"{op}_elements", x.size, (x, y), block)
    return y
