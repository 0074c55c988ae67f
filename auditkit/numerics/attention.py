"""Causal attention with grouped heads and an optional sliding window (SPEC.md section 8).

The contract is written on whole matrices: no tile size appears in it, so any fused kernel may implement it. It is strictly
causal in every bit: a value row has its own exponent, and the bound of a weight looks only at keys the query may see.

The code works on one sequence and one key head at a time, with the R = H / G query heads of that key head stacked: a
"group" has R * T queries and T keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from auditkit.numerics.arrays import F32, I32
from auditkit.numerics.exact_dot import ZERO_ROW, Rows, dot, quantise
from auditkit.numerics.exact_sum import SOFTMAX_UNIT
from auditkit.numerics.exp import exp
from auditkit.numerics.row_sum import row_sum
from auditkit.numerics.weighted_sum import true_bound, weighted_sum


@dataclass(frozen=True)
class AttentionCache:
    """What backward needs: inputs as fixed-point rows, the output, and the row maxima and sums of the softmax."""

    q: Rows  # (B, G, R * T, D)
    k: Rows  # (B, G, T, D)
    v: Rows  # (B, G, T, D)
    out: F32  # (B, G, R * T, D)
    row_max: F32  # (B, G, R * T)
    row_sum: F32  # (B, G, R * T)
    window: int


def attention_scale(head_dim: int) -> np.float32:
    """1 / sqrt(head_dim), computed in binary64 (both operations correctly rounded), rounded once to binary32."""
    return np.float32(1.0 / np.sqrt(np.float64(head_dim)))


def visible(heads: int, tokens: int, window: int) -> F32:
    """(R * T, T) float32: 1 where query i of any head sees key j, that is j <= i and (no window or i - j < window), else 0."""
    i = np.arange(tokens)[:, None]
    j = np.arange(tokens)[None, :]
    seen = (j <= i) & ((i - j < window) | (window == 0))
    return np.tile(seen.astype(np.float32), (heads, 1))


def attention_forward(q: F32, k: F32, v: F32, *, window: int, bits: int) -> tuple[F32, AttentionCache]:
    """softmax(q k^T / sqrt(D)) v, causal.

    q (B, H, T, D), k and v (B, G, T, D) float32, H a multiple of G: query head h uses key head h // (H / G).
    window: how many keys a query sees, itself included; 0 for all before it. Returns (B, H, T, D) and the cache.
    Raises NonFinite.
    """
    batch, groups, tokens, head_dim = k.shape
    stacked = q.reshape(batch, groups, -1, head_dim)  # (B, G, R * T, D)
    rq, rk, rv = quantise(stacked, bits), quantise(k, bits), quantise(v, bits)
    heads = stacked.shape[2] // max(1, tokens)
    seen = visible(heads, tokens, window)
    out = np.empty_like(stacked)
    row_max = np.empty(stacked.shape[:3], np.float32)
    sums = np.empty(stacked.shape[:3], np.float32)
    for at in _each_group(batch, groups):
        s = scores(_pick(rq, at), _pick(rk, at), attention_scale(head_dim))
        row_max[at] = masked_max(s, seen)
        e = weights_of(s, row_max[at], seen)
        sums[at] = softmax_sum(e)
        bound = np.tile(prefix_bound(rv.exponents[at], window), heads)
        out[at] = weighted_sum(e, _pick(rv, at), bound) / sums[at][:, None]
    return out.reshape(q.shape), AttentionCache(rq, rk, rv, out, row_max, sums, window)


def attention_backward(dout: F32, cache: AttentionCache) -> tuple[F32, F32, F32]:
    """Gradients of q (B, H, T, D), k and v (B, G, T, D) from dout (B, H, T, D). Raises NonFinite."""
    batch, groups, tokens, head_dim = cache.k.values.shape
    stacked = dout.reshape(cache.out.shape)
    seen = visible(stacked.shape[2] // max(1, tokens), tokens, cache.window)
    dq = np.empty_like(stacked)
    dk = np.empty(cache.k.values.shape, np.float32)
    dv = np.empty(cache.v.values.shape, np.float32)
    for at in _each_group(batch, groups):
        dq[at], dk[at], dv[at] = _backward_group(stacked[at], cache, at, seen)
    return dq.reshape(dout.shape), dk, dv


def _backward_group(dout: F32, cache: AttentionCache, at: tuple[int, int], seen: F32) -> tuple[F32, F32, F32]:
    """dout (R * T, D) -> dq (R * T, D), dk (T, D), dv (T, D). The sums of dk and dv run over all R * T queries."""
    query, key, value = _pick(cache.q, at), _pick(cache.k, at), _pick(cache.v, at)
    sums = cache.row_sum[at]
    scale = attention_scale(dout.shape[1])
    e = weights_of(scores(query, key, scale), cache.row_max[at], seen)
    ds = dot(quantise(dout, value.bits), value)  # dP; becomes dS in place
    ds -= row_sum(dout * cache.out[at])[:, None]
    ds *= e / sums[:, None]  # zero where the key is not visible, for e is zero there
    ds *= scale
    dq = weighted_sum(ds, key, true_bound(ds, key))
    dk = weighted_sum(ds.T, query, true_bound(ds.T, query))
    rows = quantise(dout / sums[:, None], value.bits)
    tokens = key.values.shape[0]
    dv = weighted_sum(e.T, rows, suffix_bound(rows.exponents.reshape(-1, tokens), cache.window))
    return dq, dk, dv


def _each_group(batch: int, groups: int) -> Iterator[tuple[int, int]]:
    return ((b, g) for b in range(batch) for g in range(groups))


def _pick(rows: Rows, at: tuple[int, int]) -> Rows:
    return Rows(rows.values[at], rows.exponents[at], rows.bits)


def scores(q: Rows, k: Rows, scale: np.float32) -> F32:
    """(M, T) float32: exact dot of q_i and k_j, times the scale."""
    s = dot(q, k)
    s *= scale
    return s


def masked_max(s: F32, seen: F32) -> F32:
    """(M,) the largest visible score of each query."""
    largest: F32 = np.where(seen != 0, s, np.float32(-np.inf)).max(axis=1)
    return largest


def weights_of(s: F32, row_max: F32, seen: F32) -> F32:
    """(M, T) e = exp(s - m), zero where the key is not visible. Overwrites s."""
    s -= row_max[:, None]
    s *= seen  # what is not visible becomes a harmless 0 before exp and is zeroed after it
    exp(s, out=s)
    s *= seen
    return s


def softmax_sum(e: F32) -> F32:
    """(M,) l: the exact sum of rint(e * 2^30), times 2^-30, rounded once. In float64 any order is exact up to 2^23 keys."""
    terms = e * np.float32(2.0**SOFTMAX_UNIT)
    np.rint(terms, out=terms)
    total = np.add.reduce(terms, axis=1, dtype=np.float64)
    total *= 2.0**-SOFTMAX_UNIT
    return total.astype(np.float32)


def prefix_bound(exponents: I32, window: int) -> I32:
    """(T,) X_i: the largest exponent among the keys that query i sees."""
    if window == 0:
        return np.maximum.accumulate(exponents)
    return _sliding_max(exponents, window)


def suffix_bound(exponents: I32, window: int) -> I32:
    """(T,) Y_j: the largest exponent of (R, T) among all heads and the queries that see key j."""
    over_heads: I32 = exponents.max(axis=0)
    return prefix_bound(over_heads[::-1], window)[::-1]


def _sliding_max(exponents: I32, window: int) -> I32:
    """(T,) max of exponents[max(0, i - window + 1) : i + 1]."""
    padded = np.concatenate([np.full(window - 1, ZERO_ROW, np.int32), exponents])
    largest: I32 = np.lib.stride_tricks.sliding_window_view(padded, window).max(axis=1)
    return largest
