"""RMSNorm, SwiGLU, cross-entropy and the terms of exact sums in C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from auditkit.formats.digest import Digest
from auditkit.native.library import NOT_TAME, Library
from auditkit.numerics import cross_entropy, exact_sum, global_norm, lists, rms_norm
from auditkit.numerics.arrays import F32, I64, IntArray
from auditkit.numerics.exact_sum import LOSS_UNIT
from auditkit.numerics.lists import Each, Hashing
from auditkit.numerics.rms_norm import RmsNormCache
from auditkit.numerics.swiglu import SwigluCache


class Elementwise:
    """The ops of one library that treat elements or rows alone."""

    OPS = (
        "to_fixed", "add_terms", "add_pieces", "squares", "rms_norm_forward", "rms_norm_backward", "swiglu_forward",
        "swiglu_backward", "cross_entropy", "cross_entropy_rows",
    )  # fmt: skip

    def __init__(self, library: Library) -> None:
        self._library = library

    def to_fixed(self, x: F32, unit: int) -> I64:
        """As exact_sum.to_fixed."""
        if not x.flags.c_contiguous or x.dtype != np.float32:
            return exact_sum.to_fixed(x, unit)
        out: I64 = np.empty(x.shape, np.int64)
        self._library.call("to_fixed", x, x.size, unit, out)
        return out

    def add_terms(
        self,
        totals: Sequence[I64],
        terms: Sequence[F32 | I64],
        unit: int,
        each: Each = map,
        *,
        out: Sequence[I64] | None = None,
    ) -> tuple[list[I64], list[Digest]]:
        """As lists.add_terms."""
        return lists.add_terms(totals, terms, unit, each, out=out, fixed=self.to_fixed)

    def add_pieces(
        self, totals: Sequence[I64 | None], terms: Sequence[F32 | I64], unit: int, digests: Sequence[Hashing]
    ) -> list[I64]:
        """As lists.add_pieces."""
        return lists.add_pieces(totals, terms, unit, digests, self.to_fixed)

    def squares(self, grads: Sequence[F32], each: Each = map) -> int:
        """As lists.squares."""
        return sum(each(self._squares, grads))

    def _squares(self, grad: F32) -> int:
        if grad.size >= 1 << 31:
            return global_norm.squares(grad)
        parts = np.empty(4, np.int64)
        self._library.call("squares", np.ascontiguousarray(grad), grad.size, parts)
        high, high_rest, low, low_rest = (int(part) for part in parts)
        shift = global_norm.LOW_UNIT - global_norm.HIGH_UNIT
        return (((high << 32) + high_rest) << shift) + (low << 32) + low_rest

    def rms_norm_forward(self, x: F32, weight: F32, eps: np.float32) -> tuple[F32, RmsNormCache]:
        """As rms_norm.rms_norm_forward."""
        rows, width = x.shape
        y, xhat, rstd = np.empty(x.shape, np.float32), np.empty(x.shape, np.float32), np.empty(rows, np.float32)
        x = np.ascontiguousarray(x)
        self._library.call("rms_norm_forward", x, weight, rows, width, eps, y, xhat, rstd, _tree(width))
        return y, RmsNormCache(xhat, rstd)

    def rms_norm_backward(self, dy: F32, weight: F32, cache: Any) -> tuple[F32, I64]:
        """As rms_norm.rms_norm_backward."""
        rows, width = dy.shape
        dx, dweight = np.empty(dy.shape, np.float32), np.empty(width, np.int64)
        dy = np.ascontiguousarray(dy)
        arrays = (dy, weight, cache.xhat, cache.rstd, rows, width, dx, dweight, _tree(width))
        if self._library.call("rms_norm_backward", *arrays) == NOT_TAME:
            return rms_norm.rms_norm_backward(dy, weight, cache)
        return dx, dweight

    def swiglu_forward(self, gate: F32, up: F32) -> tuple[F32, SwigluCache]:
        """As swiglu.swiglu_forward."""
        gate, up = np.ascontiguousarray(gate), np.ascontiguousarray(up)
        y, sigmoid = np.empty(gate.shape, np.float32), np.empty(gate.shape, np.float32)
        self._library.call("swiglu_forward", gate, up, gate.size, y, sigmoid)
        return y, SwigluCache(gate, up, sigmoid)

    def swiglu_backward(self, dy: F32, cache: Any) -> tuple[F32, F32]:
        """As swiglu.swiglu_backward."""
        dy = np.ascontiguousarray(dy)
        dgate, dup = np.empty(dy.shape, np.float32), np.empty(dy.shape, np.float32)
        self._library.call("swiglu_backward", dy, cache.gate, cache.up, cache.sigmoid, dy.size, dgate, dup)
        return dgate, dup

    def cross_entropy(self, logits: F32, targets: IntArray, z_loss: np.float32, total_targets: int) -> tuple[I64, F32]:
        """As cross_entropy.cross_entropy."""
        loss_sum, gradient, _ = self.cross_entropy_rows(logits, targets, z_loss, total_targets)
        return loss_sum, gradient

    def cross_entropy_rows(
        self, logits: F32, targets: IntArray, z_loss: np.float32, total_targets: int
    ) -> tuple[I64, F32, F32]:
        """As cross_entropy.cross_entropy_rows."""
        if not logits.flags.c_contiguous:
            return cross_entropy.cross_entropy_rows(logits, targets, z_loss, total_targets)
        rows, width = logits.shape
        scale = np.float32(1.0 / float(total_targets))
        chosen = np.ascontiguousarray(targets, np.int64)
        of_target = logits[np.arange(rows), chosen]
        kept: F32 = np.empty((rows, 2), np.float32)
        largest, total = np.empty(rows, np.float32), np.empty(rows, np.float32)
        self._library.call("softmax_rows", logits, rows, width, largest, total)
        loss, factor = cross_entropy.loss_and_factor(largest, total, of_target, z_loss, scale)
        self._library.call("scale_rows", logits, rows, width, factor, chosen, scale)
        kept[:, 0], kept[:, 1] = largest, factor
        return exact_sum.sum_rows(exact_sum.to_fixed(loss, LOSS_UNIT)), logits, kept


def _tree(width: int) -> F32:
    """Room for an ordered row sum."""
    return np.empty((1 << max(0, width - 1).bit_length()) + 8, np.float32)
