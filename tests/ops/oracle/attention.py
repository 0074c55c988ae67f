"""Causal attention (section 8), one batch element and one key head at a time."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from tests.ops.oracle.layers import exp
from tests.ops.oracle.rounding import Array, ieee, rn64, rn64_sqrt
from tests.ops.oracle.sums import Row, dot_rows, exact, fixed, from_fixed, round_row, row_sum, true_bound, weighted_sum

F32 = np.float32


class Forward(NamedTuple):
    """What the backward pass needs: weights e and denominators l by (head, query), the output."""

    e: dict[tuple[int, int], dict[int, np.float32]]
    total: dict[tuple[int, int], np.float32]
    out: Array  # (R, T, D)


def seen_keys(i: int, window: int) -> list[int]:
    """The keys that query i sees."""
    return [j for j in range(i + 1) if window == 0 or i - j < window]


def scale_of(head_dim: int) -> np.float32:
    """scale of section 8."""
    return F32(rn64(Fraction(1) / Fraction(rn64_sqrt(float(head_dim)))))


def bound_of(rows: Any, seen: Sequence[Any]) -> int:
    """X_i (seen: keys) or Y_j (seen: pairs of a head and a query) of section 8."""
    return int(max(rows[n].exponent for n in seen))


def forward(q: Array, k: Array, v: Array, window: int, bits: int) -> tuple[Array, list[Forward]]:
    """q (B, H, T, D), k and v (B, G, T, D) give O and what backward takes, one per (sequence, key head)."""
    out, parts = np.empty_like(q), []
    repeats = q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for g in range(k.shape[1]):
            heads = slice(g * repeats, (g + 1) * repeats)
            part = _forward_group(q[b, heads], k[b, g], v[b, g], window, bits)
            out[b, heads] = part.out
            parts.append(part)
    return out, parts


def _forward_group(q: Array, k: Array, v: Array, window: int, bits: int) -> Forward:
    heads, tokens, width = q.shape
    keys, values = [round_row(r, bits) for r in k], [round_row(r, bits) for r in v]
    scale, result = scale_of(width), Forward({}, {}, np.empty_like(q))
    with ieee():
        for h in range(heads):
            for i in range(tokens):
                row, seen = round_row(q[h, i], bits), seen_keys(i, window)
                s = {j: dot_rows(row, keys[j], bits) * scale for j in seen}
                m = max(s.values())
                e = {j: exp(s[j] - m) for j in seen}
                denominator = from_fixed(exact(fixed(x, 30) for x in e.values()), 30)
                bound = bound_of(values, seen)
                summed = weighted_sum([e[j] for j in seen], [values[j] for j in seen], bound, bits, width)
                result.out[h, i] = [x / denominator for x in summed]
                result.e[h, i], result.total[h, i] = e, denominator
    return result


def backward(
    dout: Array, q: Array, k: Array, v: Array, parts: list[Forward], window: int, bits: int
) -> tuple[Array, Array, Array]:
    """dO (B, H, T, D) gives dQ, dK, dV."""
    dq, dk, dv = np.empty_like(q), np.empty_like(k), np.empty_like(v)
    repeats, groups = q.shape[1] // k.shape[1], k.shape[1]
    for b in range(q.shape[0]):
        for g in range(groups):
            heads = slice(g * repeats, (g + 1) * repeats)
            part = parts[b * groups + g]
            ds = _score_gradient(dout[b, heads], q[b, heads], v[b, g], part, window, bits)
            dq[b, heads] = _query_gradient(ds, k[b, g], dq[b, heads].shape, window, bits)
            dk[b, g] = _key_gradient(ds, q[b, heads], window, bits)
            dv[b, g] = _value_gradient(dout[b, heads], part, window, bits)
    return dq, dk, dv


Scores = dict[tuple[int, int, int], np.float32]  # by head, query, key


def _score_gradient(dout: Array, q: Array, v: Array, part: Forward, window: int, bits: int) -> Scores:
    heads, tokens, width = q.shape
    values, scale, ds = [round_row(r, bits) for r in v], scale_of(width), {}
    with ieee():
        for h in range(heads):
            for i in range(tokens):
                row = round_row(dout[h, i], bits)
                d = row_sum([a * b for a, b in zip(dout[h, i], part.out[h, i], strict=True)])
                for j in seen_keys(i, window):
                    dp = dot_rows(row, values[j], bits)
                    ds[h, i, j] = ((dp - d) * (part.e[h, i][j] / part.total[h, i])) * scale
    return ds


def _query_gradient(ds: Scores, k: Array, shape: tuple[int, ...], window: int, bits: int) -> Array:
    keys, out = [round_row(r, bits) for r in k], np.empty(shape, F32)
    for h in range(shape[0]):
        for i in range(shape[1]):
            seen = seen_keys(i, window)
            weights, rows = [ds[h, i, j] for j in seen], [keys[j] for j in seen]
            out[h, i] = weighted_sum(weights, rows, true_bound(weights, rows), bits, shape[2])
    return out


def _seeing(heads: int, tokens: int, j: int, window: int) -> list[tuple[int, int]]:
    return [(h, i) for h in range(heads) for i in range(tokens) if j in seen_keys(i, window)]


def _key_gradient(ds: Scores, q: Array, window: int, bits: int) -> Array:
    heads, tokens, width = q.shape
    rows = {(h, i): round_row(q[h, i], bits) for h in range(heads) for i in range(tokens)}
    out = np.empty((tokens, width), F32)
    for j in range(tokens):
        pairs = _seeing(heads, tokens, j, window)
        weights, seen = [ds[h, i, j] for h, i in pairs], [rows[p] for p in pairs]
        out[j] = weighted_sum(weights, seen, true_bound(weights, seen), bits, width)
    return out


def _value_gradient(dout: Array, part: Forward, window: int, bits: int) -> Array:
    heads, tokens, width = dout.shape
    rows: dict[tuple[int, int], Row] = {}
    with ieee():
        for h in range(heads):
            for i in range(tokens):
                rows[h, i] = round_row([x / part.total[h, i] for x in dout[h, i]], bits)
    out = np.empty((tokens, width), F32)
    for j in range(tokens):
        pairs = _seeing(heads, tokens, j, window)
        seen = [rows[p] for p in pairs]
        bound = bound_of(rows, pairs)
        out[j] = weighted_sum([part.e[p][j] for p in pairs], seen, bound, bits, width)
    return out
