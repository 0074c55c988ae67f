"""The ops that combine others, made of those of an object that passes on, notes or changes the ops it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from auditkit.numerics.arrays import F32, I64, IntArray


class ComposedOps:
    """The ops of auditkit.numerics.operands, as they are described there."""

    def merge_heads_keep(self: Any, x: F32, bits: int) -> Any:
        """`merge_heads`, then `quantise_keep`."""
        return self.quantise_keep(self.merge_heads(x), bits)

    def merge_heads_rows(self: Any, x: F32, bits: int) -> Any:
        """`merge_heads`, then `quantise`."""
        return self.quantise(self.merge_heads(x), bits)

    def merge_heads_both(self: Any, x: F32, bits: int) -> Any:
        """`merge_heads`, then `quantise_both`."""
        return self.quantise_both(self.merge_heads(x), bits)

    def rms_norm_keep(self: Any, x: F32, weight: F32, eps: np.float32, bits: int) -> Any:
        """`rms_norm_forward`, then `quantise_keep`."""
        y, cache = self.rms_norm_forward(x, weight, eps)
        return *self.quantise_keep(y, bits), cache

    def rms_norm_rows(self: Any, x: F32, weight: F32, eps: np.float32, bits: int) -> Any:
        """`rms_norm_forward`, then `quantise`."""
        return self.quantise(self.rms_norm_forward(x, weight, eps)[0], bits)

    def rms_norm_backward_add(
        self: Any, dys: Sequence[F32], weight: F32, cache: Any, residual: F32 | None
    ) -> tuple[F32, I64]:
        """`add` of the gradients in their order, `rms_norm_backward`, then `add` to the residual."""
        dx, dweight = self.rms_norm_backward(reduce(self.add, dys), weight, cache)
        return (dx if residual is None else self.add(residual, dx)), dweight

    def swiglu_keep(self: Any, gate: F32, up: F32, bits: int) -> Any:
        """`swiglu_forward`, then `quantise_keep`."""
        y, cache = self.swiglu_forward(gate, up)
        return *self.quantise_keep(y, bits), cache

    def swiglu_rows(self: Any, gate: F32, up: F32, bits: int) -> Any:
        """`swiglu_forward`, then `quantise`."""
        return self.quantise(self.swiglu_forward(gate, up)[0], bits)

    def swiglu_columns(self: Any, gate: F32, up: F32, bits: int) -> Any:
        """`swiglu_forward`, whose result stands for its columns."""
        return self.swiglu_forward(gate, up)

    def swiglu_backward_both(self: Any, dy: F32, cache: Any, bits: int) -> Any:
        """`swiglu_backward`, then `quantise_both` of each result."""
        return tuple(self.quantise_both(made, bits) for made in self.swiglu_backward(dy, cache))

    def rope_heads(self: Any, x: F32, batch: int, heads: int, table: Any) -> F32:
        """`split_heads`, then `rope_forward`."""
        return self.rope_forward(self.split_heads(x, batch, heads), table)  # type: ignore[no-any-return]

    def cross_entropy_operand(
        self: Any, logits: F32, targets: IntArray, z_loss: np.float32, total_targets: int, bits: int
    ) -> tuple[I64, F32, F32, Any]:
        """`cross_entropy_rows`, then `quantise` of the gradient."""
        loss, gradient, kept = self.cross_entropy_rows(logits, targets, z_loss, total_targets)
        return loss, gradient, kept, self.quantise(gradient, bits)

    def quantise_columns(self: Any, parts: Sequence[F32], first: int, stop: int, bits: int) -> Any:
        """`columns`, then `quantise_t`."""
        return self.quantise_t(self.columns(parts, first, stop), bits)
