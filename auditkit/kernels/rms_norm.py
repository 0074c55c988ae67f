"""RMSNorm on the device (cuda/rms_norm.cu); SPEC.md section 7."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.kernels.device import Array, Device
from auditkit.kernels.exact_dot_planes import DeviceRows
from auditkit.kernels.exact_sum import small_term
from auditkit.kernels.quantise import both_given, empty_largest, empty_rows, largest_of_columns
from auditkit.kernels.row_sum import WARP, RowShape, held_kind, padded_width, team_for

_NONE = np.uint64(0)  # a null pointer
_HELD = (1, 2, 3, 4)  # cells of four elements that a thread may hold
_AHEAD = 3  # backward: cells up to which a thread also holds the next row's
_AHEAD_FORWARD = 2  # the same where forward goes over many rows
_RESIDENT_FORWARD = 1024  # threads of a multiprocessor, there
_WIDEST = 512  # threads of a block: more would leave too few registers for a row
# Backward: threads of a multiprocessor, which keep their sums over many rows: as many as its 2^16 registers hold at
# once. A thread takes up to 64 of them for one cell (88 from sm_100 on, in two waves) or none, up to 128 for more.
_RESIDENT = {"1": 1024, "2": 512, "3": 512, "4": 512, "any": 1024}


@dataclass(frozen=True)
class RmsNormCache:
    """x (N, C) as given and rstd (N,), float32; xhat = x * rstd is computed again, one rounding."""

    x: Array
    rstd: Array


def rms_norm_forward(
    device: Device, x: Array, weight: Array, eps: np.float32, *, shape: RowShape | None = None
) -> tuple[Array, RmsNormCache]:
    """y = (x * rstd) * weight with rstd = 1 / sqrt(row_sum(x * x) / C + eps). x (N, C), weight (C,) float32."""
    rows, width = x.shape
    chosen = shape or _shape(width, _HELD[-1])
    y, rstd = device.empty(x.shape, np.float32), device.empty((rows,), np.float32)
    args = (x, weight, y, rstd, np.float32(eps), *_sizes(rows, width), np.int32(chosen.team))
    kernel = f"rms_norm_forward_{held_kind(width, chosen.team, _HELD)}"
    device.launch("rms_norm", kernel, chosen.blocks(rows), chosen.block, args)
    return y, RmsNormCache(x, rstd)


def rms_norm_both(
    device: Device, status: Array, x: Array, weight: Array, eps: np.float32, *, shape: RowShape | None = None
) -> tuple[DeviceRows, DeviceRows, RmsNormCache]:
    """Rows and columns of `rms_norm_forward` in fixed point of 14 bits; the floats themselves are never stored.

    For widths that `holds` says. A non-finite element sets `status`.
    """
    rows, width = (int(size) for size in x.shape)
    chosen = shape or _shape(width, _AHEAD_FORWARD)
    rstd, largest = device.empty((rows,), np.float32), empty_largest(device, rows, width)
    grid = min(chosen.blocks(rows), device.multiprocessors * max(1, _RESIDENT_FORWARD // chosen.block))
    if rows:
        teams = device.empty((grid * (chosen.block // chosen.team), width), np.float32)
        args = (x, weight, rstd, largest.rows, teams, np.float32(eps), *_sizes(rows, width), np.int32(chosen.team))
        kernel = f"rms_norm_largest_{held_kind(width, chosen.team, _HELD)}"
        device.launch("rms_norm", kernel, grid, chosen.block, args)
        largest_of_columns(device, teams, largest.columns)
    return *both_given(device, status, x, largest, 14, "rms_norm", (rstd, weight)), RmsNormCache(x, rstd)


def rms_norm_rows(
    device: Device, status: Array, x: Array, weight: Array, eps: np.float32, *, shape: RowShape | None = None
) -> DeviceRows:
    """Rows of `rms_norm_forward` in fixed point of 14 bits, each read once; the floats themselves are never stored.

    For widths that `holds` says, multiples of 128. A non-finite element sets `status`.
    """
    rows, width = (int(size) for size in x.shape)
    chosen = shape or _shape(width, _HELD[-1])
    made, rstd = empty_rows(device, 14, 1, rows, width), device.empty((rows,), np.float32)
    args = (x, weight, rstd, made.exponents, made.planes, status, np.float32(eps), *_sizes(rows, width))
    kernel = f"rms_norm_rows_14_{held_kind(width, chosen.team, _HELD)}"
    device.launch("rms_norm", kernel, chosen.blocks(rows), chosen.block, (*args, np.int32(chosen.team)))
    return made


def holds(width: int) -> bool:
    """Whether a row of this width stays in registers."""
    return width > 0 and held_kind(width, _shape(width, _AHEAD_FORWARD).team, _HELD) != "any"


def rms_norm_backward(
    device: Device,
    status: Array,
    dy: Array,
    weight: Array,
    cache: RmsNormCache,
    *,
    shape: RowShape | None = None,
) -> tuple[Array, Array]:
    """dx (N, C) float32 and dweight (C,) int64 in units 2^-56, the exact sum of dy * xhat over rows.

    Terms out of range, and sums that may be, set bits 0 and 1 of `status`. A sum out of range that sets no bit is the
    true one.
    """
    return rms_norm_backward_add(device, status, [dy], weight, cache, None, shape=shape)


def rms_norm_backward_add(
    device: Device,
    status: Array,
    dys: Sequence[Array],
    weight: Array,
    cache: RmsNormCache,
    residual: Array | None,
    *,
    shape: RowShape | None = None,
) -> tuple[Array, Array]:
    """`rms_norm_backward` of the sum of one to three gradients (N, C), in their order; dx is added to `residual` (N, C)
    if it is given.

    One launch, each array read once.
    """
    gradients: list[Any] = [*dys, *[_NONE] * (3 - len(dys))]
    dy, second, third = gradients
    rows, width = dy.shape
    chosen = shape or _shape(width, _AHEAD)
    dx = device.empty(dy.shape, np.float32)
    dweight = device.zeros((width,), np.int64)
    kind = held_kind(width, chosen.team, _HELD)
    grid = min(chosen.blocks(rows), device.multiprocessors * max(1, _RESIDENT[kind] // chosen.block))
    adds = len(dys) > 1 or residual is not None
    onto = _NONE if residual is None else residual
    operands = (dy, second, third, onto, weight, cache.x, cache.rstd, dx, dweight, status)
    args = (*operands, *_sizes(rows, width), np.float32(small_term(rows)), np.int32(chosen.team))
    kernel = f"rms_norm_backward_{'add_' if adds and kind != 'any' else ''}{kind}"
    device.launch("rms_norm", kernel, grid, chosen.block, args)
    return dx, dweight


def _sizes(rows: int, width: int) -> tuple[np.int64, np.int64, np.int64]:
    return np.int64(rows), np.int64(width), np.int64(padded_width(width))


def _shape(width: int, held: int) -> RowShape:
    """A warp a row while it holds it in so many cells; else as few warps as hold it, a block of their own."""
    team = team_for(width, held, _WIDEST)
    return RowShape(team, 256 if team == WARP else team)
