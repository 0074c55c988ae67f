"""RN32, RN64, rint and frexp of section 0 (notation) over exact fractions, and binary32 scalars (section 1)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
ZERO = np.float32(0)


class NoResult(Exception):
    """The step has no result (section 1, rule 4)."""


@contextmanager
def ieee() -> Iterator[None]:
    """Binary32 scalars overflow to infinity in silence, as IEEE 754 arithmetic does."""
    with np.errstate(all="ignore"):
        yield


def two_to(exponent: int) -> Fraction:
    """2^exponent, exact."""
    return Fraction(1 << exponent) if exponent >= 0 else Fraction(1, 1 << -exponent)


def real(x: np.floating[Any] | float) -> Fraction:
    """The real number that a binary32 or binary64 value stands for."""
    if not math.isfinite(float(x)):
        raise NoResult(f"{x} is not finite")
    return Fraction(float(x))


def rint(x: Fraction) -> int:
    """To the nearest integer, ties to even."""
    floor, rest = divmod(x.numerator, x.denominator)
    twice = 2 * rest
    up = twice > x.denominator or (twice == x.denominator and floor % 2 == 1)
    return floor + int(up)


def frexp(a: Fraction) -> int:
    """The integer e with 2^(e-1) <= a < 2^e, for a > 0."""
    e = a.numerator.bit_length() - a.denominator.bit_length()
    while a >= two_to(e):
        e += 1
    while a < two_to(e - 1):
        e -= 1
    return e


def _round(x: Fraction, precision: int, least: int, largest: int) -> float:
    """x rounded to `precision` bits, no finer than 2^least; infinite from 2^largest on. A binary64 value: exact."""
    if x == 0:
        return 0.0
    size = abs(x)
    grid = max(frexp(size) - precision, least)
    rounded = rint(size / two_to(grid)) * two_to(grid)
    value = math.inf if rounded >= two_to(largest) else rounded.numerator / rounded.denominator
    return math.copysign(value, x.numerator)


def rn32(x: Fraction) -> np.float32:
    """x rounded once to binary32; +0 for x = 0, a zero with the sign of x where a nonzero x rounds to zero."""
    return np.float32(_round(x, 24, -149, 128))


def rn64(x: Fraction) -> float:
    """x rounded once to binary64."""
    return _round(x, 53, -1074, 1024)


def rn64_sqrt(x: float) -> float:
    """RN64(sqrt(x)): 55 bits of the root and whether it goes on decide the rounding."""
    value = real(x)
    if value == 0:
        return x
    shift = 2 * (60 + abs(frexp(value)))  # even, and large enough for 60 bits of root
    scaled = value * two_to(shift)
    root = math.isqrt(scaled.numerator // scaled.denominator)
    exact = root * root == scaled
    return rn64(Fraction(2 * root + (0 if exact else 1)) * two_to(-shift // 2 - 1))


def array(values: list[Any], shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """Scalars in C order as an array."""
    return np.array(values, dtype).reshape(shape)
