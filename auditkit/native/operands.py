"""Ops that go together, as numerics/operands.py, by the ops in C."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from auditkit.native.elementwise import Elementwise
from auditkit.native.product import Products
from auditkit.numerics.arrays import F32, I64, IntArray
from auditkit.numerics.layout import add, columns, merge_heads
from auditkit.numerics.rms_norm import RmsNormCache
from auditkit.numerics.swiglu import SwigluCache


class Operands:
    """The compositions of one library's ops."""

    OPS = (
        "merge_heads_keep", "merge_heads_rows", "merge_heads_both", "rms_norm_keep", "rms_norm_rows",
        "rms_norm_backward_add", "swiglu_keep", "swiglu_rows", "swiglu_columns", "swiglu_backward_both",
        "cross_entropy_operand", "quantise_columns",
    )  # fmt: skip

    def __init__(self, products: Products, elementwise: Elementwise) -> None:
        self._products, self._elementwise = products, elementwise

    def merge_heads_keep(self, x: F32, bits: int) -> tuple[Any, F32]:
        """As operands.merge_heads_keep."""
        return self._products.quantise_keep(merge_heads(x), bits)

    def merge_heads_rows(self, x: F32, bits: int) -> Any:
        """As operands.merge_heads_rows."""
        return self._products.quantise(merge_heads(x), bits)

    def merge_heads_both(self, x: F32, bits: int) -> tuple[Any, Any]:
        """As operands.merge_heads_both."""
        return self._products.quantise_both(merge_heads(x), bits)

    def rms_norm_keep(self, x: F32, weight: F32, eps: np.float32, bits: int) -> tuple[Any, F32, RmsNormCache]:
        """As operands.rms_norm_keep."""
        y, cache = self._elementwise.rms_norm_forward(x, weight, eps)
        return *self._products.quantise_keep(y, bits), cache

    def rms_norm_rows(self, x: F32, weight: F32, eps: np.float32, bits: int) -> Any:
        """As operands.rms_norm_rows."""
        return self._products.quantise(self._elementwise.rms_norm_forward(x, weight, eps)[0], bits)

    def rms_norm_backward_add(
        self, dys: Sequence[F32], weight: F32, cache: Any, residual: F32 | None
    ) -> tuple[F32, I64]:
        """As operands.rms_norm_backward_add."""
        dx, dweight = self._elementwise.rms_norm_backward(reduce(add, dys), weight, cache)
        return (dx if residual is None else add(residual, dx)), dweight

    def swiglu_keep(self, gate: F32, up: F32, bits: int) -> tuple[Any, F32, SwigluCache]:
        """As operands.swiglu_keep."""
        y, cache = self._elementwise.swiglu_forward(gate, up)
        return self._products.weight_rows(y, bits), y, cache

    def swiglu_rows(self, gate: F32, up: F32, bits: int) -> Any:
        """As operands.swiglu_rows."""
        return self._products.quantise(self._elementwise.swiglu_forward(gate, up)[0], bits)

    def swiglu_columns(self, gate: F32, up: F32, bits: int) -> tuple[F32, SwigluCache]:
        """As operands.swiglu_columns."""
        return self._elementwise.swiglu_forward(gate, up)

    def swiglu_backward_both(self, dy: F32, cache: Any, bits: int) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
        """As operands.swiglu_backward_both."""
        dgate, dup = self._elementwise.swiglu_backward(dy, cache)
        return self._products.quantise_both(dgate, bits), self._products.quantise_both(dup, bits)

    def cross_entropy_operand(
        self, logits: F32, targets: IntArray, z_loss: np.float32, total_targets: int, bits: int
    ) -> tuple[I64, F32, F32, Any]:
        """As operands.cross_entropy_operand."""
        loss, gradient, kept = self._elementwise.cross_entropy_rows(logits, targets, z_loss, total_targets)
        return loss, gradient, kept, self._products.quantise(gradient, bits)

    def quantise_columns(self, parts: Sequence[F32], first: int, stop: int, bits: int) -> Any:
        """As operands.quantise_columns."""
        return self._products.quantise_t(columns(parts, first, stop), bits)
