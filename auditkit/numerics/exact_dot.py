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
from auditkit.numerics.arrays import F32, F64, I32, I64, ieee, row_blocks
from auditkit.numerics.nonfinite import NonFinite

ZERO_ROW = -149  # exponent of a row of zeros; the smallest non-zero row has -148
_SAFE = 100  # |exponent| up to which binary32 rounds a row with no overflow and no subnormal in between
_MAGNITUDE = np.array(0x7FFFFFFF, np.int32)  # a binary32 word without its sign: these are ordered as the sizes are
_BIAS = 127  # a number of [2^(e-1), 2^e) has the exponent field e + 126
_NARROW = 32  # up to this length rows are turned before their maximum is taken: NumPy's inner loop would be short
_TILE = (1024, 1024)  # of a product: its binary64 sums, 8 MiB, are rounded before they leave the cache


@dataclass(frozen=True)
class Rows:
    """Rows rounded to `bits`-bit fixed point. Source: SPEC.md section 3.

    values     (..., M, K) float64, the exact numbers q * 2^(exponent - (bits-1)); may be a transposed view
    exponents  (..., M) int32, the row's maximum is below 2^exponent; ZERO_ROW for a row of zeros
    """

    values: F64
    exponents: I32
    bits: int


def size_words(x: F32, axis: int) -> I32:
    """The words of max |x| along an axis, x float32 of any strides; inf and NaN lie above all others.

    As words, since an integer maximum is one cheap pass, and the maximum and minimum of numbers are two slow ones.
    """
    words: I32 = np.maximum.reduce(np.bitwise_and(x.view(np.int32), _MAGNITUDE), axis=axis)
    return words


def row_exponents(amax: F32 | F64) -> I32:
    """The least e with amax < 2^e (frexp), ZERO_ROW where amax is zero. Raises NonFinite for inf and NaN."""
    if not np.isfinite(amax).all():
        raise NonFinite("non-finite value in an operand of an exact dot product")
    exponents = np.frexp(amax)[1].astype(np.int32, copy=False)
    return np.where(amax == 0, np.int32(ZERO_ROW), exponents)


def tame_exponents(words: I32, reach: int) -> I32 | None:
    """row_exponents of sizes given as words, none of them zero; None unless all lie in -reach .. reach."""
    if words.size == 0:
        return None
    low, high = np.minimum.reduce(words, axis=None), np.maximum.reduce(words, axis=None)
    if low < (_BIAS - 1 - reach) << 23 or high >= (_BIAS + reach) << 23:
        return None
    exponents: I32 = (words >> 23) - (_BIAS - 1)
    return exponents


def round_to_grid(x: F32 | F64, exponents: I32, bits: int) -> F64:
    """x rounded to nearest even on the grid 2^(exponent - (bits-1)), as float64; |x| < 2^exponent elementwise.

    x (..., M, K), exponents broadcastable to x. Adding and subtracting 1.5 * 2^p lets the adder do the rounding: its
    sum lies where one unit in the last place is exactly the grid. In binary32 while that is in range, else in
    binary64.
    """
    if x.dtype == np.float32 and rows_within(exponents, _SAFE):
        magic32 = _magic(np.maximum(exponents, -_SAFE), bits)
        y = x + magic32
        y -= magic32
        return y.astype(np.float64)
    magic64 = np.ldexp(np.float64(1.5), exponents + np.int32(53 - bits))
    z = x.astype(np.float64)
    z += magic64
    z -= magic64
    return z


def rows_within(exponents: I32, reach: int) -> bool:
    """Whether the exponents of all rows but those of zeros are within -reach .. reach."""
    return within(exponents, reach) or within(exponents[exponents != ZERO_ROW], reach)


def within(exponents: I32, reach: int) -> bool:
    """Whether all exponents are within -reach .. reach."""
    if exponents.size == 0:
        return True
    low, high = np.minimum.reduce(exponents, axis=None), np.maximum.reduce(exponents, axis=None)
    return bool(low >= -reach and high <= reach)


def _magic(exponents: I32, bits: int) -> F32:
    """1.5 * 2^(exponent + 24 - bits) in binary32, by its word: ldexp takes longer than the rows themselves."""
    words = (exponents + (_BIAS + 24 - bits)) << 23
    words |= 1 << 22
    return words.view(np.float32)


@ieee
def quantise(x: F32, bits: int) -> Rows:
    """Round the rows of x (..., M, K) float32 to `bits`-bit fixed point. Raises NonFinite."""
    if x.size == 0:
        return Rows(np.zeros(x.shape), np.full(x.shape[:-1], ZERO_ROW, np.int32), bits)
    flat = x.reshape(-1, x.shape[-1])
    words = np.empty(len(flat), np.int32)
    for at in row_blocks(*flat.shape):
        narrow = flat.shape[1] <= _NARROW
        words[at] = size_words(np.ascontiguousarray(flat[at].T), axis=0) if narrow else size_words(flat[at], axis=1)
    values, exponents = _rounded(flat, words, 1, bits)
    return Rows(values.reshape(x.shape), exponents.reshape(x.shape[:-1]), bits)


@ieee
def quantise_t(x: F32, bits: int) -> Rows:
    """The rows of the transpose of x (M, K) float32, as `quantise(x.T)`; result rows (K, M). Raises NonFinite."""
    if x.size == 0:
        return quantise(x.T, bits)
    words = np.zeros(x.shape[1], np.int32)
    for at in row_blocks(*x.shape):
        np.maximum(words, size_words(x[at], axis=0), out=words)
    values, exponents = _rounded(x, words, 0, bits)
    return Rows(values.T, exponents, bits)


def _rounded(x: F32, words: I32, axis: int, bits: int) -> tuple[F64, I32]:
    """x (M, K) on the grids of its rows (axis 1) or columns (axis 0), whose largest sizes are given, and exponents."""
    exponents = tame_exponents(words, _SAFE)
    if exponents is None:
        exponents = row_exponents(words.view(np.float32))
        return round_to_grid(x, exponents[:, None] if axis == 1 else exponents, bits), exponents
    magic = _magic(exponents, bits)[:, None] if axis == 1 else _magic(exponents, bits)
    values: F64 = np.empty(x.shape)
    for at in row_blocks(*x.shape):
        shift = magic[at] if axis == 1 else magic
        y = x[at] + shift
        y -= shift
        values[at] = y
    return values, exponents


@ieee
def dot(a: Rows, b: Rows, integers: F64 | None = None) -> F32:
    """Every row of a with every row of b: (..., M, K) x (..., N, K) -> (..., M, N) float32, rounded once.

    integers: what `row_integers` says of a, for several products. A zero sum is +0. Raises Unsupported where the sum
    could leave 63 bits (K >= 2^(65 - 2 bits)).
    """
    if a.bits != b.bits:
        raise ValueError(f"operands of {a.bits} and {b.bits} bits")  # a programming error, never data
    depth, limit = a.values.shape[-1], depth_limit(a.bits)
    if depth > limit:
        return _dot_split(a, b, row_integers(a) if integers is None else integers)
    x, y = a.values, np.swapaxes(b.values, -1, -2)
    rows, columns = _TILE
    if x.ndim != 2 or x.shape[0] * y.shape[1] <= rows * columns:
        return round_sum(np.matmul(x, y))
    out: F32 = np.empty((x.shape[0], y.shape[1]), np.float32)
    for i in range(0, out.shape[0], rows):
        for j in range(0, out.shape[1], columns):
            out[i : i + rows, j : j + columns] = round_sum(np.matmul(x[i : i + rows], y[:, j : j + columns]))
    return out


def depth_limit(bits: int) -> int:
    """How many products of `bits`-bit integers float64 adds without ever rounding."""
    return 1 << (53 - (2 * bits - 2))


def round_sum(exact: F64) -> F32:
    """float64 exact values, overwritten -> binary32, to nearest even, subnormals kept, a zero of either sign becoming
    +0.
    """
    exact += 0.0
    return exact.astype(np.float32)


def row_integers(a: Rows) -> F64 | None:
    """(..., M, K) float64, the integers q of rows that are so long that `dot` needs them; None for others."""
    return a.values * _unit(a) if a.values.shape[-1] > depth_limit(a.bits) else None


def _dot_split(a: Rows, b: Rows, qa: F64 | None) -> F32:
    """dot() for rows so long that a float64 sum could round: float64 over pieces of K, int64 over the pieces."""
    assert qa is not None
    depth, limit = qa.shape[-1], depth_limit(a.bits)
    if depth >= 1 << (65 - 2 * a.bits):
        raise Unsupported(f"an exact dot of {depth} terms of {a.bits} bits does not fit 63 bits")
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
