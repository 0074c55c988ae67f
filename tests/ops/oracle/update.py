"""Gradient norm and clip (section 13), AdamW (14), ordered fold (17)."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from tests.ops.oracle.rounding import Array, NoResult, ieee, real, rint, rn64, rn64_sqrt, two_to

F32 = np.float32
ONE = F32(1)


def fold(terms: Sequence[np.float32], radices: Sequence[int]) -> np.float32:
    """Section 17: the levels one after the other, each as a list."""
    level = list(terms)
    with ieee():
        for radix in (*radices, len(level)):
            groups = [level[first : first + radix] for first in range(0, len(level), radix)]
            level = [functools.reduce(lambda a, b: F32(a + b), group) for group in groups]
    return level[0]


def squares(grad: Array) -> int:
    """Section 13: Q of one tensor."""
    total = 0
    with ieee():
        for g in grad.reshape(-1):
            x = real(g * g) * two_to(30)
            if x >= two_to(62):
                raise NoResult(f"{g} squared")
            hi = rint(x)
            total += (hi << 32) + rint((x - hi) * two_to(32))
    return total


def norm(totals: Iterable[int]) -> np.float32:
    """Section 13."""
    total = sum(totals)
    if total >= two_to(94):
        raise NoResult(f"a squared norm of {total}")
    return F32(rn64_sqrt(rn64(total * two_to(-62))))


def clip_factor(norm32: np.float32, clip_norm: np.float32) -> np.float32:
    """Section 13."""
    return F32(clip_norm / norm32) if clip_norm > 0 and norm32 > clip_norm else ONE


def pow_int(base: float, exponent: int) -> float:
    """Section 6.5, in binary64."""
    result = 1.0
    while exponent > 0:
        if exponent % 2:
            result = result * base
        exponent //= 2
        if exponent > 0:
            base = base * base
    return result


class Scalars(NamedTuple):
    """The binary32 scalars of section 14."""

    beta1: np.float32
    beta2: np.float32
    a1: np.float32
    a2: np.float32
    c2: np.float32
    rate: np.float32
    decay: np.float32
    eps: np.float32


def scalars(lr: np.float32, beta1: float, beta2: float, eps: float, weight_decay: float, t: int) -> Scalars:
    """Section 14, for t = N + 1: binary64 operations, each result rounded once."""

    c2 = rn64_sqrt(less(1.0, pow_int(beta2, t)))
    rate = rn64(Fraction(float(lr)) / Fraction(less(1.0, pow_int(beta1, t))))
    values = (beta1, beta2, less(1.0, beta1), less(1.0, beta2), c2, rate, decay_of(lr, weight_decay), eps)
    return Scalars(*(F32(v) for v in values))


def less(a: float, b: float) -> float:
    """a - b in binary64."""
    return rn64(Fraction(a) - Fraction(b))


def decay_of(lr: np.float32, weight_decay: float) -> np.float32:
    """decay of section 14."""
    return F32(less(1.0, rn64(Fraction(float(lr)) * Fraction(weight_decay))))


def second_moment(v: np.float32, g: np.float32, s: Scalars) -> np.float32:
    """The line of v."""
    return F32(v * s.beta2 + (g * g) * s.a2)


def change_of(m: np.float32, v: np.float32, s: Scalars) -> np.float32:
    """What the line of p takes away."""
    return F32((m / (np.sqrt(v) / s.c2 + s.eps)) * s.rate)


def less_change(p: np.float32, decay: np.float32, change: np.float32) -> np.float32:
    """The rest of the line of p."""
    return F32(p * decay - change)


def adamw(
    p: Array, m: Array, v: Array, grad: Array, clip: np.float32, s: Scalars, *, decayed: bool
) -> tuple[Array, Array, Array]:
    """Section 14, element by element over flat arrays."""
    p, m, v = p.copy(), m.copy(), v.copy()
    decay = s.decay if decayed else ONE
    with ieee():
        for i, raw in enumerate(grad):
            g = raw * clip
            m[i] = m[i] * s.beta1 + s.a1 * g
            v[i] = second_moment(v[i], g, s)
            p[i] = less_change(p[i], decay, change_of(m[i], v[i], s))
    return p, m, v
