"""The ops that combine others, made of those of an object that passes on, notes or changes the ops it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from auditkit.numerics.arrays import F32, I64


class ComposedOps:
    """The ops of auditkit.numerics.operands, as they are described there."""

    def merge_heads_keep(self: Any, x: F32, bits: int) -> Any:
        """`merge_heads`, then `quantise_keep`."""
        return self.quantise_keep(self.merge_heads(x), bits)

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
