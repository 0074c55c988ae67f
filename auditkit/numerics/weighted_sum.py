"""Weighted sums of fixed-point rows: the second product of attention, forward and backward (SPEC.md section 8).

Row n keeps its own exponent x_n, so that no later row can change it. Its scale moves into the weight before the
weight is rounded: with a bound 2^E_m on |w_mn| * 2^x_n the integer weight is rint(w_mn * 2^(x_n - E_m + B - 1)), at
most 2^(B-1) in size.
"""

from __future__ import annotations

import numpy as np

from auditkit.numerics.arrays import F32, F64, I32, ieee
from auditkit.numerics.exact_dot import (
    ZERO_ROW,
    Rows,
    dot,
    round_to_grid,
    row_exponents,
    rows_within,
    size_words,
    tame_exponents,
    within,
)

NO_PRODUCT = np.int32(-1000)  # instead of an exponent where all products are zero; below that of any product

_SAFE = 60  # |exponent| up to which the binary32 products below lose nothing that survives the rounding to the grid
_SMALL = 89  # binary32 keeps all bits of the largest product if its exponent is not below -_SMALL


@ieee
def weighted_sum(weights: F32, rows: Rows, bound: I32) -> F32:
    """sum_n w_mn * row_n, the weights rounded against a bound per m; one rounding to binary32 at the end.

    weights  (..., M, N) float32, finite
    rows     (..., N, D), from exact_dot.quantise
    bound    (..., M) int32 exponents: |w_mn| * 2^x_n <= 2^bound_m for every n; any number where all products are zero
    result   (..., M, D) float32
    Raises Unsupported where the sum could leave 63 bits.
    """
    return dot(_integer_weights(weights, rows, bound), _unit_columns(rows))


@ieee
def unrounded_sum(weights: F32, rows: Rows, bound: I32) -> F64:
    """As weighted_sum, but exact: (..., M, D) float64, to be added to others under the same bound and rounded then.

    All rows of such a sum together must not be more than exact_dot.depth_limit.
    """
    columns = np.swapaxes(_unit_columns(rows).values, -1, -2)
    total: F64 = np.matmul(_integer_weights(weights, rows, bound).values, columns)
    return total


def _integer_weights(weights: F32, rows: Rows, bound: I32) -> Rows:
    """w_mn * 2^x_n as fixed-point rows (..., M, N) of exponent bound_m."""
    narrow = rows_within(rows.exponents, _SAFE) and within(bound, _SAFE)
    scaled = (_scaled32 if narrow else _scaled64)(weights, rows.exponents)
    return Rows(round_to_grid(scaled, bound[..., None], rows.bits), bound, rows.bits)


def _scaled32(weights: F32, exponents: I32) -> F32:
    """w_mn * 2^x_n (0 for a zero row) in binary32, for exponents of +-_SAFE.

    A product below 2^-126, where binary32 loses bits, is below 2^-66 of any bound >= 2^-60: it becomes the integer 0.
    """
    words = np.maximum((exponents + 127) << 23, 0)  # of 2^x; the word of a zero row would be negative and becomes 0
    scaled: F32 = weights * words.view(np.float32)[..., None, :]
    return scaled


def _scaled64(weights: F32, exponents: I32) -> F64:
    """w_mn * 2^x_n (0 for a zero row) in binary64: always exact."""
    powers = np.ldexp(np.where(exponents == ZERO_ROW, 0.0, 1.0), exponents)
    scaled: F64 = weights.astype(np.float64) * powers[..., None, :]
    return scaled


@ieee
def true_bound(weights: F32, rows: Rows) -> I32:
    """(..., M) the exponent of the exact max_n |w_mn| * 2^x_n over the rows n that are not zero. Raises NonFinite.

    0 where all products are zero: -149, as the specification has it, can also be a true bound, and any will do there.
    """
    return settle_bound(largest_products(weights, rows))


def settle_bound(exponents: I32) -> I32:
    """The bound that follows from the exponents of the largest products."""
    return np.where(exponents == NO_PRODUCT, np.int32(0), exponents)


@ieee
def largest_products(weights: F32, rows: Rows) -> I32:
    """(..., M) the exponents of max_n |w_mn| * 2^x_n, NO_PRODUCT where all are zero. Raises NonFinite."""
    if rows_within(rows.exponents, _SAFE):
        words = size_words(_scaled32(weights, rows.exponents), axis=-1)
        exponents = tame_exponents(words, _SMALL)
        if exponents is not None:
            return exponents
        sizes = words.view(np.float32)
        lost = ~((sizes >= 2.0 ** -(_SMALL + 1)) & (sizes < np.inf))  # of these binary32 may have lost bits
        if not (lost.any() and weights[lost].any()):
            return _product_exponents(sizes)
    return _product_exponents(np.abs(_scaled64(weights, rows.exponents)).max(axis=-1))


def _product_exponents(amax: F32 | F64) -> I32:
    return np.where(amax == 0, NO_PRODUCT, row_exponents(amax))


def _unit_columns(rows: Rows) -> Rows:
    """The D columns of the rows divided by their own 2^x_n, q * 2^-(bits-1): fixed-point rows of exponent 0."""
    powers = ((1023 - rows.exponents.astype(np.int64)) << 52).view(np.float64)  # 2^-x, by its word
    columns = np.swapaxes(rows.values * powers[..., None], -1, -2)
    return Rows(columns, np.zeros(columns.shape[:-1], np.int32), rows.bits)
