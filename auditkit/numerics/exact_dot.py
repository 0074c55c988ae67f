"""Exact dot products of fixed-point rows (SPEC.md section 3).

Each row is rounded to integers q * 2^(e - (B-1)), |q| <= 2^(B-1), under its own exponent e. The sum of products of
two rows is then exact, whatever the order, so a float64 BLAS, int8 tensor cores and a plain loop give the same bits.
One rounding at the end. Here the scale stays folded into float64 operands: every partial sum is an integer multiple
of one power of two and stays below 2^53 of it, so no addition ever rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditkit.errors import Unsupported
from auditkit.numerics.arrays import F32, F64, I32, I64, ieee
from auditkit.numerics.nonfinite import NonFinite

ZERO_ROW = -149  # exponent of a row of zeros; the smallest non-zero row has -148
_SAFE = 100  # |exponent| up to which binary32 rounds a row with no overflow and no subnormal in between


@dataclass(frozen=True)
class Rows:
    """Rows rounded to `bits`-bit fixed point. Source: SPEC.md section 3.

    values     (..., M, K) float64, the exact numbers q * 2^(exponent - (bits-1)); may be a transposed view
    exponents  (..., M) int32, the row's maximum is below 2^exponent; ZERO_ROW for a row of zeros
    """

    values: F64
    exponents: I32
    bits: int


def row_exponents(amax: F32 | F64) -> I32:
    """The least e with amax < 2^e (frexp), ZERO_ROW where amax is zero. Raises NonFinite for inf and NaN."""
    if not np.isfinite(amax).all():
        raise NonFinite("non-finite value in an operand of an exact dot product")
    exponents = np.frexp(amax)[1].astype(np.int32, copy=False)
    return np.where(amax == 0, np.int32(ZERO_ROW), exponents)


def round_to_grid(x: F32 | F64, exponents: I32, bits: int) -> F64:
    """x rounded to nearest even on the grid 2^(exponent - (bits-1)), as float64; |x| < 2^exponent elementwise.

    x (..., M, K), exponents broadcastable to x. Adding and subtracting 1.5 * 2^p lets the adder do the rounding: its
    sum lies where one unit in the last place is exactly the grid. In binary32 while that is in range, else in
    binary64.
    """
    live = exponents[exponents != ZERO_ROW]
    if x.dtype == np.float32 and (live.size == 0 or (live.min() >= -_SAFE and live.max() <= _SAFE)):
        magic32 = np.ldexp(np.float32(1.5), np.maximum(exponents, -_SAFE) + np.int32(24 - bits))
        y = x + magic32
        y -= magic32
        return y.astype(np.float64)
    magic64 = np.ldexp(np.float64(1.5), exponents + np.int32(53 - bits))
    z = x.astype(np.float64)
    z += magic64
    z -= magic64
    return z


@ieee
def quantise(x: F32, bits: int) -> Rows:
    """Round the rows of x (..., M, K) float32 to `bits`-bit fixed point. Raises NonFinite."""
    return _quantise(x, bits, axis=-1)


@ieee
def quantise_t(x: F32, bits: int) -> Rows:
    """The rows of the transpose of x (M, K) float32, as `quantise(x.T)`; result rows (K, M). Raises NonFinite."""
    rows = _quantise(x, bits, axis=-2)
    return Rows(np.swapaxes(rows.values, -1, -2), rows.exponents, bits)


def _quantise(x: F32, bits: int, axis: int) -> Rows:
    if x.size == 0:
        shape = x.shape[:-2] + (x.shape[-2 if axis == -1 else -1],)
        return Rows(np.zeros(x.shape), np.full(shape, ZERO_ROW, np.int32), bits)
    amax = np.maximum(x.max(axis=axis), -x.min(axis=axis))
    exponents = row_exponents(amax)
    return Rows(round_to_grid(x, np.expand_dims(exponents, axis), bits), exponents, bits)


@ieee
def dot(a: Rows, b: Rows) -> F32:
    """Every row of a with every row of b: (..., M, K) x (..., N, K) -> (..., M, N) float32, rounded once.

    A zero sum is +0. Raises Unsupported where the sum could leave 63 bits (K >= 2^(65 - 2 bits)).
    """
    if a.bits != b.bits:
        raise ValueError(f"operands of {a.bits} and {b.bits} bits")  # a programming error, never data
    depth = a.values.shape[-1]
    limit = 1 << (53 - (2 * a.bits - 2))
    if depth <= limit:
        return round_sum(np.matmul(a.values, np.swapaxes(b.values, -1, -2)))
    return _dot_split(a, b, depth, limit)


def round_sum(exact: F64) -> F32:
    """float64 exact values -> binary32, to nearest even, subnormals kept, a zero of either sign becoming +0."""
    out: F32 = np.empty(exact.shape, np.float32)
    with np.errstate(over="ignore", under="ignore"):
        np.add(exact, 0.0, out=out, casting="same_kind")
    return out


def _dot_split(a: Rows, b: Rows, depth: int, limit: int) -> F32:
    """dot() for rows so long that a float64 sum could round: float64 over pieces of K, int64 over the pieces."""
    if depth >= 1 << (65 - 2 * a.bits):
        raise Unsupported(f"an exact dot of {depth} terms of {a.bits} bits does not fit 63 bits")
    qa = a.values * _unit(a)
    qb = b.values * _unit(b)
    total: I64 = np.zeros((), np.int64)
    for start in range(0, depth, limit):
        piece = slice(start, start + limit)
        total = total + np.matmul(qa[..., piece], np.swapaxes(qb[..., piece], -1, -2)).astype(np.int64)
    scale_a = np.ldexp(1.0, a.exponents - (a.bits - 1))[..., :, None]
    scale_b = np.ldexp(1.0, b.exponents - (b.bits - 1))[..., None, :]
    return round_sum(int64_to_odd(total) * scale_a * scale_b)


def _unit(rows: Rows) -> F64:
    """(..., M, 1) float64: what turns values into the integers q."""
    return np.ldexp(1.0, (rows.bits - 1) - rows.exponents)[..., :, None]


def int64_to_odd(total: I64) -> F64:
    """int64 -> float64 such that one later rounding to binary32 is the rounding of the integer itself.

    Integers of more than 53 bits lose 11 bits by rounding to odd, which no later rounding to 24 bits can notice
    (Boldo and Melquiond, "When double rounding is odd", 2005).
    """
    odd = (total >> 11) | ((total & 2047) != 0)
    return np.where(np.abs(total) < 1 << 53, total.astype(np.float64), odd.astype(np.float64) * 2048.0)
