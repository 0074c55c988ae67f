"""Attention in C on int16 rows (SPEC.md section 8); other products than fx14 are the reference's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.native.library import Library
from auditkit.native.product import BITS, NativeRows, Products, padded
from auditkit.numerics import product
from auditkit.numerics.arrays import F32, ieee
from auditkit.numerics.attention import attention_scale, prefix_bound, stack, suffix_bound, unstack
from auditkit.numerics.row_sum import row_sum

_MOST_PAIRS = 1 << 22  # of a group, held in binary32 twice; beyond, the reference needs less memory
_SPAN = 64  # queries or keys that are worked on together, as in the sources


@dataclass(frozen=True)
class NativeAttentionCache:
    """What backward needs, as attention.AttentionCache, groups one after the other: weights are made again."""

    q: NativeRows  # (B * G * T * R, D)
    k: NativeRows  # (B * G * T, D)
    v: NativeRows
    out: F32  # (B * G, T * R, D)
    row_max: F32  # (B * G, T * R)
    row_sum: F32  # (B * G, T * R)
    window: int


class Attention:
    """Both passes of one library."""

    OPS = ("attention_forward", "attention_again", "attention_restored", "attention_backward")

    def __init__(self, library: Library, products: Products) -> None:
        self._library, self._products = library, products

    @ieee
    def attention_forward(self, q: F32, k: F32, v: F32, *, window: int, bits: int) -> tuple[F32, Any]:
        """As attention.attention_forward."""
        if not _is_own(q, k, bits):
            return product.attention_forward(q, k, v, window=window, bits=bits)
        batch, groups, tokens, dim = k.shape
        count, heads = batch * groups, q.shape[1] // groups
        rows = self._operands(q, k, v)
        bound = prefix_bound(rows[2].exponents.reshape(count, tokens), window)
        out: F32 = np.empty((count, tokens * heads, dim), np.float32)
        row_max, sums = np.empty(out.shape[:2], np.float32), np.empty(out.shape[:2], np.float32)
        operands = [array for part in rows for array in (part.values, part.exponents)]
        sizes = (count, tokens, heads, dim, window, attention_scale(dim))
        work = np.empty(_forward_work(tokens, heads, dim))
        bound = np.ascontiguousarray(bound)
        self._library.call("attention_forward", *operands, bound, *sizes, out, row_max, sums, work)
        return unstack(out, q), NativeAttentionCache(rows[0], rows[1], rows[2], out, row_max, sums, window)

    @ieee
    def attention_again(
        self, q: F32, k: F32, v: F32, kept: Sequence[F32], *, window: int, bits: int
    ) -> tuple[F32, Any]:
        """As attention.attention_again."""
        if not _is_own(q, k, bits):
            return product.attention_again(q, k, v, kept, window=window, bits=bits)
        out, row_max, sums = kept
        return unstack(out, q), NativeAttentionCache(*self._operands(q, k, v), out, row_max, sums, window)

    def attention_restored(
        self, heads: Sequence[F32], kept: Sequence[F32], shape: tuple[int, ...], keys: int, *, window: int, bits: int
    ) -> tuple[F32, Any]:
        """As product.attention_restored."""
        q, k, v = heads
        assert q.shape == shape and k.shape[1] == keys
        return self.attention_again(q, k, v, kept, window=window, bits=bits)

    @ieee
    def attention_backward(self, dout: F32, cache: Any) -> tuple[F32, F32, F32]:
        """As attention.attention_backward."""
        if not isinstance(cache, NativeAttentionCache):
            return product.attention_backward(dout, cache)
        batch, _, tokens, dim = dout.shape
        count = len(cache.out)
        heads = cache.out.shape[1] // tokens
        stacked = stack(dout, count // batch)
        inner = row_sum(stacked * cache.out)
        gradient, z = self._rows(stacked, dim), self._rows(stacked / cache.row_sum[..., None], dim)
        bound = suffix_bound(z.exponents.reshape(count, tokens, heads), cache.window)
        made = [np.empty((count, rows, dim), np.float32) for rows in (tokens * heads, tokens, tokens)]
        operands = [x for part in (cache.q, cache.k, cache.v, gradient, z) for x in (part.values, part.exponents)]
        per_row = (np.ascontiguousarray(bound), cache.row_max, cache.row_sum, inner)
        sizes = (count, tokens, heads, dim, cache.window, attention_scale(dim))
        work = _backward_work(tokens, heads, dim)
        self._library.call("attention_backward", *operands, *per_row, *sizes, *made, *work)
        shape = (batch, count // batch, tokens, dim)
        return unstack(made[0], dout), made[1].reshape(shape), made[2].reshape(shape)

    def _operands(self, q: F32, k: F32, v: F32) -> tuple[NativeRows, NativeRows, NativeRows]:
        dim = k.shape[-1]
        return self._rows(stack(q, k.shape[1]), dim), self._rows(k, dim), self._rows(v, dim)

    def _rows(self, x: F32, dim: int) -> NativeRows:
        rows: NativeRows = self._products.quantise(x.reshape(-1, dim), BITS)
        return rows


def _is_own(q: F32, k: F32, bits: int) -> bool:
    """Whether the C source does it."""
    _, groups, tokens, _ = k.shape
    return bits == BITS and 0 not in q.shape and q.shape[1] // groups * tokens * tokens <= _MOST_PAIRS


def _forward_work(tokens: int, heads: int, dim: int) -> int:
    """Doubles of work that source/attention_forward.c asks for."""
    rows, depth, length = tokens * heads, padded(dim), padded(tokens)
    return 3 * (rows + tokens + depth + 80) + (6 * _SPAN * length + 2 * depth * length) // 8 + 8


def _backward_work(tokens: int, heads: int, dim: int) -> tuple[Any, ...]:
    """What source/attention_backward.c asks for."""
    rows, depth, length = tokens * heads, padded(dim), padded(tokens)
    high = padded(rows)
    return (
        np.empty(3 * (2 * rows + 2 * tokens + 3 * depth + 128)),
        np.empty(2 * rows * length, np.float32),
        np.empty(depth * (length + 2 * high) + _SPAN * (length + high), np.int16),
        np.empty(length, np.int32),
        np.zeros(length, np.int32),
    )
