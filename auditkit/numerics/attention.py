"""Causal attention with grouped heads and an optional sliding window (SPEC.md section 8).

The contract is written on whole matrices: no tile size appears in it, so any fused kernel may implement it. It is
strictly causal in every bit: a value row has its own exponent, and the bound of a weight looks only at keys the query
may see.

A "group" is one sequence and one key head with the R = H / G query heads of that key head stacked: R * T queries, T
keys. The code takes as many groups at a time as fit in the cache.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from auditkit.numerics.arrays import F32, F64, I32, ieee, row_blocks
from auditkit.numerics.exact_dot import ZERO_ROW, Rows, dot, quantise
from auditkit.numerics.exact_sum import SOFTMAX_UNIT
from auditkit.numerics.exp import exp
from auditkit.numerics.row_sum import row_sum
from auditkit.numerics.weighted_sum import true_bound, weighted_sum

_GROUP_SHARE = 4  # groups are worked on in blocks of this many row_blocks: fewer, longer array operations


@dataclass(frozen=True)
class AttentionCache:
    """What backward needs: inputs as fixed-point rows, the output, and the row maxima and sums of the softmax."""

    q: Rows  # (B * G, R * T, D)
    k: Rows  # (B * G, T, D)
    v: Rows  # (B * G, T, D)
    out: F32  # (B * G, R * T, D)
    row_max: F32  # (B * G, R * T)
    row_sum: F32  # (B * G, R * T)
    window: int

    @property
    def key_shape(self) -> tuple[int, int, int]:
        """(B * G, T, D)."""
        count, tokens, head_dim = self.k.values.shape
        return count, tokens, head_dim


def attention_scale(head_dim: int) -> np.float32:
    """1 / sqrt(head_dim), computed in binary64 (both operations correctly rounded), rounded once to binary32."""
    return np.float32(1.0 / np.sqrt(np.float64(head_dim)))


@functools.lru_cache(maxsize=4)
def visible(heads: int, tokens: int, window: int) -> I32:
    """(R * T, T) int32 masks: -1 (all bits) where query i of any head sees key j, else 0.

    Query i sees key j if j <= i and (window == 0 or i - j < window).
    """
    i = np.arange(tokens)[:, None]
    j = np.arange(tokens)[None, :]
    seen = np.tile(-((j <= i) & ((i - j < window) | (window == 0))).astype(np.int32), (heads, 1))
    seen.flags.writeable = False
    return seen


@ieee
def attention_forward(q: F32, k: F32, v: F32, *, window: int, bits: int) -> tuple[F32, AttentionCache]:
    """softmax(q k^T / sqrt(D)) v, causal.

    q (B, H, T, D), k and v (B, G, T, D) float32, H a multiple of G: query head h uses key head h // (H / G).
    window: how many keys a query sees, itself included; 0 for all before it. Returns (B, H, T, D) and the cache.
    Raises NonFinite.
    """
    batch, groups, tokens, head_dim = k.shape
    heads = q.shape[1] // groups
    stacked = q.reshape(batch * groups, heads * tokens, head_dim)
    rq = quantise(stacked, bits)
    rk = quantise(k.reshape(batch * groups, tokens, head_dim), bits)
    rv = quantise(v.reshape(batch * groups, tokens, head_dim), bits)
    seen = visible(heads, tokens, window)
    out = np.empty_like(stacked)
    row_max = np.empty(stacked.shape[:2], np.float32)
    sums = np.empty(stacked.shape[:2], np.float32)
    for at in row_blocks(batch * groups, seen.size // _GROUP_SHARE):
        s = scores(_pick(rq, at), _pick(rk, at), attention_scale(head_dim))
        row_max[at] = masked_max(s, seen)
        e = weights_of(s, row_max[at], seen)
        sums[at] = softmax_sum(e)
        bound = np.tile(prefix_bound(rv.exponents[at], window), (1, heads))
        out[at] = weighted_sum(e, _pick(rv, at), bound) / sums[at][..., None]
    return out.reshape(q.shape), AttentionCache(rq, rk, rv, out, row_max, sums, window)


@ieee
def attention_backward(dout: F32, cache: AttentionCache) -> tuple[F32, F32, F32]:
    """Gradients of q (B, H, T, D), k and v (B, G, T, D) from dout (B, H, T, D). Raises NonFinite."""
    stacked: F32 = dout.reshape(cache.out.shape)
    count, tokens, head_dim = cache.key_shape
    seen = visible(stacked.shape[1] // max(1, tokens), tokens, cache.window)
    dq = np.empty_like(stacked)
    dk = np.empty((count, tokens, head_dim), np.float32)
    dv = np.empty((count, tokens, head_dim), np.float32)
    for at in row_blocks(count, seen.size // _GROUP_SHARE):
        dq[at], dk[at], dv[at] = _backward_groups(stacked[at], cache, at, seen)
    shape = (dout.shape[0], count // max(1, dout.shape[0]), tokens, head_dim)
    return dq.reshape(dout.shape), dk.reshape(shape), dv.reshape(shape)


def _backward_groups(dout: F32, cache: AttentionCache, at: slice, seen: I32) -> tuple[F32, F32, F32]:
    """dout (g, R * T, D) -> dq (g, R * T, D), dk, dv (g, T, D). The sums of dk and dv run over all R * T queries."""
    query, key, value = _pick(cache.q, at), _pick(cache.k, at), _pick(cache.v, at)
    sums = cache.row_sum[at][..., None]
    scale = attention_scale(dout.shape[-1])
    e = weights_of(scores(query, key, scale), cache.row_max[at], seen)
    ds = dot(quantise(dout, value.bits), value)  # dP; becomes dS in place
    ds -= row_sum(dout * cache.out[at])[..., None]
    hide(ds, seen)
    ds *= e / sums
    ds *= scale
    dq = weighted_sum(ds, key, true_bound(ds, key))
    ds_t = np.swapaxes(ds, -1, -2)
    dk = weighted_sum(ds_t, query, true_bound(ds_t, query))
    rows = quantise(dout / sums, value.bits)
    bound = suffix_bound(rows.exponents.reshape(len(dout), -1, key.values.shape[1]), cache.window)
    return dq, dk, weighted_sum(np.swapaxes(e, -1, -2), rows, bound)


def _pick(rows: Rows, at: slice) -> Rows:
    return Rows(rows.values[at], rows.exponents[at], rows.bits)


def scores(q: Rows, k: Rows, scale: np.float32) -> F32:
    """(g, M, T) float32: exact dot of q_i and k_j, times the scale."""
    s = dot(q, k)
    s *= scale
    return s


def masked_max(s: F32, seen: I32) -> F32:
    """(g, M) the largest visible score of each query."""
    largest: F32 = np.where(seen != 0, s, np.float32(-np.inf)).max(axis=-1)
    return largest


def weights_of(s: F32, row_max: F32, seen: I32) -> F32:
    """(g, M, T) e = exp(s - m), zero where the key is not visible. Overwrites s."""
    s -= row_max[..., None]
    hide(s, seen)
    exp(s, out=s)
    hide(s, seen)
    return s


def hide(x: F32, seen: I32) -> None:
    """Set x (g, M, T) to +0 where the key is not visible, in place.

    By masking bits: a product with 0 would turn the infinity of an overflowed later score into NaN, and so let a later
    token change an earlier position.
    """
    words = x.view(np.int32)
    np.bitwise_and(words, seen, out=words)


def softmax_sum(e: F32) -> F32:
    """(..., T) -> (...): the exact sum of rint(e * 2^30), times 2^-30, rounded once.

    The integers are added as float64, exact in any order up to 2^23 terms.
    """
    terms = e * np.float32(2.0**SOFTMAX_UNIT)
    np.rint(terms, out=terms)
    total: F64 = np.add.reduce(terms, axis=-1, dtype=np.float64)
    total *= 2.0**-SOFTMAX_UNIT
    return total.astype(np.float32)


def prefix_bound(exponents: I32, window: int) -> I32:
    """(g, T) X_i: the largest exponent among the keys that query i sees."""
    if window == 0:
        return np.maximum.accumulate(exponents, axis=-1)
    return _sliding_max(exponents, window)


def suffix_bound(exponents: I32, window: int) -> I32:
    """(g, T) Y_j: the largest exponent of (g, R, T) among all heads and the queries that see key j."""
    over_heads: I32 = exponents.max(axis=1)
    return prefix_bound(over_heads[:, ::-1], window)[:, ::-1]


def _sliding_max(exponents: I32, window: int) -> I32:
    """(g, T) max of exponents[max(0, i - window + 1) : i + 1]."""
    before = np.full((len(exponents), window - 1), ZERO_ROW, np.int32)
    padded = np.concatenate([before, exponents], axis=-1)
    largest: I32 = np.lib.stride_tricks.sliding_window_view(padded, window, axis=-1).max(axis=-1)
    return largest
