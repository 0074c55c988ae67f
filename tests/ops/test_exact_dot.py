"""Exact dot products: word for word the oracle, at every size and exponent, and past the 2^53 limit of binary64."""

from __future__ import annotations

import numpy as np
import pytest

from auditkit.errors import Unsupported
from auditkit.numerics import product as product_ops
from auditkit.numerics.exact_dot import ZERO_ROW, Rows, dot, quantise, quantise_t
from auditkit.numerics.nonfinite import NonFinite
from tests.ops.cases import (
    BOUNDARY_SIZES,
    F32,
    LARGEST,
    NOT_FINITE,
    SMALLEST,
    awkward_rows,
    floats,
    frozen,
    normals,
    relative_error,
    strided,
    with_value,
)
from tests.ops.oracle import sums
from tests.same_bits import assert_same_bits

BITS = pytest.mark.parametrize("bits", [14, 21])


def product(x: F32, y: F32, bits: int) -> F32:
    """X . Y^T by the op."""
    return dot(quantise(x, bits), quantise(y, bits))


def check(x: F32, y: F32, bits: int) -> None:
    """The op gives the oracle's words and leaves its inputs alone."""
    x, y = frozen(x, y)
    assert_same_bits(product(x, y, bits), sums.product(x, y, bits))


@BITS
@pytest.mark.parametrize("depth", BOUNDARY_SIZES)
def test_equals_the_oracle_at_boundary_sizes(depth: int, bits: int) -> None:
    check(floats(depth, 3, depth), floats(depth + 1, 2, depth), bits)


@BITS
@pytest.mark.parametrize(("low", "high"), [(-149, -127), (-149, 127), (100, 127), (-110, -90), (-104, -96), (96, 104)])
def test_equals_the_oracle_at_extreme_exponents(low: int, high: int, bits: int) -> None:
    """Both sides of 2^+-100, where the op changes from binary32 to binary64, and where the result is subnormal."""
    check(floats(1, 7, 9, low=low, high=high), floats(2, 7, 9, low=low, high=high), bits)
    check(floats(3, 7, 9, low=low, high=high), floats(4, 7, 9, low=-25, high=-20), bits)


@BITS
def test_equals_the_oracle_on_awkward_rows(bits: int) -> None:
    rows = np.concatenate([awkward_rows(9), floats(1, 4, 9)])
    check(rows, rows[::-1], bits)


@BITS
def test_each_row_alone_has_the_bits_it_has_among_others(bits: int) -> None:
    """One row of an extreme exponent sends the whole matrix another way through the code."""
    rows = np.concatenate([awkward_rows(9), floats(1, 4, 9)])
    whole = product(rows, rows, bits)
    for m, row in enumerate(rows):
        assert_same_bits(product(row[None], rows, bits), whole[m : m + 1])


@BITS
def test_rounds_ties_to_even_when_it_rounds_to_fixed_point(bits: int) -> None:
    grid = 2.0 ** -(bits - 1)
    row = np.array([[0.75, *(np.arange(-8, 9) + 0.5) * grid]], np.float32)
    quantised = quantise(row, bits)
    assert int(quantised.exponents[0]) == 0
    expected = [0.75 / grid, -8, -6, -6, -4, -4, -2, -2, 0, 0, 2, 2, 4, 4, 6, 6, 8, 8]
    assert (quantised.values[0] / grid).tolist() == expected
    check(row, np.eye(row.shape[1], dtype=np.float32), bits)


@BITS
def test_a_maximum_may_round_up_to_the_power_of_two(bits: int) -> None:
    below_one = np.array([[np.nextafter(np.float32(1), np.float32(0))]])
    quantised = quantise(below_one, bits)
    assert (int(quantised.exponents[0]), float(quantised.values[0, 0])) == (0, 1.0)
    check(below_one, below_one, bits)


@pytest.mark.parametrize(("ones", "rounded"), [(0, 1 << 24), (1, 1 << 24), (2, (1 << 24) + 2), (3, (1 << 24) + 4)])
@pytest.mark.parametrize("sign", [1, -1])
def test_rounds_the_sum_once_ties_to_even(ones: int, rounded: int, sign: int) -> None:
    x = np.array([[4096] + [1] * 3], np.float32)  # exponent 13: the integers of fx14 are these numbers
    y = np.array([[4096] + [1] * ones + [0] * (3 - ones)], np.float32) * np.float32(sign)
    assert float(product(x, y, 14)[0, 0]) == sign * rounded
    check(x, y, 14)


@BITS
def test_rounds_once_into_the_subnormals(bits: int) -> None:
    """s = 2^24 + 1 scaled to the last subnormal bits; rounding first to 24 bits would lose the sticky bit."""
    x = np.array([[4096, 1, 1, 0], [4096, 1, 0, 0]], np.float32)
    for shift in range(-149 - 25, -149 - 22):
        small = np.ldexp(x, -90).astype(np.float32)
        check(small, np.ldexp(x, shift + 90 + 1).astype(np.float32), bits)


@BITS
def test_a_result_beyond_the_range_is_infinite(bits: int) -> None:
    row = np.array([[LARGEST, LARGEST], [LARGEST, -LARGEST]])
    with np.errstate(over="raise"):
        got = product(row, row, bits)
    assert got.tolist() == [[np.inf, 0.0], [0.0, np.inf]]
    check(row, row, bits)


@BITS
def test_a_zero_sum_is_plus_zero_and_a_lost_negative_is_minus_zero(bits: int) -> None:
    zeros = np.array([[0.0, 0.0], [-0.0, -0.0], [1.0, -1.0]], np.float32)
    assert_same_bits(product(zeros, -zeros, bits)[:2], np.zeros((2, 3), np.float32))
    tiny = np.full((1, 2), SMALLEST, np.float32)
    assert product(tiny, -tiny, bits).view(np.uint32).tolist() == [[0x80000000]]
    check(tiny, -tiny, bits)


@BITS
def test_empty_operands(bits: int) -> None:
    for m, n, depth in [(2, 3, 0), (0, 3, 4), (2, 0, 4), (0, 0, 0)]:
        got = product(np.zeros((m, depth), np.float32), np.zeros((n, depth), np.float32), bits)
        assert_same_bits(got, np.zeros((m, n), np.float32))
    assert quantise_t(np.zeros((0, 3), np.float32), bits).exponents.shape == (3,)


def all_maximal(depth: int, seed: int) -> F32:
    """Two rows that round to integers of the largest size: all positive, and of random sign."""
    below_one = np.nextafter(np.float32(1), np.float32(0))
    signs = np.where(np.random.default_rng(seed).integers(0, 2, depth) == 0, np.float32(-1), np.float32(1))
    return np.stack([np.full(depth, below_one), below_one * signs])


@pytest.mark.parametrize("depth", [8191, 8192, 8193, 9000, 16384, 16385, 20000])
def test_fx21_past_the_limit_of_binary64(depth: int) -> None:
    check(all_maximal(depth, 1), all_maximal(depth, 2), 21)
    check(floats(1, 2, depth, low=-1, high=0), floats(2, 2, depth, low=-20, high=0), 21)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("last", [-1, 0, 1])
def test_fx21_past_the_limit_rounds_the_integer_itself(last: int, sign: int) -> None:
    """s = 2^53 + 2^29 + last: half way between two results but for its last bit, which binary64 cannot hold."""
    below_one = np.nextafter(np.float32(1), np.float32(0))
    x = np.full((1, 8194), below_one, np.float32)
    y = np.full((1, 8194), below_one, np.float32)
    y[0, 8192], x[0, 8193], y[0, 8193] = 2.0**-11, 2.0**-20, last * 2.0**-20
    units = int(np.ldexp(np.float64(product(x, y * np.float32(sign), 21)[0, 0]), 40))
    assert units == sign * ((1 << 53) + (1 << 30 if last > 0 else 0))
    check(x, y * np.float32(sign), 21)


def test_depth_beyond_63_bits_is_unsupported() -> None:
    rows = Rows(np.broadcast_to(np.zeros(1), (1, 1 << 23)), np.full(1, ZERO_ROW, np.int32), 21)
    with pytest.raises(Unsupported, match="8388608 terms of 21 bits"):
        dot(rows, rows)


@BITS
def test_batched_shapes_are_products_of_their_matrices(bits: int) -> None:
    x, y = frozen(floats(1, 2, 3, 4, 5), floats(2, 2, 3, 6, 5))
    got = product(x, y, bits)
    assert got.shape == (2, 3, 4, 6)
    for b in range(2):
        for h in range(3):
            assert_same_bits(got[b, h], sums.product(x[b, h], y[b, h], bits))


@BITS
def test_quantise_t_is_quantise_of_the_transpose(bits: int) -> None:
    for x in (floats(1, 9, 14), awkward_rows(14), awkward_rows(14).T.copy()):
        got, want = quantise_t(x, bits), quantise(np.ascontiguousarray(x.T), bits)
        assert_same_bits(got.exponents, want.exponents)
        assert np.array_equal(got.values, want.values)  # a zero of either sign
        y = floats(3, 4, len(x))
        assert_same_bits(dot(got, quantise(y, bits)), sums.product(x.T, y, bits))


@BITS
def test_strides_do_not_matter(bits: int) -> None:
    x, y = floats(1, 5, 6), floats(2, 4, 6)
    assert_same_bits(product(strided(x), strided(y), bits), product(x, y, bits))
    assert_same_bits(product(x[:, ::-1], y[:, ::-1], bits), product(x, y, bits))


@BITS
@pytest.mark.parametrize("bad", NOT_FINITE)
def test_values_that_are_not_finite_are_refused(bad: np.float32, bits: int) -> None:
    for op in (quantise, quantise_t):
        with pytest.raises(NonFinite):
            op(with_value(floats(1, 3, 5), bad), bits)


@pytest.mark.parametrize("bits", [14, 21, 24])
def test_rows_and_columns_of_one_array_are_those_of_each(bits: int) -> None:
    x, y, z = awkward_rows(14), floats(1, 3, 14), floats(2, 3, len(awkward_rows(14)))
    of_rows, of_columns = (product_ops.quantise(other, bits) for other in (y, z))
    rows, columns = product_ops.quantise_both(x, bits)
    kept_rows, kept = product_ops.quantise_keep(x, bits)
    for made in (rows, kept_rows):
        assert_same_bits(product_ops.dot(made, of_rows), product_ops.dot(product_ops.quantise(x, bits), of_rows))
    for made in (columns, product_ops.kept_columns(kept, bits)):
        assert_same_bits(
            product_ops.dot(made, of_columns), product_ops.dot(product_ops.quantise_t(x, bits), of_columns)
        )
    with pytest.raises(NonFinite):
        rows, _ = product_ops.quantise_both(with_value(floats(1, 3, 14), np.float32(np.inf)), bits)
        product_ops.dot(rows, of_rows)


def test_operands_of_different_bits_are_a_programming_error() -> None:
    with pytest.raises(ValueError, match="operands of 14 and 21 bits"):
        dot(quantise(floats(1, 2, 3), 14), quantise(floats(1, 2, 3), 21))


@pytest.mark.parametrize(("bits", "tolerance"), [(14, 3e-4), (21, 3e-6)])
def test_close_to_float64(bits: int, tolerance: float) -> None:
    """Each operand is off by at most 2^-bits of its row's largest value."""
    x, y = normals(1, 20, 300), normals(2, 20, 300)
    want = x.astype(np.float64) @ y.astype(np.float64).T
    assert relative_error(product(x, y, bits), want) < tolerance
