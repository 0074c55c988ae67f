"""f32 dots: word for word a scalar loop, in the order of k and no other, never fused, never flushed."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest

from auditkit.numerics import f32_dot, product
from auditkit.numerics.f32_dot import dot, rows, rows_t
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
from tests.ops.oracle import plain
from tests.ops.oracle.rounding import real, rn32
from tests.same_bits import assert_same_bits


def check(x: F32, y: F32) -> None:
    """The product of frozen rows is the oracle's, from rows and from columns alike."""
    x, y = frozen(x, y)
    want = plain.product(x, y)
    assert_same_bits(dot(rows(x), rows(y)), want)
    assert_same_bits(dot(rows_t(np.ascontiguousarray(x.T)), rows(y)), want)
    assert_same_bits(dot(rows(x), rows_t(np.ascontiguousarray(y.T))), want)


@pytest.mark.parametrize("size", [0, *BOUNDARY_SIZES])
def test_equals_the_oracle_at_boundary_lengths(size: int) -> None:
    check(floats(size, 2, size), floats(size + 1, 3, size))


@pytest.mark.parametrize(("m", "n"), [(0, 3), (3, 0), (1, 1), (1, 9), (9, 1), (17, 16), (65, 3), (3, 65)])
def test_equals_the_oracle_for_any_number_of_rows(m: int, n: int) -> None:
    check(floats(m, m, 5), floats(n + 100, n, 5))


@pytest.mark.parametrize(("low", "high"), [(-149, -127), (-80, -60), (-149, 60), (55, 60), (-76, -74)])
def test_equals_the_oracle_at_extreme_exponents(low: int, high: int) -> None:
    check(floats(1, 5, 33, low=low, high=high), floats(2, 7, 33, low=low, high=high))


def test_equals_the_oracle_for_awkward_rows() -> None:
    x = awkward_rows(17)
    check(x, floats(3, 4, 17, low=-3, high=0))
    check(np.delete(x, [5, 6], axis=0), x[[0, 1, 2, 3, 4, 7, 8]])


def test_equals_exact_arithmetic_rounded_after_every_operation() -> None:
    """The oracle trusts NumPy's scalars; here fractions do the rounding."""
    x, y = floats(5, 4, 21, low=-75, high=-60), floats(6, 4, 21, low=-70, high=-60)
    got = dot(rows(x), rows(y))
    for i, j in np.ndindex(got.shape):
        acc = Fraction(0)
        for a, b in zip(x[i], y[j], strict=True):
            acc = real(rn32(acc + real(rn32(real(float(a)) * real(float(b))))))
        assert real(float(got[i, j])) == acc


def test_the_order_of_k_decides() -> None:
    """1, 2^-24, 2^-24 added in their six orders."""
    parts = [np.float32(1), np.float32(2.0**-24), np.float32(2.0**-24)]
    orders = np.array(list(itertools.permutations(parts)), np.float32)
    got = dot(rows(orders), rows(np.ones((1, 3), np.float32)))[:, 0]
    want = [np.float32(np.float32(a + b) + c) for a, b, c in orders]
    assert_same_bits(got, np.array(want, np.float32))
    assert len(set(got.tolist())) == 2


def test_the_product_is_rounded_before_it_is_added() -> None:
    """(1 + 2^-12)^2 - (1 + 2^-11) is 2^-24 when fused, and 0 here."""
    x, y = np.array([[-1, 1 + 2.0**-12]], np.float32), np.array([[1 + 2.0**-11, 1 + 2.0**-12]], np.float32)
    assert_same_bits(dot(rows(x), rows(y)), np.zeros((1, 1), np.float32))


def test_subnormal_products_and_sums_are_kept() -> None:
    x = np.array([[2.0**-75, 2.0**-75, SMALLEST]], np.float32)
    y = np.array([[2.0**-74, 2.0**-74, 1]], np.float32)
    assert_same_bits(dot(rows(x), rows(y)), np.array([[3 * 2.0**-149]], np.float32))


def test_no_result_is_minus_zero() -> None:
    zeros = np.full((3, 4), -0.0, np.float32)
    cancel = np.array([[1, -1, -0.0, 0]], np.float32)
    for x in (zeros, cancel, -cancel, zeros[:, :0]):
        assert_same_bits(dot(rows(x), rows(np.ones((2, x.shape[1]), np.float32))), np.zeros((len(x), 2), np.float32))


def test_an_overflow_is_infinite_and_stays_so() -> None:
    x = np.array([[LARGEST, LARGEST, -LARGEST, -LARGEST], [-LARGEST, -LARGEST, 1, 1]], np.float32)
    got = dot(rows(x), rows(np.ones((1, 4), np.float32)))
    assert_same_bits(got, np.array([[np.inf], [-np.inf]], np.float32))
    assert np.isnan(dot(rows(x[:1]), rows(np.full((1, 4), 2, np.float32)))).all()  # inf - inf


@pytest.mark.parametrize("bad", NOT_FINITE)
@pytest.mark.parametrize("make", [rows, rows_t])
def test_values_that_are_not_finite_are_refused(make: object, bad: np.float32) -> None:
    assert callable(make)
    with pytest.raises(NonFinite, match="f32 dot"):
        make(with_value(floats(1, 3, 4), bad))


def test_batches_are_products_of_their_own() -> None:
    x, y = floats(1, 3, 2, 6, 9), floats(2, 3, 2, 5, 9)
    got = dot(rows(x), rows(y))
    for b in np.ndindex(3, 2):
        assert_same_bits(got[b], plain.product(x[b], y[b]))
    turned = dot(rows_t(np.ascontiguousarray(np.swapaxes(x, -1, -2))), rows_t(np.ascontiguousarray(y.swapaxes(-1, -2))))
    assert_same_bits(turned, got)


@pytest.mark.parametrize("block", [1, 2, 7, 64, 1000])
def test_the_size_of_a_block_changes_no_bit(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = floats(1, 3, 9, 12), floats(2, 3, 14, 12)
    want = dot(rows(x), rows(y))
    monkeypatch.setattr(f32_dot, "_BLOCK", block)
    monkeypatch.setattr(f32_dot, "_WIDEST", 5)
    assert_same_bits(dot(rows(x), rows(y)), want)
    assert_same_bits(dot(rows(y), rows(x)), np.ascontiguousarray(want.swapaxes(-1, -2)))


def test_many_rows_are_cut_into_blocks_without_changing_a_bit() -> None:
    x, y = floats(1, 300, 4), floats(2, 5000, 4)
    got = dot(rows(x), rows(y))
    for i, j in ((0, 0), (299, 4999), (7, 4095), (8, 4096), (150, 2500)):
        assert_same_bits(got[i : i + 1, j : j + 1], plain.product(x[i : i + 1], y[j : j + 1]))


def test_a_row_of_a_product_depends_on_its_own_rows_only() -> None:
    x, y = floats(1, 6, 11), floats(2, 8, 11)
    want = dot(rows(x), rows(y))
    assert_same_bits(dot(rows(x[2:3]), rows(y)), want[2:3])
    changed = x.copy()
    changed[3:] = floats(3, 3, 11, low=60, high=100)
    assert_same_bits(dot(rows(changed), rows(y))[:3], want[:3])


def test_strides_do_not_matter() -> None:
    x, y = floats(1, 6, 11), floats(2, 8, 11)
    assert_same_bits(dot(rows(strided(x)), rows(strided(y))), dot(rows(x), rows(y)))


def test_operands_that_do_not_fit_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="shapes"):
        dot(rows(floats(1, 2, 3)), rows(floats(1, 2, 4)))
    with pytest.raises(ValueError, match="different products"):
        product.dot(product.quantise(floats(1, 2, 3), 24), product.quantise(floats(1, 2, 3), 21))


def test_close_to_float64() -> None:
    x, y = normals(1, 30, 400), normals(2, 40, 400)
    exact = x.astype(np.float64) @ y.astype(np.float64).T
    assert relative_error(dot(rows(x), rows(y)), exact) < 2e-6
