"""RMSNorm (section 7), rotary position embedding (9), SwiGLU (10), embedding (11), cross-entropy (12)."""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from tests.ops import elementary_scalar as elementary
from tests.ops.oracle.rounding import Array, ieee, rn64
from tests.ops.oracle.sums import exact, fixed, from_fixed, row_sum

F32 = np.float32
ONE = F32(1)


def exp(x: np.float32) -> np.float32:
    """Section 6."""
    return F32(elementary.exp(float(x)))


def log(x: np.float32) -> np.float32:
    """Section 6."""
    return F32(elementary.log(float(x)))


def mean_of(total: np.float32, count: np.float32) -> np.float32:
    """Section 7."""
    return F32(total / count)


def rms_norm(x: Array, weight: Array, eps: np.float32) -> tuple[Array, Array, Array]:
    """Section 7: x (N, C) gives y (N, C), rstd (N,), xhat (N, C)."""
    y, rstds, xhats = np.empty_like(x), np.empty(x.shape[0], F32), np.empty_like(x)
    count = F32(x.shape[1])
    with ieee():
        for n, row in enumerate(x):
            mean = mean_of(row_sum([v * v for v in row]), count)
            rstds[n] = ONE / np.sqrt(mean + eps)
            for i, v in enumerate(row):
                xhats[n, i] = v * rstds[n]
                y[n, i] = xhats[n, i] * weight[i]
    return y, rstds, xhats


def rms_norm_backward(dy: Array, weight: Array, rstds: Array, xhats: Array) -> tuple[Array, Array]:
    """Section 7: dx (N, C) and dw (C,) as integers of unit 56."""
    dx = np.empty_like(dy)
    dw: list[list[int]] = [[] for _ in range(dy.shape[1])]
    count = F32(dy.shape[1])
    with ieee():
        for n, row in enumerate(dy):
            g = [v * w for v, w in zip(row, weight, strict=True)]
            mean = mean_of(row_sum([a * b for a, b in zip(g, xhats[n], strict=True)]), count)
            for i in range(len(g)):
                dx[n, i] = (g[i] - xhats[n, i] * mean) * rstds[n]
                dw[i].append(fixed(row[i] * xhats[n, i], 56))
    return dx, np.array([exact(terms) for terms in dw], np.int64)


def rope_angles(tokens: int, head_dim: int, theta: float) -> tuple[Array, Array]:
    """Section 9: c and s, (T, D/2) each."""
    c, s = np.empty((tokens, head_dim // 2), F32), np.empty((tokens, head_dim // 2), F32)
    for i in range(head_dim // 2):
        frequency = elementary.exp64(-((float(i) * 2.0 / float(head_dim)) * elementary.log64(theta)))
        for t in range(tokens):
            sine, cosine = elementary.sin_cos64(float(t) * frequency)
            c[t, i], s[t, i] = F32(cosine), F32(sine)
    return c, s


def rope(x: Array, theta: float, *, backward: bool = False) -> Array:
    """Section 9: x (T, D), position t is row t; with `backward` x is dy and the result dx."""
    tokens, width = x.shape
    half = width // 2
    c, s = rope_angles(tokens, width, theta)
    y = np.empty_like(x)
    with ieee():
        for t in range(tokens):
            for i in range(half):
                a, b = x[t, i], x[t, i + half]
                if backward:
                    y[t, i] = a * c[t, i] + b * s[t, i]
                    y[t, i + half] = b * c[t, i] - a * s[t, i]
                else:
                    y[t, i] = a * c[t, i] - b * s[t, i]
                    y[t, i + half] = b * c[t, i] + a * s[t, i]
    return y


def _sigmoid(a: np.float32) -> np.float32:
    t = exp(-abs(a))
    return ONE / (ONE + t) if a >= 0 else t / (ONE + t)


def swiglu(a: Array, b: Array) -> Array:
    """Section 10: gate and up (N,) give y."""
    with ieee():
        return np.array([(g * _sigmoid(g)) * u for g, u in zip(a, b, strict=True)], F32)


def swiglu_backward(a: Array, b: Array, dy: Array) -> tuple[Array, Array]:
    """Section 10: the gradients of gate and up."""
    da, db = np.empty_like(a), np.empty_like(b)
    with ieee():
        for i, (g, u, d) in enumerate(zip(a, b, dy, strict=True)):
            sigmoid = _sigmoid(g)
            db[i] = (g * sigmoid) * d
            da[i] = (d * u) * (((ONE - sigmoid) * g + ONE) * sigmoid)
    return da, db


def embedding_backward(dx: Array, tokens: Array, vocab: int) -> Array:
    """Section 11: dx (N, C), tokens (N,) give (V, C) integers of unit 56."""
    out: list[list[list[int]]] = [[[] for _ in range(dx.shape[1])] for _ in range(vocab)]
    for row, token in zip(dx, tokens, strict=True):
        for c, value in enumerate(row):
            out[int(token)][c].append(fixed(value, 56))
    return np.array([[exact(terms) for terms in row] for row in out], np.int64).reshape(vocab, dx.shape[1])


def denominator(e: list[np.float32]) -> np.float32:
    """Z of section 12."""
    return from_fixed(exact(fixed(v, 30) for v in e), 30)


def loss_of(m: np.float32, big_l: np.float32, x_y: np.float32) -> np.float32:
    """The loss of section 12 without its z-loss."""
    return F32(big_l + (m - x_y))


def cross_entropy(x: Array, targets: Array, z_loss: float, total: int) -> tuple[int, Array]:
    """Section 12: logits (N, V), targets (N,) give the loss sum (unit 32) and dx (N, V)."""
    z, scale = F32(z_loss), F32(rn64(Fraction(1, total)))
    losses, dx = [], np.empty_like(x)
    with ieee():
        for n, row in enumerate(x):
            y = int(targets[n])
            m = max(row)
            e = [exp(v - m) for v in row]
            total_e = denominator(e)
            big_l = log(total_e)
            lse = m + big_l
            losses.append(fixed(loss_of(m, big_l, row[y]) + z * (lse * lse), 32))
            slope = ONE + lse * (F32(2) * z)
            for j, v in enumerate(e):
                dx[n, j] = v * (((ONE / total_e) * slope) * scale)
            dx[n, y] = dx[n, y] - scale
    return exact(losses), dx


def mean_loss(loss_sum: int, total: int) -> np.float32:
    """Section 12: the recorded loss."""
    return F32(rn64(Fraction(loss_sum, total << 32)))
