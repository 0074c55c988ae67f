"""Ordered row sums: the halving tree of the specification, word for word."""

from __future__ import annotations

import numpy as np
import pytest

from auditkit.numerics.row_sum import row_sum
from tests.ops.cases import BOUNDARY_SIZES, F32, LARGEST, SMALLEST, floats, frozen, normals, strided
from tests.ops.oracle import sums
from tests.same_bits import assert_same_bits


def check(x: F32) -> None:
    """The op gives the oracle's words for rows x (M, K) and leaves x alone."""
    (x,) = frozen(x)
    assert_same_bits(row_sum(x), np.array([sums.row_sum(row) for row in x], np.float32))


@pytest.mark.parametrize("width", [0, *BOUNDARY_SIZES, 255, 256, 257, 1000])
def test_equals_the_oracle(width: int) -> None:
    check(floats(width, 4, width, low=-20, high=20))


@pytest.mark.parametrize(("low", "high"), [(-149, -127), (-149, 120), (-127, -124)])
def test_equals_the_oracle_at_extreme_exponents(low: int, high: int) -> None:
    check(floats(1, 4, 13, low=low, high=high))


@pytest.mark.parametrize("width", [1, 2, 3, 4, 5])
def test_sign_of_zero(width: int) -> None:
    """-0 survives where no +0 is added: at powers of two; the padding turns it into +0 elsewhere."""
    zeros = np.full((1, width), -0.0, np.float32)
    check(zeros)
    assert int(row_sum(zeros).view(np.uint32)[0]) == (0x80000000 if width in (1, 2, 4) else 0)


def test_the_order_is_the_tree_and_no_other() -> None:
    """From left to right, or with neighbours first, the small terms would be lost or kept in the other row."""
    s = 2.0**-24
    assert float(row_sum(np.array([[1, s, -1, s]], np.float32))[0]) == 2 * s
    assert float(row_sum(np.array([[1, -1, s, s]], np.float32))[0]) == s  # (1 + s) + (-1 + s), and 1 + s is 1


def test_infinities_follow_binary32() -> None:
    x = np.array([[LARGEST, LARGEST, 1], [np.inf, -np.inf, 0], [np.nan, 0, 0]], np.float32)
    with np.errstate(all="ignore"):
        got = row_sum(x)
    assert got[0] == np.inf and np.isnan(got[1:]).all()


def test_leading_shape_and_strides_do_not_matter() -> None:
    x = floats(1, 2, 3, 7)
    assert_same_bits(row_sum(x).reshape(-1), row_sum(x.reshape(6, 7)))
    assert_same_bits(row_sum(strided(x)), row_sum(x))
    assert row_sum(np.zeros((0, 5), np.float32)).shape == (0,)
    assert int(row_sum(np.full((1, 2), SMALLEST)).view(np.uint32)[0]) == 2


def test_close_to_float64() -> None:
    x = normals(1, 8, 4096)
    want = np.add.reduce(x.astype(np.float64), axis=1)
    assert float(np.abs(row_sum(x) - want).max()) < 12 * 2.0**-24 * 64  # 12 levels, partial sums below 64 in size
