"""The product f32 (section 16): one scalar after the other, and only the pairs that see each other."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tests.ops.oracle.attention import F32, Forward, scale_of, seen_keys
from tests.ops.oracle.layers import exp
from tests.ops.oracle.rounding import ZERO, Array, NoResult, ieee
from tests.ops.oracle.sums import exact, fixed, from_fixed, row_sum


def dot(a: Iterable[np.float32], b: Iterable[np.float32]) -> np.float32:
    """acc = acc + a_k * b_k, both rounded; an operand that is not finite has no result."""
    acc = ZERO
    with ieee():
        for x, y in zip(a, b, strict=True):
            if not (np.isfinite(x) and np.isfinite(y)):
                raise NoResult(f"{x} * {y}")
            acc = F32(acc + F32(x * y))
    return acc


def product(x: Array, y: Array) -> Array:
    """The matrix product X . Y^T: (M, K) and (N, K) give (M, N)."""
    return np.array([[dot(a, b) for b in y] for a in x], np.float32).reshape(len(x), len(y))


def forward(q: Array, k: Array, v: Array, window: int) -> tuple[Array, list[Forward]]:
    """q (B, H, T, D), k and v (B, G, T, D) give O and what backward takes, one per (sequence, key head)."""
    out, parts = np.empty_like(q), []
    repeats = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for g in range(k.shape[1]):
            heads = slice(g * repeats, (g + 1) * repeats)
            parts.append(_forward_group(q[b, heads], k[b, g], v[b, g], window))
            out[b, heads] = parts[-1].out
    return out, parts


def _forward_group(q: Array, k: Array, v: Array, window: int) -> Forward:
    scale, result = scale_of(q.shape[2]), Forward({}, {}, np.empty_like(q))
    with ieee():
        for h, i in np.ndindex(q.shape[:2]):
            seen = seen_keys(i, window)
            s = {j: dot(q[h, i], k[j]) * scale for j in seen}
            m = max(s.values())
            e = {j: exp(s[j] - m) for j in seen}
            total = from_fixed(exact(fixed(x, 30) for x in e.values()), 30)
            result.out[h, i] = [dot(e.values(), v[seen, d]) / total for d in range(q.shape[2])]
            result.e[h, i], result.total[h, i] = e, total
    return result


def backward(
    dout: Array, q: Array, k: Array, v: Array, parts: list[Forward], window: int
) -> tuple[Array, Array, Array]:
    """dO (B, H, T, D) gives dQ, dK, dV."""
    dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(v)
    repeats, groups = q.shape[1] // k.shape[1], k.shape[1]
    for b in range(q.shape[0]):
        for g in range(groups):
            heads, part = slice(g * repeats, (g + 1) * repeats), parts[b * groups + g]
            found = _backward_group(dout[b, heads], q[b, heads], k[b, g], v[b, g], part, window)
            dq[b, heads], dk[b, g], dv[b, g] = found
    return dq, dk, dv


def _backward_group(
    dout: Array, q: Array, k: Array, v: Array, part: Forward, window: int
) -> tuple[Array, Array, Array]:
    heads, tokens, width = q.shape
    scale, ds, g = scale_of(width), {}, np.empty_like(q)
    dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(v)
    with ieee():
        for h, i in np.ndindex(heads, tokens):
            seen, total = seen_keys(i, window), part.total[h, i]
            d = row_sum([a * b for a, b in zip(dout[h, i], part.out[h, i], strict=True)])
            for j in seen:
                ds[h, i, j] = ((dot(dout[h, i], v[j]) - d) * (part.e[h, i][j] / total)) * scale
            dq[h, i] = [dot([ds[h, i, j] for j in seen], k[seen, n]) for n in range(width)]
            g[h, i] = dout[h, i] / total
        for j, n in np.ndindex(tokens, width):
            pairs = [(h, i) for h, i in np.ndindex(heads, tokens) if j in seen_keys(i, window)]
            dk[j, n] = dot([ds[h, i, j] for h, i in pairs], _column(q, pairs, n))
            dv[j, n] = dot([part.e[p][j] for p in pairs], _column(g, pairs, n))
    return dq, dk, dv


def _column(x: Array, pairs: list[tuple[int, int]], n: int) -> list[np.float32]:
    return [F32(x[h, i, n]) for h, i in pairs]
