"""Ops that go together, as the compositions that they are; a back end may make them in one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from auditkit.numerics import product
from auditkit.numerics.arrays import F32, I64, IntArray
from auditkit.numerics.cross_entropy import cross_entropy_rows
from auditkit.numerics.layout import add, columns, merge_heads, split_heads
from auditkit.numerics.rms_norm import RmsNormCache, rms_norm_backward, rms_norm_forward
from auditkit.numerics.rope import RopeTable, rope_forward
from auditkit.numerics.swiglu import SwigluCache, swiglu_backward, swiglu_forward


def merge_heads_keep(x: F32, bits: int) -> tuple[Any, F32]:
    """`quantise_keep` of `merge_heads` of x (B, H, T, D): rows, what is kept. Raises NonFinite."""
    return product.quantise_keep(merge_heads(x), bits)


def merge_heads_rows(x: F32, bits: int) -> Any:
    """`quantise` of `merge_heads` of x (B, H, T, D)."""
    return product.quantise(merge_heads(x), bits)


def merge_heads_both(x: F32, bits: int) -> tuple[Any, Any]:
    """`quantise_both` of `merge_heads` of x (B, H, T, D)."""
    return product.quantise_both(merge_heads(x), bits)


def rms_norm_keep(x: F32, weight: F32, eps: np.float32, bits: int) -> tuple[Any, F32, RmsNormCache]:
    """`rms_norm_forward`, and `quantise_keep` of its result: rows, what is kept, cache. Raises NonFinite."""
    y, cache = rms_norm_forward(x, weight, eps)
    return *product.quantise_keep(y, bits), cache


def rms_norm_rows(x: F32, weight: F32, eps: np.float32, bits: int) -> Any:
    """`quantise` of `rms_norm_forward` of x (N, C) float32, weight (C,): N rows of C. Raises NonFinite."""
    return product.quantise(rms_norm_forward(x, weight, eps)[0], bits)


def rms_norm_backward_add(
    dys: Sequence[F32], weight: F32, cache: RmsNormCache, residual: F32 | None
) -> tuple[F32, I64]:
    """`rms_norm_backward` of the sum of one to three gradients, (a + b) + c in their order, and `add` of its dx to the
    residual if there is one.

    dys, residual (N, C) float32. Returns residual + dx (N, C) float32 and dweight (C,) int64 in units 2^-56. Raises
    NonFinite.
    """
    dx, dweight = rms_norm_backward(reduce(add, dys), weight, cache)
    return (dx if residual is None else add(residual, dx)), dweight


def swiglu_keep(gate: F32, up: F32, bits: int) -> tuple[Any, F32, SwigluCache]:
    """`swiglu_forward`, and `quantise_keep` of its result: rows, what is kept, cache.

    The rows are made in the product that they enter, and what is not finite is found there.
    """
    y, cache = swiglu_forward(gate, up)
    return product.quantise_both(y, bits)[0], y, cache


def swiglu_rows(gate: F32, up: F32, bits: int) -> Any:
    """`quantise` of `swiglu_forward` of gate and up (N, F) float32: N rows of F. Raises NonFinite."""
    return product.quantise(swiglu_forward(gate, up)[0], bits)


def swiglu_columns(gate: F32, up: F32, bits: int) -> tuple[F32, SwigluCache]:
    """`swiglu_keep` of gate and up (N, F) float32 without the rows: what is kept for its columns, cache."""
    return swiglu_forward(gate, up)


def swiglu_backward_both(dy: F32, cache: SwigluCache, bits: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """`swiglu_backward`, and `quantise_both` of each of its results."""
    dgate, dup = swiglu_backward(dy, cache)
    return product.quantise_both(dgate, bits), product.quantise_both(dup, bits)


def rope_heads(x: F32, batch: int, heads: int, table: RopeTable) -> F32:
    """`rope_forward` of `split_heads` of x (B * T, H * D) float32 -> (B, H, T, D)."""
    return rope_forward(split_heads(x, batch, heads), table)


def cross_entropy_operand(
    logits: F32, targets: IntArray, z_loss: np.float32, total_targets: int, bits: int
) -> tuple[I64, F32, F32, Any]:
    """`cross_entropy_rows` of logits (N, V) float32, and `quantise` of the gradient: loss, int64 () in units 2^-32;
    gradient (N, V); what is kept of the rows, (N, 2); N rows of V. Raises NonFinite.
    """
    loss, gradient, kept = cross_entropy_rows(logits, targets, z_loss, total_targets)
    return loss, gradient, kept, product.quantise(gradient, bits)


def quantise_columns(parts: Sequence[F32], first: int, stop: int, bits: int) -> Any:
    """`quantise_t` of `columns` of parts (n, V) float32 of one height, but for a last one that is less high."""
    return product.quantise_t(columns(parts, first, stop), bits)
