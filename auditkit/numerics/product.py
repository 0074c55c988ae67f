"""The products a recipe can declare, under one name each: bits 14 and 21 are exact (fx), bits 24 are plain binary32
(f32).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from auditkit.numerics import attention, exact_dot, f32_attention, f32_dot
from auditkit.numerics.arrays import F32
from auditkit.numerics.attention import AttentionCache
from auditkit.numerics.exact_dot import Rows
from auditkit.numerics.f32_attention import F32AttentionCache
from auditkit.numerics.f32_dot import F32Rows


def quantise(x: F32, bits: int) -> Rows | F32Rows:
    """The rows of x (..., M, K) float32 as operands of a product of `bits` bits. Raises NonFinite."""
    return f32_dot.rows(x) if bits == f32_dot.BITS else exact_dot.quantise(x, bits)


def quantise_t(x: F32, bits: int) -> Rows | F32Rows:
    """The rows of the transpose of x (M, K) float32. Raises NonFinite."""
    return f32_dot.rows_t(x) if bits == f32_dot.BITS else exact_dot.quantise_t(x, bits)


def quantise_both(x: F32, bits: int) -> tuple[LaterRows | F32Rows, LaterRows | F32Rows]:
    """`quantise` and `quantise_t` of x (M, K) float32. Here each is made in the product that it enters, so that they do
    not take memory at the same time, and what is not finite is found there.
    """
    if bits == f32_dot.BITS:
        return f32_dot.rows(x), f32_dot.rows_t(x)
    return LaterRows(x, bits, columns=False), LaterRows(x, bits, columns=True)


def quantise_keep(x: F32, bits: int) -> tuple[Rows | F32Rows, F32]:
    """`quantise` of x (M, K) float32, and what `kept_columns` makes `quantise_t` of x from: x, which is smaller."""
    return quantise(x, bits), x


def kept_columns(kept: F32, bits: int) -> Rows | F32Rows:
    """`quantise_t` of what `quantise_keep` was given. Raises NonFinite."""
    return quantise_t(kept, bits)


_LATER_ELEMENTS = 1 << 21  # of a weight that are held as binary64 at a time, 16 MiB
_LATER_ROWS = 64  # or so many rows: a product with fewer is slow


@dataclass(frozen=True)
class LaterRows:
    """Operand of an exact dot whose rows are rounded when they are needed, as the second operand a few at a time:
    `weight` is (N, K), or (K, N) where its columns are the rows. Rows are rounded each for itself, so the cut changes
    no bit.
    """

    weight: F32
    bits: int
    columns: bool

    def whole(self) -> Rows:
        """All rows at once."""
        op = exact_dot.quantise_t if self.columns else exact_dot.quantise
        return op(self.weight, self.bits)

    def dot(self, a: Rows) -> F32:
        """Every row of a (M, K) with every row of these."""
        count, depth = self.weight.shape[:: -1 if self.columns else 1]
        out: F32 = np.empty((a.values.shape[0], count), np.float32)
        size = max(_LATER_ROWS, _LATER_ELEMENTS // max(1, depth))
        integers = exact_dot.row_integers(a)
        for at in range(0, count, size):
            part = slice(at, at + size)
            if self.columns:
                rows = exact_dot.quantise_t(self.weight[:, part], self.bits)
            else:
                rows = exact_dot.quantise(self.weight[part], self.bits)
            out[:, part] = exact_dot.dot(a, rows, integers)
        return out


def weight_rows(weight: F32, bits: int) -> LaterRows | F32Rows:
    """As `quantise` of (N, K), the second operand of `dot`, with little memory. What is not finite is found there."""
    return f32_dot.rows(weight) if bits == f32_dot.BITS else LaterRows(weight, bits, columns=False)


def weight_rows_t(weight: F32, bits: int) -> LaterRows | F32Rows:
    """As `quantise_t` of (K, N), the second operand of `dot`, with little memory."""
    return f32_dot.rows_t(weight) if bits == f32_dot.BITS else LaterRows(weight, bits, columns=True)


def dot(a: Rows | F32Rows | LaterRows, b: Rows | F32Rows | LaterRows) -> F32:
    """Every row of a with every row of b: (..., M, K) x (..., N, K) -> (..., M, N) float32. Raises Unsupported."""
    if isinstance(a, LaterRows):
        a = a.whole()
    if isinstance(a, Rows) and isinstance(b, LaterRows):
        return b.dot(a)
    if isinstance(a, F32Rows) and isinstance(b, F32Rows):
        return f32_dot.dot(a, b)
    if isinstance(a, Rows) and isinstance(b, Rows):
        return exact_dot.dot(a, b)
    raise ValueError("operands of different products")  # a programming error, never data


def attention_forward(
    q: F32, k: F32, v: F32, *, window: int, bits: int
) -> tuple[F32, AttentionCache | F32AttentionCache]:
    """Causal attention of q (B, H, T, D), k and v (B, G, T, D): (B, H, T, D) and the cache. Raises NonFinite."""
    if bits == f32_dot.BITS:
        return f32_attention.attention_forward(q, k, v, window=window)
    return attention.attention_forward(q, k, v, window=window, bits=bits)


def attention_again(
    q: F32, k: F32, v: F32, kept: Sequence[F32], *, window: int, bits: int
) -> tuple[F32, AttentionCache | F32AttentionCache]:
    """What `attention_forward` gave, from the `out`, `row_max` and `row_sum` of its cache: no score is computed."""
    if bits == f32_dot.BITS:
        return f32_attention.attention_again(q, k, v, kept, window=window)
    return attention.attention_again(q, k, v, kept, window=window, bits=bits)


def attention_heads(q: F32, k: F32, v: F32, cache: AttentionCache | F32AttentionCache) -> list[F32]:  # noqa: ARG001
    """What is to be kept of the inputs of an attention, for `attention_restored`: here these, float32, themselves."""
    return [q, k, v]


def attention_restored(
    heads: Sequence[F32], kept: Sequence[F32], shape: tuple[int, ...], keys: int, *, window: int, bits: int
) -> tuple[F32, AttentionCache | F32AttentionCache]:
    """`attention_again` of q of `shape` (B, H, T, D) and so many key heads, from what `attention_heads` gave."""
    q, k, v = heads
    assert q.shape == shape and k.shape[1] == keys
    return attention_again(q, k, v, kept, window=window, bits=bits)


def attention_backward(dout: F32, cache: AttentionCache | F32AttentionCache) -> tuple[F32, F32, F32]:
    """Gradients of q, k, v from dout (B, H, T, D). Raises NonFinite."""
    if isinstance(cache, F32AttentionCache):
        return f32_attention.attention_backward(dout, cache)
    return attention.attention_backward(dout, cache)
