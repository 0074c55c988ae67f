"""Exact sums: rounding to 64-bit fixed point and back, and stops where a sum could leave its range, never before."""

from __future__ import annotations

import numpy as np
import pytest

from auditkit.formats.tensors import tensor_digest
from auditkit.numerics import lists
from auditkit.numerics.exact_sum import (
    GRADIENT_UNIT,
    BlockSums,
    add_sums,
    from_fixed,
    largest,
    sum_rows,
    sum_segments,
    to_fixed,
)
from auditkit.numerics.layout import TensorDigest
from auditkit.numerics.nonfinite import NonFinite
from tests.ops.cases import F32, NOT_FINITE, SMALLEST, awkward_rows, floats, frozen, strided, with_value
from tests.ops.oracle import sums
from tests.same_bits import assert_same_bits

UNITS = pytest.mark.parametrize("unit", [30, 32, 56])


def oracle_fixed(x: F32, unit: int) -> np.ndarray:
    """to_fixed element by element."""
    return np.array([sums.fixed(v, unit) for v in x.reshape(-1)], np.int64).reshape(x.shape)


@UNITS
@pytest.mark.parametrize(("low", "high"), [(-149, -60), (-60, -20), (-32, 4)])
def test_to_fixed_equals_the_oracle(low: int, high: int, unit: int) -> None:
    (x,) = frozen(floats(-low, 200, low=low, high=high))
    assert_same_bits(to_fixed(x, unit), oracle_fixed(x, unit))


@UNITS
def test_to_fixed_rounds_ties_to_even(unit: int) -> None:
    x = np.ldexp(np.arange(-9, 10).astype(np.float32) / np.float32(2), -unit)
    assert to_fixed(x, unit).tolist() == [-4, -4, -4, -3, -2, -2, -2, -1, 0, 0, 0, 1, 2, 2, 2, 3, 4, 4, 4]


def test_to_fixed_loses_what_is_below_the_unit() -> None:
    assert to_fixed(np.array([SMALLEST, -SMALLEST, 2.0**-57, 2.0**-58], np.float32), 56).tolist() == [0, 0, 0, 0]
    assert to_fixed(np.zeros((0, 3), np.float32), 56).shape == (0, 3)


@UNITS
@pytest.mark.parametrize("sign", [1, -1])
def test_to_fixed_stops_at_2_to_the_62(unit: int, sign: int) -> None:
    limit = np.float32(2.0 ** (62 - unit))
    below = np.array([sign * np.nextafter(limit, np.float32(0))])
    assert_same_bits(to_fixed(below, unit), oracle_fixed(below, unit))
    with pytest.raises(NonFinite, match=rf"reaches 2\^{62 - unit}"):
        to_fixed(np.array([0.0, sign * limit], np.float32), unit)


@pytest.mark.parametrize("bad", NOT_FINITE)
def test_to_fixed_refuses_what_is_not_finite(bad: np.float32) -> None:
    with pytest.raises(NonFinite):
        to_fixed(with_value(floats(1, 7), bad), 56)


@UNITS
def test_from_fixed_equals_the_oracle(unit: int) -> None:
    """Every size, and ties of the rounding to 24 bits with and without a bit far below (binary64 would lose it)."""
    edges = [((1 << 24) + odd << shift) + tail for odd in (1, 3) for shift in range(1, 38) for tail in (-1, 0, 1)]
    small = [*range(-5, 6), (1 << 62) - 1, (1 << 53) + 1]
    values = np.array([*edges, *(-e for e in edges), *small], np.int64)
    want = np.array([sums.from_fixed(int(v), unit) for v in values], np.float32)
    assert_same_bits(from_fixed(values, unit), want)


def test_from_fixed_of_zero_is_plus_zero() -> None:
    assert from_fixed(np.zeros(2, np.int64), 56).view(np.uint32).tolist() == [0, 0]


def test_from_fixed_does_not_round_twice() -> None:
    assert float(from_fixed(np.array([(1 << 60) + (1 << 36) + 1], np.int64), 0)[0]) == 2.0**60 + 2.0**37


@UNITS
def test_rows_add_up_exactly_in_any_order(unit: int) -> None:
    x = np.concatenate([floats(1, 40, 3, low=-60, high=3), np.zeros((2, 3), np.float32)])
    terms = to_fixed(x, unit)
    want = [sum(sums.fixed(v, unit) for v in column) for column in x.T]
    assert sum_rows(terms).tolist() == want
    assert sum_rows(terms[::-1]).tolist() == want
    assert add_sums(sum_rows(terms[:17]), sum_rows(terms[17:])).tolist() == want
    assert sum_rows(terms[:0]).tolist() == [0, 0, 0]


def test_segments_add_up_as_rows_do() -> None:
    terms = to_fixed(floats(1, 10, 4, low=-60, high=3), 56)
    starts = np.array([0, 1, 5, 9])
    want = np.stack([sum_rows(part) for part in np.split(terms, starts[1:])])
    assert_same_bits(sum_segments(terms, starts), want)


HALF = 1 << 61


def test_large_terms_of_different_sums_do_not_add_up() -> None:
    apart = np.array([[HALF, 0, 5], [0, -HALF, 5]], np.int64)
    assert sum_rows(apart).tolist() == [HALF, -HALF, 10]
    assert add_sums(apart[0], apart[1]).tolist() == [HALF, -HALF, 10]
    assert sum_segments(np.array([[HALF], [HALF]], np.int64), np.array([0, 1])).tolist() == [[HALF], [HALF]]


def test_a_sum_may_pass_through_large_values() -> None:
    """The rule is one of the true total: order and partial sums must not decide whether a step has a result."""
    terms = np.array([[HALF], [HALF], [-HALF], [3]], np.int64)
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [0, 2, 1, 3]):
        assert sum_rows(terms[order]).tolist() == [HALF + 3]
    assert sum_rows(np.array([[-HALF], [-HALF]], np.int64)).tolist() == [-2 * HALF]


@pytest.mark.parametrize("count", [2, 8, 16, 1000])
def test_a_sum_that_leaves_its_range_stops_even_if_it_wraps(count: int) -> None:
    """8 terms of 2^61 wrap to 0 modulo 2^64."""
    terms = np.full((count, 2), HALF, np.int64)
    with pytest.raises(NonFinite, match="leaves 62 bits"):
        sum_rows(terms)
    with pytest.raises(NonFinite, match="leaves 62 bits"):
        sum_segments(np.concatenate([terms, terms]), np.array([0, count]))
    with pytest.raises(NonFinite, match="leaves 62 bits"):
        sum_rows(np.concatenate([-terms, -terms[:1]]))
    with pytest.raises(NonFinite, match="leaves 62 bits"):
        add_sums(terms[0], terms[1])


def test_add_sums_leaves_its_operands_alone() -> None:
    a, b = np.array([1, 2], np.int64), np.array([3, 4], np.int64)
    a.flags.writeable = b.flags.writeable = False
    assert add_sums(a, b).tolist() == [4, 6]
    assert int(add_sums(np.zeros((), np.int64), np.array(7, np.int64))) == 7


def test_strides_do_not_matter() -> None:
    x = awkward_rows(6)[[0, 1, 2, 3, 4, 7, 8]]
    assert_same_bits(to_fixed(strided(x), GRADIENT_UNIT), to_fixed(x, GRADIENT_UNIT))
    assert_same_bits(from_fixed(to_fixed(x, 56).T, 56), from_fixed(np.ascontiguousarray(to_fixed(x, 56).T), 56))


def test_a_long_sum_is_closer_to_the_truth_than_binary32() -> None:
    x = floats(3, 100_000, low=-30, high=-12)
    exact = float(np.add.reduce(x.astype(np.float64)))
    got = float(from_fixed(sum_rows(to_fixed(x, 56)), 56))
    assert abs(got - exact) <= abs(exact) * 2.0**-24


def test_sums_in_blocks_are_the_sums_of_all_rows() -> None:
    rng = np.random.default_rng(3)
    terms = rng.integers(-(1 << 61), 1 << 61, (40, 3))
    terms[20:] = -terms[:20]
    terms[0, 0] += 5
    sums = BlockSums((3,))
    for start in range(0, 40, 7):
        sums.add(terms[start : start + 7])
    assert sums.total().tolist() == [5, 0, 0]


def test_sums_in_blocks_may_pass_through_large_values_but_not_end_there() -> None:
    block = np.full(8, HALF, np.int64)
    there, back = BlockSums(()), BlockSums(())
    for held in (there, back):
        held.add(block)  # 2^64: wraps to 0
        held.add(np.array([1], np.int64))
    back.add(-block)
    assert (int(back.total()), back.integer(), there.integer()) == (1, 1, (1 << 64) + 1)
    with pytest.raises(NonFinite, match="leaves 62 bits"):
        there.total()


def test_sums_can_go_into_an_array_that_is_there() -> None:
    a, b = np.arange(6).reshape(2, 3), np.arange(6).reshape(2, 3) << 40
    total = a.copy()
    assert add_sums(total, b, total) is total
    assert_same_bits(total, add_sums(a, b))
    with pytest.raises(NonFinite):
        add_sums(total, np.full_like(total, (1 << 62) - 1), total)


def test_largest() -> None:
    assert largest(np.zeros((0, 3), np.int64)) == 0
    assert largest(np.array([3, -7, 5])) == 7
    assert largest(np.array(-4)) == 4
    assert largest(np.array([[(1 << 63) - 1, -5]])) == (1 << 63) - 1
    assert largest(np.array([(1 << 63) - 1, -(1 << 63)])) == 1 << 63


@pytest.mark.parametrize("totals", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
def test_add_terms_is_to_fixed_digest_and_add_sums(totals: bool, in_place: bool) -> None:
    terms = [floats(3, 5, 7, high=3), floats(4, 900, low=-149, high=3), np.arange(-4, 5), np.zeros(0, np.float32)]
    exact = [to_fixed(x, 56) if x.dtype == np.float32 else x for x in terms]
    before = [np.full(x.shape, 1 << 40, np.int64) for x in terms] if totals else []
    given = [array.copy() for array in before]
    sums, digests = lists.add_terms(given, terms, 56, out=given if in_place and totals else None)
    assert digests == [tensor_digest(x) for x in exact]
    for got, x, total in zip(sums, exact, before or [0] * len(exact), strict=True):
        assert_same_bits(got, np.asarray(x + total))
    for array, total, got in zip(given, before, sums, strict=False):
        assert got is array if in_place else np.array_equal(array, total)
    sums[2][0] = 99  # a new array, or the total: never the terms
    assert terms[2][0] == -4


def test_add_terms_raises_as_its_parts() -> None:
    with pytest.raises(NonFinite, match="a term"):
        lists.add_terms([], [np.array([64], np.float32)], 56)
    with pytest.raises(NonFinite, match="leaves 62 bits"):
        lists.add_terms([np.array([(1 << 62) - 1])], [np.array([2.0**-56], np.float32)], 56)
    assert lists.add_terms([], [], 56) == ([], [])


@pytest.mark.parametrize("exact", [False, True])
def test_add_pieces_hashes_and_adds_in_place(exact: bool) -> None:
    x = floats(7, 900, high=3)
    fixed = to_fixed(x, 56)
    terms, total, digest = fixed if exact else x, np.full(900, -5, np.int64), TensorDigest(8 * 900)
    whole, other = TensorDigest(8 * 900), np.full(900, 9, np.int64)
    first, added = lists.add_pieces([None, other], [terms[:600], terms], 56, [digest, whole])
    rest = total[600:]
    (again,) = lists.add_pieces([rest], [terms[600:]], 56, [digest])
    assert again is rest and added is other
    assert digest.digest() == whole.digest() == tensor_digest(fixed)
    assert_same_bits(first, fixed[:600])
    assert_same_bits(total, np.concatenate([np.full(600, -5), fixed[600:] - 5]))
    assert_same_bits(other, fixed + 9)
