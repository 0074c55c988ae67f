"""Weighted sums of fixed-point rows: the second product of attention, forward and backward (SPEC.md section 8).

Row n keeps its own exponent x_n, so that no later row can change it. Its scale moves into the weight before the
weight is rounded: with a bound 2^E_m on |w_mn| * 2^x_n the integer weight is rint(w_mn * 2^(x_n - E_m + B - 1)), at
most 2^(B-1) in size.
"""

from __future__ import annotations

import numpy as np

from auditkit.numerics.arrays import F32, F64, I32, ieee
from auditkit.numerics.exact_dot import ZERO_ROW, Rows, dot, round_to_grid, row_exponents

_SAFE = 60  # |exponent| up to which the binary32 products below lose nothing that survives the rounding to the grid
_SMALL = np.float32(2.0**-90)


@ieee
def weighted_sum(weights: F32, rows: Rows, bound: I32) -> F32:
    """sum_n w_mn * row_n, the weights rounded against a bound per m; one rounding to binary32 at the end.

    weights  (..., M, N) float32, finite
    rows     (..., N, D), from exact_dot.quantise
    bound    (..., M) int32 exponents: |w_mn| * 2^x_n <= 2^bound_m for every n; any number where all products are zero
    result   (..., M, D) float32
    Raises Unsupported where the sum could leave 63 bits.
    """
    wide = not (_within(_live(rows)) and _within(bound))
    grid = round_to_grid(scale_columns(weights, rows.exponents, wide=wide), bound[..., None], rows.bits)
    return dot(Rows(grid, bound, rows.bits), _unit_columns(rows))


def scale_columns(weights: F32, exponents: I32, *, wide: bool) -> F32 | F64:
    """w_mn * 2^x_n (0 for a zero row), in binary64 if `wide` (always exact), else in binary32.

    A product below 2^-126, where binary32 loses bits, is below 2^-66 of any bound >= 2^-60: it becomes the integer 0.
    """
    zero = exponents == ZERO_ROW
    if wide:
        return weights.astype(np.float64) * np.ldexp(np.where(zero, 0.0, 1.0), exponents)[..., None, :]
    powers = np.ldexp(np.where(zero, np.float32(0), np.float32(1)), np.maximum(exponents, -_SAFE))
    return weights * powers[..., None, :]


@ieee
def true_bound(weights: F32, rows: Rows) -> I32:
    """(..., M) the exponent of the exact max_n |w_mn| * 2^x_n over the rows n that are not zero. Raises NonFinite.

    0 where all products are zero: -149, as the specification has it, can also be a true bound, and any will do there.
    """
    wide = not _within(_live(rows))
    amax = _largest(scale_columns(weights, rows.exponents, wide=wide))
    lost = ~((amax >= _SMALL) & (amax < np.inf))  # of products this small or large binary32 may have lost bits
    if not wide and lost.any() and weights[lost].any():
        amax = _largest(scale_columns(weights, rows.exponents, wide=True))
    bound: I32 = np.where(amax == 0, np.int32(0), row_exponents(amax))
    return bound


def _largest(x: F32 | F64) -> F32 | F64:
    largest: F32 | F64 = np.maximum(x.max(axis=-1), -x.min(axis=-1))
    return largest


def _live(rows: Rows) -> I32:
    """The exponents of the rows that are not zero."""
    live: I32 = rows.exponents[rows.exponents != ZERO_ROW]
    return live


def _unit_columns(rows: Rows) -> Rows:
    """The D columns of the rows divided by their own 2^x_n, q * 2^-(bits-1): fixed-point rows of exponent 0."""
    unit = rows.values * np.ldexp(1.0, -rows.exponents)[..., None]
    columns = np.swapaxes(unit, -1, -2)
    return Rows(columns, np.zeros(columns.shape[:-1], np.int32), rows.bits)


def _within(exponents: I32) -> bool:
    return exponents.size == 0 or bool(exponents.min() >= -_SAFE and exponents.max() <= _SAFE)
