"""Exact dot (section 3), exact sum (4), ordered row sum (5), weighted sum (8)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from tests.ops.oracle.rounding import ZERO, Array, NoResult, frexp, ieee, real, rint, rn32, two_to

ZERO_ROW = -149
LIMIT = 1 << 62


class Row(NamedTuple):
    """A row rounded to fixed point: integers and exponent."""

    integers: list[int]
    exponent: int
    is_zero: bool


def round_row(x: Iterable[np.float32], bits: int) -> Row:
    """Section 3."""
    values = [real(v) for v in x]
    amax = max((abs(v) for v in values), default=Fraction(0))
    if amax == 0:
        return Row([0] * len(values), ZERO_ROW, True)
    e = frexp(amax)
    return Row([rint(v * two_to(bits - 1 - e)) for v in values], e, False)


def dot_rows(a: Row, b: Row, bits: int) -> np.float32:
    """Section 3."""
    s = sum(p * q for p, q in zip(a.integers, b.integers, strict=True))
    return rn32(s * two_to(a.exponent + b.exponent - 2 * (bits - 1)))


def product(x: Array, y: Array, bits: int) -> Array:
    """The matrix product X . Y^T of section 3: (M, K) and (N, K) give (M, N)."""
    left, right = [round_row(r, bits) for r in x], [round_row(r, bits) for r in y]
    out = [[dot_rows(a, b, bits) for b in right] for a in left]
    return np.array(out, np.float32).reshape(len(left), len(right))


def fixed(x: np.float32, unit: int) -> int:
    """One term of an exact sum (section 4)."""
    scaled = real(x) * two_to(unit)
    if abs(scaled) >= LIMIT:
        raise NoResult(f"{x} in units of 2^-{unit}")
    return rint(scaled)


def exact(terms: Iterable[int]) -> int:
    """The sum of terms (section 4); outside -2^62 <= sum < 2^62 there is no result."""
    total = sum(terms)
    if not -LIMIT <= total < LIMIT:
        raise NoResult(f"an exact sum of {total}")
    return total


def from_fixed(total: int, unit: int) -> np.float32:
    """Section 4."""
    return rn32(total * two_to(-unit))


def row_sum(x: Sequence[np.float32] | Array) -> np.float32:
    """Section 5."""
    row: list[np.float32] = list(x)
    if not row:
        return ZERO
    size = 1
    while size < len(row):
        size *= 2
    row += [ZERO] * (size - len(row))
    with ieee():
        while size > 1:
            size //= 2
            row = [row[i] + row[i + size] for i in range(size)]
    return row[0]


def weighted_sum(
    weights: Sequence[np.float32] | Array, rows: Sequence[Row], bound: int, bits: int, width: int
) -> list[np.float32]:
    """Section 8: one row of `width` elements."""
    numbers = [real(w) for w in weights]
    whole = [
        0 if row.is_zero else rint(w * two_to(row.exponent - bound + bits - 1))
        for w, row in zip(numbers, rows, strict=True)
    ]
    sums = [sum(w * row.integers[d] for w, row in zip(whole, rows, strict=True)) for d in range(width)]
    return [rn32(s * two_to(bound - 2 * (bits - 1))) for s in sums]


def true_bound(weights: Sequence[np.float32] | Array, rows: Sequence[Row]) -> int:
    """The bound of dQ and dK in section 8: frexp of the largest |weight| * 2^exponent over rows that are not zero."""
    sizes = [abs(real(w)) * two_to(r.exponent) for w, r in zip(weights, rows, strict=True) if not r.is_zero]
    largest = max(sizes, default=Fraction(0))
    return frexp(largest) if largest else ZERO_ROW
