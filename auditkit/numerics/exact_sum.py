"""Exact sums: terms rounded to fixed point, added as int64 in any order, rounded back once (SPEC.md section 4)."""

from __future__ import annotations

import numpy as np

from auditkit.numerics.arrays import F32, I64, IntArray, ieee
from auditkit.numerics.nonfinite import NonFinite

GRADIENT_UNIT = 56  # gradients: terms below 2^6 in size, resolution 2^-57
LOSS_UNIT = 32  # loss of one token
SOFTMAX_UNIT = 30  # e = exp(s - m) <= 1; int32 on a GPU

_LIMIT = float(1 << 62)


@ieee
def to_fixed(x: F32, unit: int) -> I64:
    """rint(x * 2^unit) as int64, elementwise. Raises NonFinite for inf, NaN and |x| * 2^unit >= 2^62."""
    scaled = x.astype(np.float64)
    scaled *= float(1 << unit)  # exact: a power of two
    if scaled.size and not (scaled.max() < _LIMIT and scaled.min() > -_LIMIT):
        raise NonFinite(f"a term of an exact sum is not finite or reaches 2^{62 - unit}")
    return np.rint(scaled, out=scaled).astype(np.int64)


def from_fixed(total: I64, unit: int) -> F32:
    """total * 2^-unit rounded once to binary32."""
    out = total.astype(np.float32)
    out *= np.float32(2.0**-unit)  # exact: a power of two, and the result is zero or at least 2^-56
    return out


def sum_rows(terms: I64) -> I64:
    """Sum (N, ...) int64 over the first axis, |terms| < 2^62. Raises NonFinite for a true sum outside [-2^62, 2^62)."""
    if is_tame(terms):
        total: I64 = np.add.reduce(terms, axis=0, dtype=np.int64)
        return total
    return sum_segments(terms, np.zeros(1, np.int64))[0]  # type: ignore[no-any-return]


def sum_segments(terms: I64, starts: IntArray) -> I64:
    """Sums of consecutive rows of (N, ...) int64: segment i is rows starts[i] .. starts[i+1]-1. Raises as sum_rows."""
    total: I64 = np.add.reduceat(terms, starts, axis=0, dtype=np.int64)
    if not is_tame(terms):
        high = np.add.reduceat(terms >> 32, starts, axis=0, dtype=np.int64)
        low = np.add.reduceat(terms & 0xFFFFFFFF, starts, axis=0, dtype=np.int64)
        high += low >> 32  # the true sum divided by 2^32, rounded down; neither part can wrap
        _check_range(high, 1 << 30)
    return total


def is_tame(terms: I64) -> bool:
    """Whether no sum over the first axis of (N, ...) can leave the range."""
    return terms.size == 0 or _size(terms) * terms.shape[0] < _LIMIT


class BlockSums:
    """Sums over the first axis of rows that come in blocks; only the true total must lie in the range.

    Kept in two halves, total = high * 2^32 + low, so that nothing can wrap on the way.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self._high = np.zeros(shape, np.int64)
        self._low = np.zeros(shape, np.int64)

    def add(self, terms: I64) -> None:
        """Add the rows of (N, *shape) int64, |terms| < 2^62."""
        rows = np.add.reduce(terms, axis=0, dtype=np.int64)[None] if is_tame(terms) else terms
        self._high += np.add.reduce(rows >> 32, axis=0, dtype=np.int64)
        self._low += np.add.reduce(rows & 0xFFFFFFFF, axis=0, dtype=np.int64)

    def total(self) -> I64:
        """The sums, int64 of the shape. Raises NonFinite for a true sum outside [-2^62, 2^62)."""
        _check_range(np.asarray(self._high + (self._low >> 32)), 1 << 30)
        total: I64 = np.asarray((self._high << 32) + self._low)
        return total

    def integer(self) -> int:
        """The sum of a shape of (), whatever its size."""
        return (int(self._high) << 32) + int(self._low)


def add_sums(total: I64, terms: I64, out: I64 | None = None) -> I64:
    """total + terms elementwise, both within [-2^62, 2^62). Raises NonFinite for a sum outside that range.

    out: where the sums go, e.g. total; a new array by default.
    """
    summed = np.add(total, terms, out=out)
    _check_range(summed, 1 << 62)
    return summed


def largest(sums: I64) -> int:
    """max |sums|, 0 for no elements: what tells whether sums of several such arrays can leave the range."""
    return max(int(sums.max()), -int(sums.min())) if sums.size else 0


def _check_range(sums: I64, limit: int) -> None:
    if sums.size and not (sums.min() >= -limit and sums.max() < limit):
        raise NonFinite("an exact sum leaves 62 bits")


def _size(array: I64) -> float:
    return max(float(array.max()), -float(array.min()))
