"""SwiGLU on the device (cuda/swiglu.cu); SPEC.md section 10."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.kernels.device import Array, Device
from auditkit.kernels.elementwise import BLOCK, launch_quads
from auditkit.kernels.exact_dot_planes import DeviceRows
from auditkit.kernels.quantise import Largest, empty_largest, empty_rows, launch_rows, longest_row, strips

_STRIP = 128  # columns that a block of the kernels named _largest takes
_WARPS = 22  # of a block of the kernels named _rows, at most
_HELD = (1, 2, 4)  # times as many of two rows' 64 columns that a warp of the kernels named _rows may hold


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


def swiglu_forward_largest(device: Device, gate: Array, up: Array) -> tuple[Array, SwigluCache, Largest]:
    """As `swiglu_forward`, with the largest magnitudes of the rows and columns of y."""
    m, k = (int(size) for size in gate.shape)
    y, largest = device.empty(gate.shape, np.float32), empty_largest(device, m, k)
    grid, strip = strips(device, 1, m, k, _STRIP)
    args = (gate, up, y, *_found(largest), *strip)
    device.launch("swiglu", "swiglu_forward_largest", grid, BLOCK, args)
    return y, SwigluCache(gate, up), largest


def swiglu_backward_largest(
    device: Device, dy: Array, cache: SwigluCache
) -> tuple[tuple[Array, Largest], tuple[Array, Largest]]:
    """As `swiglu_backward`, dgate and dup each with the largest magnitudes of its rows and columns."""
    m, k = (int(size) for size in dy.shape)
    made = [(device.empty(dy.shape, np.float32), empty_largest(device, m, k)) for _ in range(2)]
    (dgate, of_gate), (dup, of_up) = made
    grid, strip = strips(device, 1, m, k, _STRIP)
    args = (dy, cache.gate, cache.up, dgate, dup, *_found(of_gate), *_found(of_up), *strip)
    device.launch("swiglu", "swiglu_backward_largest", grid, BLOCK, args)
    return made[0], made[1]


def swiglu_rows(device: Device, status: Array, gate: Array, up: Array) -> DeviceRows:
    """Rows of `swiglu_forward` in fixed point of 14 bits; the floats themselves are never stored.

    For widths that `holds` says. A non-finite element sets `status`.
    """
    m, k = (int(size) for size in gate.shape)
    rows = empty_rows(device, 14, 1, m, k)
    launch_rows(device, ("swiglu", "swiglu_rows_14"), (gate, up), rows, status, _HELD)
    return rows


def holds(width: int) -> bool:
    """Whether a block of `swiglu_rows` holds a row of this width."""
    return width <= longest_row(_HELD[-1], _WARPS)


def _found(largest: Largest) -> tuple[Any, ...]:
    return tuple(np.uint64(0) if array is None else array for array in (largest.rows, largest.columns))


def swiglu_backward(device: Device, dy: Array, cache: SwigluCache, *, block: int | None = None) -> tuple[Array, Array]:
    """dgate and dup, (N, F) float32, from dy (N, F)."""
    dgate, dup = device.empty(dy.shape, np.float32), device.empty(dy.shape, np.float32)
    launch_quads(device, "swiglu", "swiglu_backward", dy.size, (dy, cache.gate, cache.up, dgate, dup), block)
    return dgate, dup
