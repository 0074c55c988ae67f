"""Causal attention with grouped heads and an optional sliding window (SPEC.md section 8).

The contract is written on whole matrices: no tile size appears in it, so any fused kernel may implement it. It is
strictly causal in every bit: a value row has its own exponent, and the bound of a weight looks only at keys the query
may see.

A "group" is one sequence and one key head with the R = H / G query heads of that key head: T * R queries, the R of
each token side by side, and T keys. The code takes as many groups at a time as fit in the cache, and of these a "span"
of queries with the keys that any of them sees: what nobody sees is mostly not computed.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from auditkit.numerics.arrays import F32, F64, I32, ieee, row_blocks
from auditkit.numerics.exact_dot import ZERO_ROW, Rows, depth_limit, dot, quantise, round_sum
from auditkit.numerics.exact_sum import SOFTMAX_UNIT
from auditkit.numerics.exp import exp
from auditkit.numerics.row_sum import row_sum
from auditkit.numerics.weighted_sum import (
    NO_PRODUCT,
    largest_products,
    settle_bound,
    true_bound,
    unrounded_sum,
    weighted_sum,
)

_GROUP_SHARE = 2  # groups are worked on in blocks of this many row_blocks: fewer, longer array operations
_SPAN = 64  # tokens of a span
_KEPT = (
    8  # weights of up to this many tokens per head dimension are kept for backward: as much as the cache holds anyway
)
_MINUS_INF = np.array(0xFF800000, np.uint32).view(np.int32)


@dataclass(frozen=True)
class Span:
    """Consecutive queries of a group, rows of T * R, and the keys that any of them sees.

    seen: masks of the last of these keys, see `visible`; the keys before them are seen by all of the queries.
    """

    queries: slice
    keys: slice
    seen: I32


@dataclass(frozen=True)
class AttentionCache:
    """What backward needs: inputs as fixed-point rows, the output, and the row maxima and sums of the softmax."""

    q: Rows  # (B * G, T * R, D)
    k: Rows  # (B * G, T, D)
    v: Rows  # (B * G, T, D)
    out: F32  # (B * G, T * R, D)
    row_max: F32  # (B * G, T * R)
    row_sum: F32  # (B * G, T * R)
    window: int
    weights: dict[tuple[int, int], F32] = field(default_factory=dict)  # e by first group and query, where kept

    @property
    def tokens(self) -> int:
        """T."""
        return int(self.k.values.shape[1])

    @property
    def heads(self) -> int:
        """R, the query heads of a key head."""
        return int(self.q.values.shape[1]) // max(1, self.tokens)

    def spans(self) -> tuple[Span, ...]:
        """The spans of each group: only one where a sum over all of its queries would not be exact in float64."""
        whole = self.heads * self.tokens > depth_limit(self.q.bits)
        return spans(self.heads, self.tokens, self.window, max(1, self.tokens) if whole else _SPAN)

    def blocks(self) -> tuple[slice, ...]:
        """Groups that are worked on together."""
        return row_blocks(len(self.out), self.heads * self.tokens * min(self.tokens, _SPAN) // _GROUP_SHARE)


def attention_scale(head_dim: int) -> np.float32:
    """1 / sqrt(head_dim), computed in binary64 (both operations correctly rounded), rounded once to binary32."""
    return np.float32(1.0 / np.sqrt(np.float64(head_dim)))


def visible(queries: range, keys: range, window: int) -> I32:
    """(queries, keys) int32 masks: -1 (all bits) where query i sees key j, else 0.

    Query i sees key j if j <= i and (window == 0 or i - j < window).
    """
    i = np.arange(queries.start, queries.stop)[:, None]
    j = np.arange(keys.start, keys.stop)[None, :]
    return -((j <= i) & ((i - j < window) | (window == 0))).astype(np.int32)


@functools.lru_cache(maxsize=4)
def spans(heads: int, tokens: int, window: int, size: int) -> tuple[Span, ...]:
    """Spans of `size` tokens that cover the T tokens of a group; the cut cannot change a bit."""
    found = []
    for start in range(0, tokens, size):
        stop = min(tokens, start + size)
        first = max(0, start - window + 1) if window else 0
        masked = range(first if window else start, stop)
        seen = np.repeat(visible(range(start, stop), masked, window), heads, axis=0)
        seen.flags.writeable = False
        found.append(Span(slice(start * heads, stop * heads), slice(first, stop), seen))
    return tuple(found)


@ieee
def attention_forward(q: F32, k: F32, v: F32, *, window: int, bits: int) -> tuple[F32, AttentionCache]:
    """softmax(q k^T / sqrt(D)) v, causal.

    q (B, H, T, D), k and v (B, G, T, D) float32, H a multiple of G: query head h uses key head h // (H / G).
    window: how many keys a query sees, itself included; 0 for all before it. Returns (B, H, T, D) and the cache.
    Raises NonFinite.
    """
    _, groups, tokens, head_dim = k.shape
    heads = q.shape[1] // groups
    rq, rk, rv = _rows(q, k, v, bits)
    bound = np.repeat(prefix_bound(rv.exponents, window), heads, axis=-1)  # (B * G, T * R)
    out = np.empty(rq.values.shape, np.float32)
    row_max = np.empty(out.shape[:2], np.float32)
    sums = np.empty(out.shape[:2], np.float32)
    cache = AttentionCache(rq, rk, rv, out, row_max, sums, window)
    for at in cache.blocks():
        for span in cache.spans():
            queries = (at, span.queries)
            s = scores(_pick(rq, queries), _pick(rk, (at, span.keys)), attention_scale(head_dim))
            row_max[queries] = masked_max(s, span.seen)
            e = weights_of(s, row_max[queries], span.seen)
            sums[queries] = softmax_sum(e)
            total = weighted_sum(e, _pick(rv, (at, span.keys)), bound[queries])
            np.divide(total, sums[queries][..., None], out=out[queries])
            if tokens <= _KEPT * head_dim:
                cache.weights[at.start, span.queries.start] = e
    return unstack(out, q), cache


@ieee
def attention_again(
    q: F32, k: F32, v: F32, kept: Sequence[F32], *, window: int, bits: int
) -> tuple[F32, AttentionCache]:
    """What `attention_forward` gave for these inputs, from the `out`, `row_max` and `row_sum` of its cache: no score is
    computed.
    """
    out, row_max, sums = kept
    return unstack(out, q), AttentionCache(*_rows(q, k, v, bits), out, row_max, sums, window)


def _rows(q: F32, k: F32, v: F32, bits: int) -> tuple[Rows, Rows, Rows]:
    """q stacked, k and v by groups, as fixed-point rows. Raises NonFinite."""
    batch, groups, tokens, head_dim = k.shape
    keys = k.reshape(batch * groups, tokens, head_dim)
    values = v.reshape(batch * groups, tokens, head_dim)
    return quantise(stack(q, groups), bits), quantise(keys, bits), quantise(values, bits)


@ieee
def attention_backward(dout: F32, cache: AttentionCache) -> tuple[F32, F32, F32]:
    """Gradients of q (B, H, T, D), k and v (B, G, T, D) from dout (B, H, T, D). Raises NonFinite."""
    batch, _, tokens, head_dim = dout.shape
    count = len(cache.out)
    stacked = stack(dout, count // max(1, batch))
    inner = row_sum(stacked * cache.out)  # (B * G, T * R)
    rows = quantise(stacked, cache.v.bits)
    divided = quantise(stacked / cache.row_sum[..., None], cache.v.bits)
    bound = suffix_bound(divided.exponents.reshape(count, tokens, cache.heads), cache.window)
    dq = np.empty_like(stacked)
    dk = np.empty((count, tokens, head_dim), np.float32)
    dv = np.empty((count, tokens, head_dim), np.float32)
    for at in cache.blocks():
        e, ds = [], []
        for span in cache.spans():
            weights, slope = _score_gradient(_pick(rows, (at, span.queries)), inner[at, span.queries], cache, at, span)
            key = _pick(cache.k, (at, span.keys))
            dq[at, span.queries] = weighted_sum(slope, key, true_bound(slope, key))
            e.append(weights)
            ds.append(slope)
        query = _pick(cache.q, at)
        dk[at] = _sum_over_queries(ds, query, _key_bound(ds, query, cache), cache)
        dv[at] = _sum_over_queries(e, _pick(divided, at), bound[at], cache)
    shape = (batch, count // max(1, batch), tokens, head_dim)
    return unstack(dq, dout), dk.reshape(shape), dv.reshape(shape)


def _score_gradient(dout: Rows, inner: F32, cache: AttentionCache, at: slice, span: Span) -> tuple[F32, F32]:
    """dout (g, n, D) and the rows' own sums with the output (g, n) -> weights e and gradients dS, each (g, n, keys)."""
    queries, keys = (at, span.queries), (at, span.keys)
    scale = attention_scale(dout.values.shape[-1])
    e = cache.weights.get((at.start, span.queries.start))
    if e is None:
        e = weights_of(scores(_pick(cache.q, queries), _pick(cache.k, keys), scale), cache.row_max[queries], span.seen)
    ds = dot(dout, _pick(cache.v, keys))  # dP; becomes dS in place
    ds -= inner[..., None]
    hide(ds, span.seen)
    ds *= e / cache.row_sum[queries][..., None]
    ds *= scale
    return e, ds


def _key_bound(ds: list[F32], query: Rows, cache: AttentionCache) -> I32:
    """(g, T) E_j of the specification, over the queries of all spans."""
    largest = np.full((len(query.values), cache.tokens), NO_PRODUCT, np.int32)
    for part, span in zip(ds, cache.spans(), strict=True):
        found = largest_products(np.swapaxes(part, -1, -2), _pick(query, (slice(None), span.queries)))
        np.maximum(largest[:, span.keys], found, out=largest[:, span.keys])
    return settle_bound(largest)


def _sum_over_queries(weights: list[F32], rows: Rows, bound: I32, cache: AttentionCache) -> F32:
    """Weighted sums (g, T, D) for each key over the rows of all queries, from the weights (g, n, keys) of each span."""
    if len(weights) == 1:
        return weighted_sum(np.swapaxes(weights[0], -1, -2), rows, bound)
    total = np.zeros((*bound.shape, rows.values.shape[-1]))
    for part, span in zip(weights, cache.spans(), strict=True):
        seen = _pick(rows, (slice(None), span.queries))
        total[:, span.keys] += unrounded_sum(np.swapaxes(part, -1, -2), seen, bound[:, span.keys])
    return round_sum(total)


def stack(x: F32, groups: int) -> F32:
    """(B, H, T, D) -> (B * G, T * R, D)."""
    batch, heads, tokens, dim = x.shape
    parts = x.reshape(batch, groups, heads // max(1, groups), tokens, dim).transpose(0, 1, 3, 2, 4)
    return parts.reshape(batch * groups, tokens * (heads // max(1, groups)), dim)


def unstack(x: F32, like: F32) -> F32:
    """(B * G, T * R, D) -> (B, H, T, D), the shape of `like`."""
    batch, heads, tokens, dim = like.shape
    groups = len(x) // max(1, batch)
    parts = x.reshape(batch, groups, tokens, heads // max(1, groups), dim).transpose(0, 1, 3, 2, 4)
    return parts.reshape(like.shape)


def _pick(rows: Rows, at: slice | tuple[slice, slice]) -> Rows:
    return Rows(rows.values[at], rows.exponents[at], rows.bits)


def scores(q: Rows, k: Rows, scale: np.float32) -> F32:
    """(g, M, T) float32: exact dot of q_i and k_j, times the scale."""
    s = dot(q, k)
    s *= scale
    return s


def masked_max(s: F32, seen: I32) -> F32:
    """(g, M) the largest visible score of each query. Overwrites the others with -inf."""
    hide(s, seen)
    words = s[..., s.shape[-1] - seen.shape[-1] :].view(np.int32)
    np.bitwise_or(words, ~seen & _MINUS_INF, out=words)
    largest: F32 = np.maximum.reduce(s, axis=-1)
    return largest


def weights_of(s: F32, row_max: F32, seen: I32) -> F32:
    """(g, M, T) e = exp(s - m), zero where the key is not visible. Overwrites s."""
    s -= row_max[..., None]
    hide(s, seen)  # of whatever size an unseen score is, exp takes its cheapest way
    exp(s, out=s)
    hide(s, seen)
    return s


def hide(x: F32, seen: I32) -> None:
    """Set x (g, M, T) to +0 where the key is not visible, in place. seen (M, n): the masks of the last n keys.

    By masking bits: a product with 0 would turn the infinity of an overflowed later score into NaN, and so let a later
    token change an earlier position.
    """
    words = x[..., x.shape[-1] - seen.shape[-1] :].view(np.int32)
    np.bitwise_and(words, seen, out=words)


def softmax_sum(e: F32) -> F32:
    """(..., T) -> (...): the exact sum of rint(e * 2^30), times 2^-30, rounded once.

    The integers are added as float64, exact in any order up to 2^23 terms: by a product with ones, the fastest sum.
    """
    terms = e * np.float32(2.0**SOFTMAX_UNIT)
    np.rint(terms, out=terms)
    total: F64 = np.matmul(terms.astype(np.float64), np.ones(terms.shape[-1]))
    total *= 2.0**-SOFTMAX_UNIT
    return total.astype(np.float32)


def prefix_bound(exponents: I32, window: int) -> I32:
    """(g, T) X_i: the largest exponent among the keys that query i sees."""
    if window == 0:
        return np.maximum.accumulate(exponents, axis=-1)
    return _sliding_max(exponents, window)


def suffix_bound(exponents: I32, window: int) -> I32:
    """(g, T) Y_j: the largest exponent of (g, T, R) among all heads and the queries that see key j."""
    over_heads: I32 = exponents.max(axis=-1)
    return prefix_bound(over_heads[:, ::-1], window)[:, ::-1]


def _sliding_max(exponents: I32, window: int) -> I32:
    """(g, T) max of exponents[max(0, i - window + 1) : i + 1]."""
    before = np.full((len(exponents), window - 1), ZERO_ROW, np.int32)
    padded = np.concatenate([before, exponents], axis=-1)
    largest: I32 = np.lib.stride_tricks.sliding_window_view(padded, window, axis=-1).max(axis=-1)
    return largest
