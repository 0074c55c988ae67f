"""The comparison itself: it sees every bit, says where, and never compares values."""

from __future__ import annotations

import numpy as np
import pytest

from tests.same_bits import assert_same_bits


def test_equal_words_pass_whatever_the_strides() -> None:
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert_same_bits(np.asfortranarray(x), x)
    assert_same_bits(np.array(np.nan), np.array(np.nan))
    assert_same_bits(np.zeros((0, 3)), np.zeros((0, 3)))


def test_names_the_first_coordinate_and_both_words() -> None:
    want = np.ones((2, 3), np.float32)
    got = want.copy()
    got[1, 0] = np.nextafter(np.float32(1), np.float32(2))
    got[1, 2] = 0
    message = r"2 of 6 words differ, first at \(1, 0\): 3f800001, expected 3f800000"
    with pytest.raises(AssertionError, match=message):
        assert_same_bits(got, want)


@pytest.mark.parametrize(
    ("got", "want"),
    [
        (np.array([0.0]), np.array([-0.0])),
        (np.array([0x7FC00000], np.uint32).view(np.float32), np.array([0xFFC00000], np.uint32).view(np.float32)),
        (np.array(1, np.int64), np.array(2, np.int64)),
    ],
)
def test_zeros_and_nans_of_other_bits_differ(got: np.ndarray, want: np.ndarray) -> None:
    with pytest.raises(AssertionError, match="1 of 1 words differ"):
        assert_same_bits(got, want)


def test_dtype_and_shape_count() -> None:
    with pytest.raises(AssertionError, match="dtype int32, expected float32"):
        assert_same_bits(np.zeros(3, np.int32), np.zeros(3, np.float32))
    with pytest.raises(AssertionError, match=r"shape \(3,\), expected \(1, 3\)"):
        assert_same_bits(np.zeros(3), np.zeros((1, 3)))
