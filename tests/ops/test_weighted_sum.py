"""Weighted sums of fixed-point rows: each row under its own exponent, the weights under a bound."""

from __future__ import annotations

import numpy as np
import pytest

from auditkit.numerics.exact_dot import ZERO_ROW, quantise
from auditkit.numerics.nonfinite import NonFinite
from auditkit.numerics.weighted_sum import true_bound, weighted_sum
from tests.ops.cases import F32, NOT_FINITE, awkward_rows, floats, frozen, normals, relative_error, with_value
from tests.ops.oracle import sums
from tests.same_bits import assert_same_bits

BITS = pytest.mark.parametrize("bits", [14, 21])


def oracle(weights: F32, rows: F32, bits: int) -> F32:
    """Weighted sums (M, D) of rows (N, D) with weights (M, N) under their true bounds."""
    rounded = [sums.round_row(row, bits) for row in rows]
    bounds = [sums.true_bound(w, rounded) for w in weights]
    pairs = zip(weights, bounds, strict=True)
    return np.array([sums.weighted_sum(w, rounded, b, bits, rows.shape[1]) for w, b in pairs], np.float32)


def by_op(weights: F32, rows: F32, bits: int) -> F32:
    """The same by the op."""
    rounded = quantise(rows, bits)
    return weighted_sum(weights, rounded, true_bound(weights, rounded))


def check(weights: F32, rows: F32, bits: int) -> None:
    """The op gives the oracle's words and leaves its inputs alone."""
    weights, rows = frozen(weights, rows)
    assert_same_bits(by_op(weights, rows, bits), oracle(weights, rows, bits))


@BITS
@pytest.mark.parametrize("count", [1, 2, 3, 8, 17])
def test_equals_the_oracle(count: int, bits: int) -> None:
    check(floats(1, 5, count), floats(2, count, 6), bits)


@BITS
@pytest.mark.parametrize("middle", [-140, -100, -62, -60, -58, 0, 58, 60, 62, 100, 124])
@pytest.mark.parametrize("weight", [-140, -90, -60, -30, 0, 3])
def test_equals_the_oracle_at_every_exponent(middle: int, weight: int, bits: int) -> None:
    """Rows around 2^middle, weights around 2^weight: both sides of 2^+-60 and 2^-90, where the op changes its way."""
    check(floats(1, 3, 4, low=weight - 3, high=weight + 3), floats(2, 4, 3, low=middle - 3, high=middle + 3), bits)


@BITS
def test_equals_the_oracle_on_awkward_rows_and_weights(bits: int) -> None:
    check(awkward_rows(9)[[0, 1, 2, 3, 4, 7, 8]], awkward_rows(9), bits)
    check(floats(1, 4, 9, low=-149, high=0), awkward_rows(9), bits)
    check(np.zeros((2, 9), np.float32), awkward_rows(9), bits)
    check(floats(1, 4, 9), np.zeros((9, 3), np.float32), bits)


@BITS
@pytest.mark.parametrize("exponent", [-151, -150, -149, -148, -147])
def test_a_true_bound_of_minus_149_is_a_bound(exponent: int, bits: int) -> None:
    """-149 also stands for "all products are zero"; a sum whose bound it truly is must not become zero."""
    weights = np.full((1, 40), 2.0**-120, np.float32)
    rows = np.full((40, 2), 2.0 ** (exponent + 119), np.float32)  # exponent + 120: the largest product is 2^exponent
    rounded = quantise(rows, bits)
    assert int(true_bound(weights, rounded)[0]) == exponent + 1
    assert float(weighted_sum(weights, rounded, true_bound(weights, rounded))[0, 0]) == 20.0 * 2.0**exponent
    check(weights, rows, bits)


@BITS
def test_a_product_beyond_binary32_is_still_a_bound(bits: int) -> None:
    """Opposite weights of 2^120 on equal rows of 2^40: each product leaves binary32, the sum does not."""
    weights = np.array([[2.0**120, -(2.0**120), 2.0**30]], np.float32)
    rows = np.array([[2.0**40], [2.0**40], [1.0]], np.float32)
    assert float(by_op(weights, rows, bits)[0, 0]) == 0.0
    check(weights, rows, bits)


@BITS
def test_ties_of_the_weights_go_to_even(bits: int) -> None:
    grid = 2.0 ** -(bits - 1)
    weights = np.array([[0.75, *(np.arange(-4, 5) + 0.5) * grid]], np.float32)
    check(weights, np.concatenate([np.full((10, 1), 0.5), np.eye(10)], axis=1).astype(np.float32), bits)


@BITS
def test_a_row_of_zeros_has_no_say_in_the_bound(bits: int) -> None:
    weights = np.array([[2.0**100, 1.0], [0.0, 1.0]], np.float32)
    rows = np.array([[0.0, 0.0], [0.3, 0.4]], np.float32)
    rounded = quantise(rows, bits)
    assert int(rounded.exponents[0]) == ZERO_ROW
    assert true_bound(weights, rounded).tolist() == [0, 0]
    got = by_op(weights, rows, bits)
    assert_same_bits(got[0], got[1])
    check(weights, rows, bits)


@BITS
def test_batches_and_transposes(bits: int) -> None:
    weights, rows = floats(1, 2, 5, 4), floats(2, 2, 4, 3)
    rounded = quantise(rows, bits)
    got = weighted_sum(weights, rounded, true_bound(weights, rounded))
    swapped = np.swapaxes(np.ascontiguousarray(np.swapaxes(weights, 1, 2)), 1, 2)
    assert_same_bits(weighted_sum(swapped, rounded, true_bound(swapped, rounded)), got)
    for b in range(2):
        assert_same_bits(got[b], oracle(weights[b], rows[b], bits))


def test_more_than_8192_rows_of_21_bits() -> None:
    below_one = np.nextafter(np.float32(1), np.float32(0))
    check(np.full((1, 8193), below_one), np.full((8193, 1), below_one), 21)
    check(floats(1, 1, 9000, low=-1, high=0), floats(2, 9000, 2, low=-1, high=0), 21)


@BITS
@pytest.mark.parametrize("bad", NOT_FINITE)
def test_weights_that_are_not_finite_are_refused(bad: np.float32, bits: int) -> None:
    with pytest.raises(NonFinite):
        by_op(with_value(floats(1, 3, 5), bad), floats(2, 5, 2), bits)


@pytest.mark.parametrize(("bits", "tolerance"), [(14, 3e-4), (21, 3e-6)])
def test_close_to_float64(bits: int, tolerance: float) -> None:
    weights, rows = normals(1, 20, 200), normals(2, 200, 16)
    want = weights.astype(np.float64) @ rows.astype(np.float64)
    assert relative_error(by_op(weights, rows, bits), want) < tolerance
