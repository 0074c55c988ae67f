"""Products in C against the reference, word for word: sizes around every boundary, exponents of every size."""

from __future__ import annotations

import numpy as np
import pytest

from auditkit.native import product as native_product
from auditkit.native.ops import NativeOps
from auditkit.native.product import NativeRows
from auditkit.numerics import reference
from auditkit.numerics.nonfinite import NonFinite
from tests.ops.cases import BOUNDARY_SIZES, F32, NOT_FINITE, awkward_rows, floats, frozen, normals, with_value
from tests.same_bits import assert_same_bits

BITS = pytest.mark.parametrize("bits", [14, 21])


def check(ops: NativeOps, x: F32, y: F32, bits: int) -> None:
    """Every way to the product of x (M, K) and y (N, K) gives the reference's words."""
    x, y = frozen(x, y)
    want = reference.dot(reference.quantise(x, bits), reference.quantise(y, bits))
    turned = frozen(np.ascontiguousarray(y.T))[0]
    both, columns = ops.quantise_both(turned, bits)
    later = [columns, ops.kept_columns(ops.quantise_keep(turned, bits)[1], bits)]
    # Of long ones with the first and the last of its rows: all by all would be 20,000 by 20,000 dots of six elements.
    ends = turned[np.r_[: min(len(turned), 256), max(256, len(turned) - 256) : len(turned)]]
    met = reference.dot(reference.quantise(turned, bits), reference.quantise(ends, bits))
    assert_same_bits(ops.dot(both, ops.quantise(ends, bits)), met)
    assert_same_bits(ops.dot(columns, ops.quantise(x, bits)), np.ascontiguousarray(want.T))
    for rows in (
        *later,
        ops.quantise(y, bits),
        ops.quantise_t(turned, bits),
        ops.weight_rows(y, bits),
        ops.weight_rows_t(turned, bits),
    ):
        assert_same_bits(ops.dot(ops.quantise(x, bits), rows), want)


@BITS
@pytest.mark.parametrize("size", BOUNDARY_SIZES)
def test_boundary_sizes(native: NativeOps, size: int, bits: int) -> None:
    check(native, floats(1, 3, size), floats(2, 5, size), bits)
    check(native, floats(3, size, 9), floats(4, 7, 9), bits)
    check(native, floats(5, 7, 9), floats(6, size, 9), bits)


@BITS
@pytest.mark.parametrize(("low", "high"), [(-149, -127), (-149, 127), (100, 127), (-110, -90), (96, 104)])
def test_extreme_exponents(native: NativeOps, low: int, high: int, bits: int) -> None:
    check(native, floats(1, 7, 19, low=low, high=high), floats(2, 7, 19, low=low, high=high), bits)
    check(native, floats(3, 7, 19, low=low, high=high), floats(4, 7, 19, low=-25, high=-20), bits)


@BITS
def test_awkward_rows(native: NativeOps, bits: int) -> None:
    rows = np.concatenate([awkward_rows(21), floats(1, 4, 21)])
    check(native, rows, rows[::-1], bits)


@pytest.mark.parametrize("depth", [240, 256, 272, 1000, 4096, 20_000])
@pytest.mark.parametrize("kind", ["usual", "largest", "one sign", "one lane"])
def test_sums_that_would_leave_32_bits(native: NativeOps, depth: int, kind: str) -> None:
    """Whole rows fit 32 bits, or lanes do, or neither: every way to empty the lanes, all kinds of rows in a tile."""
    x, y = normals(1, 5, depth), normals(2, 6, depth)
    if kind == "largest":
        x, y = np.ones_like(x), -np.ones_like(y)
    if kind == "one sign":
        x[2:], y[3:] = np.abs(x[2:]) + 1, np.abs(y[3:]) + 1
    if kind == "one lane":
        x[:, np.arange(depth) % 16 > 1], y[:, np.arange(depth) % 16 > 1] = 0, 0
        x[x != 0], y[y != 0] = 1, 1
    check(native, x, y, 14)


def test_the_largest_integers(native: NativeOps) -> None:
    """Just below a power of two a row rounds up to 2^13 itself: 15 steps of such pairs are the most that fit."""
    x = np.full((3, 512), np.nextafter(np.float32(1), np.float32(0)), np.float32)
    assert native.quantise(x, 14).values.max() == 1 << 13
    check(native, x, x, 14)
    check(native, x, -x, 14)


@BITS
@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_value_that_is_not_finite_is_refused(native: NativeOps, value: np.float32, bits: int) -> None:
    x = with_value(floats(1, 4, 33), value)
    for quantise in (native.quantise, native.quantise_t):
        with pytest.raises(NonFinite):
            quantise(x, bits)


@BITS
def test_rows_further_apart_and_other_shapes(native: NativeOps, bits: int) -> None:
    wide = floats(1, 9, 40)
    for x in (wide[:, 3:20], wide[::2], wide[:, ::2], wide.T):
        check(native, x, floats(2, 4, x.shape[1]), bits)
    stack = floats(3, 2, 3, 7)
    got = native.dot(native.quantise(stack, bits), native.quantise(stack, bits))
    assert_same_bits(got, reference.dot(reference.quantise(stack, bits), reference.quantise(stack, bits)))
    nothing = np.zeros((0, 5), np.float32)
    assert native.dot(native.quantise(nothing, bits), native.quantise(nothing, bits)).shape == (0, 0)


def test_parts_handed_to_threads(native: NativeOps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_product, "product_threads", lambda: 3)
    monkeypatch.setattr(native_product, "_FOR_THREADS", 1)
    for rows in (1, 2, 3, 64, 130):
        check(native, normals(1, rows, 70), normals(2, 9, 70), 14)


def test_a_weight_in_parts(native: NativeOps, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_product, "_LATER_ROWS", 4)
    monkeypatch.setattr(native_product, "_LATER_ELEMENTS", 1)
    check(native, normals(1, 6, 33), normals(2, 11, 33), 14)


def test_rows_of_integers_end_in_zeros(native: NativeOps) -> None:
    for rows in (native.quantise(floats(1, 3, 21), 14), native.quantise_t(floats(1, 21, 3), 14)):
        assert isinstance(rows, NativeRows) and rows.values.shape == (3, 32) and not rows.values[:, 21:].any()


def test_rows_that_are_too_long_for_the_sums_are_the_references(
    native: NativeOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From 2^25 elements on a sum may leave what C makes binary64 of; only the limit is lowered here."""
    monkeypatch.setattr(native_product, "TOO_LONG", 100)
    x, y = frozen(normals(1, 7, 100), normals(2, 5, 100))
    want = reference.dot(reference.quantise(x, 14), reference.quantise(y, 14))
    turned = [np.ascontiguousarray(array.T) for array in (x, y)]
    for a, b in (
        (native.quantise(x, 14), native.quantise(y, 14)),
        (native.quantise_t(turned[0], 14), native.weight_rows_t(turned[1], 14)),
        (native.quantise_both(turned[0], 14)[1], native.weight_rows(y, 14)),
    ):
        assert not isinstance(a, NativeRows)
        assert_same_bits(native.dot(a, b), want)
    assert isinstance(native.quantise(x[:, :99], 14), NativeRows)
