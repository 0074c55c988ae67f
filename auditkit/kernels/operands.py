"""Ops on the device whose results enter products at once: floats and fixed-point rows in as few passes as it takes; as
auditkit.numerics.operands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from auditkit.kernels import cross_entropy, layout, product, rms_norm, swiglu
from auditkit.kernels.device import Array, Device
from auditkit.kernels.quantise import (
    both_given,
    columns_given,
    longest_row,
    quantise_head_rows,
    quantise_heads,
    quantise_parts,
    rows_given,
)
from auditkit.kernels.rms_norm import RmsNormCache
from auditkit.kernels.swiglu import SwigluCache
from auditkit.numerics.f32_dot import BITS

_KEPT = 14  # bits of which columns are kept rather than floats (product.quantise_keep)
_PADDED = 128  # rows of products are as long, or multiples
_MOST_ROWS = 1 << 32  # of heads or parts, which a kernel divides in 32 bits


def rms_norm_keep(
    device: Device, status: Array, x: Array, weight: Array, eps: np.float32, bits: int
) -> tuple[Any, Any, RmsNormCache]:
    """`rms_norm_forward`, and `quantise_keep` of its result: rows, what is kept, cache."""
    if bits == _KEPT and rms_norm.holds(int(x.shape[1])):
        return rms_norm.rms_norm_both(device, status, x, weight, eps)
    y, cache = rms_norm.rms_norm_forward(device, x, weight, eps)
    return *product.quantise_keep(device, status, y, bits), cache


def rms_norm_rows(device: Device, status: Array, x: Array, weight: Array, eps: np.float32, bits: int) -> Any:
    """`quantise` of `rms_norm_forward`."""
    width = int(x.shape[1])
    if bits == _KEPT and width % _PADDED == 0 and rms_norm.holds(width):
        return rms_norm.rms_norm_rows(device, status, x, weight, eps)
    return product.quantise(device, status, rms_norm.rms_norm_forward(device, x, weight, eps)[0], bits)


def merge_heads_keep(device: Device, status: Array, x: Array, bits: int) -> tuple[Any, Any]:
    """`quantise_keep` of `merge_heads` of x (B, H, T, D): rows, what is kept."""
    if bits == _KEPT and int(x.shape[0] * x.shape[2]) < _MOST_ROWS:
        return quantise_heads(device, status, x, bits)
    return product.quantise_keep(device, status, layout.merge_heads(device, x), bits)


def merge_heads_rows(device: Device, status: Array, x: Array, bits: int) -> Any:
    """`quantise` of `merge_heads` of x (B, H, T, D)."""
    rows, width = int(x.shape[0] * x.shape[2]), int(x.shape[1] * x.shape[3])
    if bits == _KEPT and rows < _MOST_ROWS and width <= longest_row():
        return quantise_head_rows(device, status, x)
    return product.quantise(device, status, layout.merge_heads(device, x), bits)


def merge_heads_both(device: Device, status: Array, x: Array, bits: int) -> tuple[Any, Any]:
    """`quantise_both` of `merge_heads` of x (B, H, T, D)."""
    if bits != BITS and int(x.shape[0] * x.shape[2]) < _MOST_ROWS:
        return quantise_heads(device, status, x, bits)
    return product.quantise_both(device, status, layout.merge_heads(device, x), bits)


def swiglu_keep(device: Device, status: Array, gate: Array, up: Array, bits: int) -> tuple[Any, Any, SwigluCache]:
    """`swiglu_forward`, and `quantise_keep` of its result: rows, what is kept, cache."""
    if bits == _KEPT:
        y, cache, largest = swiglu.swiglu_forward_largest(device, gate, up)
        return *both_given(device, status, y, largest, bits), cache
    y, cache = swiglu.swiglu_forward(device, gate, up)
    return *product.quantise_keep(device, status, y, bits), cache


def swiglu_rows(device: Device, status: Array, gate: Array, up: Array, bits: int) -> Any:
    """`quantise` of `swiglu_forward`."""
    if bits == _KEPT and swiglu.holds(int(gate.shape[1])):
        return swiglu.swiglu_rows(device, status, gate, up)
    return product.quantise(device, status, swiglu.swiglu_forward(device, gate, up)[0], bits)


def swiglu_columns(device: Device, status: Array, gate: Array, up: Array, bits: int) -> tuple[Any, SwigluCache]:
    """`swiglu_keep` without the rows: what is kept, cache."""
    if bits == _KEPT:
        y, cache, largest = swiglu.swiglu_forward_largest(device, gate, up)
        return columns_given(device, status, y, largest, bits), cache
    return swiglu.swiglu_forward(device, gate, up)


def swiglu_backward_both(
    device: Device, status: Array, dy: Array, cache: SwigluCache, bits: int
) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """`swiglu_backward`, and `quantise_both` of each of its results."""
    if bits == BITS:
        dgate, dup = swiglu.swiglu_backward(device, dy, cache)
        return product.quantise_both(device, status, dgate, bits), product.quantise_both(device, status, dup, bits)
    gate, up = swiglu.swiglu_backward_largest(device, dy, cache)
    of_gate = both_given(device, status, *gate, bits)
    del gate  # before the planes of the other are made
    return of_gate, both_given(device, status, *up, bits)


def cross_entropy_operand(
    device: Device, status: Array, logits: Array, targets: Array, z_loss: np.float32, total_targets: int, bits: int
) -> tuple[Array, Array, Array, Any]:
    """`cross_entropy_rows`, and `quantise` of the gradient: loss, gradient, what is kept of the rows, rows."""
    given = device, status, logits, targets, z_loss, total_targets
    if bits == BITS or int(logits.shape[1]) <= longest_row():
        loss, gradient, kept = cross_entropy.cross_entropy_rows(*given)
        return loss, gradient, kept, product.quantise(device, status, gradient, bits)
    loss, gradient, kept, largest = cross_entropy.cross_entropy_largest(*given)
    return loss, gradient, kept, rows_given(device, status, gradient, largest, bits)


def quantise_columns(device: Device, status: Array, parts: Sequence[Array], first: int, stop: int, bits: int) -> Any:
    """`quantise_t` of `columns` of parts (n, V) of one height, but for a last one that is less high."""
    if bits == BITS or sum(int(part.shape[0]) for part in parts) >= _MOST_ROWS:
        return product.quantise_t(device, status, layout.columns(device, parts, first, stop), bits)
    return quantise_parts(device, status, parts, first, stop, bits)
