"""Causal attention of a recipe whose product is f32 (SPEC.md section 16): section 8 with f32 dots and plain sums.

A key that a query does not see is no term of the query's sums. Here its weight is +0 instead: rows are finite, so its
product is a zero, and adding a zero of either sign changes no accumulator, for none is ever -0.

A group is that of auditkit.numerics.attention, but its queries are stacked head by head, as their sums run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from auditkit.numerics.arrays import F32, I32, ieee, row_blocks
from auditkit.numerics.attention import attention_scale, hide, masked_max, softmax_sum, visible, weights_of
from auditkit.numerics.f32_dot import F32Rows, dot, rows, rows_t
from auditkit.numerics.row_sum import row_sum

_GROUP_SHARE = 4  # as in auditkit.numerics.attention


@dataclass(frozen=True)
class F32AttentionCache:
    """What backward needs: the inputs, the output, and the row maxima and sums of the softmax."""

    q: F32  # (B * G, R * T, D)
    k: F32  # (B * G, T, D)
    v: F32  # (B * G, T, D)
    out: F32  # (B * G, R * T, D)
    row_max: F32  # (B * G, R * T)
    row_sum: F32  # (B * G, R * T)
    window: int


@ieee
def attention_forward(q: F32, k: F32, v: F32, *, window: int) -> tuple[F32, F32AttentionCache]:
    """softmax(q k^T / sqrt(D)) v, causal: shapes and window as in auditkit.numerics.attention. Raises NonFinite."""
    batch, groups, tokens, _ = k.shape
    heads = q.shape[1] // groups
    stacked, keys, values = _values(q, k, v)
    seen = _seen(heads, tokens, window)
    out = np.empty_like(stacked)
    row_max = np.empty(stacked.shape[:2], np.float32)
    sums = np.empty(stacked.shape[:2], np.float32)
    for at in row_blocks(batch * groups, seen.size // _GROUP_SHARE):
        s = _scores(stacked[at], keys[at])
        row_max[at] = masked_max(s, seen)
        e = rows(weights_of(s, row_max[at], seen))
        sums[at] = softmax_sum(e.values)
        out[at] = dot(e, rows_t(values[at])) / sums[at][..., None]
    return out.reshape(q.shape), F32AttentionCache(stacked, keys, values, out, row_max, sums, window)


@ieee
def attention_again(q: F32, k: F32, v: F32, kept: Sequence[F32], *, window: int) -> tuple[F32, F32AttentionCache]:
    """What `attention_forward` gave for these inputs, from the `out`, `row_max` and `row_sum` of its cache."""
    out, row_max, sums = kept
    return out.reshape(q.shape), F32AttentionCache(*_values(q, k, v), out, row_max, sums, window)


def _values(q: F32, k: F32, v: F32) -> tuple[F32, F32, F32]:
    """q (B * G, R * T, D), k and v (B * G, T, D). Raises NonFinite."""
    batch, groups, tokens, head_dim = k.shape
    stacked = q.reshape(batch * groups, q.shape[1] // groups * tokens, head_dim)
    keys, values = (x.reshape(batch * groups, tokens, head_dim) for x in (k, v))
    return rows(stacked).values, rows(keys).values, rows(values).values


@ieee
def attention_backward(dout: F32, cache: F32AttentionCache) -> tuple[F32, F32, F32]:
    """Gradients of q (B, H, T, D), k and v (B, G, T, D) from dout (B, H, T, D). Raises NonFinite."""
    stacked: F32 = dout.reshape(cache.out.shape)
    count, tokens, head_dim = cache.k.shape
    seen = _seen(stacked.shape[1] // max(1, tokens), tokens, cache.window)
    dq = np.empty_like(stacked)
    dk = np.empty(cache.k.shape, np.float32)
    dv = np.empty(cache.k.shape, np.float32)
    for at in row_blocks(count, seen.size // _GROUP_SHARE):
        dq[at], dk[at], dv[at] = _backward_groups(stacked[at], cache, at, seen)
    shape = (dout.shape[0], count // max(1, dout.shape[0]), tokens, head_dim)
    return dq.reshape(dout.shape), dk.reshape(shape), dv.reshape(shape)


def _backward_groups(dout: F32, cache: F32AttentionCache, at: slice, seen: I32) -> tuple[F32, F32, F32]:
    """dout (g, R * T, D) -> dq (g, R * T, D), dk, dv (g, T, D). Sums over queries run over all R * T, head by head."""
    query, key, value = cache.q[at], cache.k[at], cache.v[at]
    sums = cache.row_sum[at][..., None]
    e = weights_of(_scores(query, key), cache.row_max[at], seen)
    ds = dot(rows(dout), F32Rows(value))  # dP; becomes dS in place
    ds -= row_sum(dout * cache.out[at])[..., None]
    hide(ds, seen)
    ds *= e / sums
    ds *= attention_scale(dout.shape[-1])
    dq = dot(rows(ds), rows_t(key))
    dk = dot(rows_t(ds), rows_t(query))
    return dq, dk, dot(rows_t(e), rows_t(dout / sums))


def _seen(heads: int, tokens: int, window: int) -> I32:
    """(R * T, T) masks of all queries, head by head."""
    return np.tile(visible(range(tokens), range(tokens), window), (heads, 1))


def _scores(query: F32, key: F32) -> F32:
    """(g, R * T, T) scaled scores, also of keys that are not visible."""
    s = dot(F32Rows(query), F32Rows(key))
    s *= attention_scale(key.shape[-1])
    return s
