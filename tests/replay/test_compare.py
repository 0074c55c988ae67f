"""Comparison by bits: signed zeros, NaN payloads, ulp distances, shapes and dtypes."""

from __future__ import annotations

import numpy as np
import pytest

from auditkit.replay.compare import TensorDifference, compare_tensors, ulp_distance


def f32(*words: int) -> np.ndarray:
    return np.array(words, dtype=np.uint32).view(np.float32)


def differ(left: np.ndarray, right: np.ndarray) -> TensorDifference:
    found = compare_tensors("w", "param", left, right)
    assert found is not None
    return found


def test_equal_bits_are_equal_even_for_nan() -> None:
    nan = f32(0x7FC00001, 0xFFC00000, 0x80000000)
    assert compare_tensors("w", "param", nan, nan.copy()) is None


def test_minus_zero_differs_from_zero() -> None:
    found = differ(f32(0, 0), f32(0, 0x80000000))
    assert (found.index, found.left_bits, found.right_bits, found.ulps) == ((1,), "00000000", "80000000", 1)
    assert (found.left, found.right) == ("0.e+00", "-0.e+00")


def test_nan_payloads_differ_without_a_distance() -> None:
    found = differ(f32(0x7FC00000), f32(0xFFC00000))
    assert (found.left_bits, found.right_bits, found.ulps, found.max_ulps) == ("7fc00000", "ffc00000", None, None)


def test_first_element_in_c_order_and_counts() -> None:
    left = np.arange(12, dtype=np.float32).reshape(3, 4)
    right = left.copy()
    right[1, 2] = np.nextafter(right[1, 2], np.float32(100), dtype=np.float32)
    right[2, 0] += np.float32(1)
    found = differ(left, right)
    assert found.index == (1, 2)
    assert found.where == "param w [1, 2]"
    assert (found.ulps, found.differing, found.elements) == (1, 2, 12)
    assert found.max_ulps == 1048576  # 8.0 to 9.0: 2^23 steps in a binade of width 8


def test_strides_and_byte_order_do_not_matter() -> None:
    left = np.arange(6, dtype="<f4").reshape(2, 3)
    assert compare_tensors("w", "param", left, np.asfortranarray(left)) is None
    assert compare_tensors("w", "param", left, left.astype(">f4")) is None


def test_integers_have_no_ulps() -> None:
    found = differ(np.array([1, 2], dtype=np.int64), np.array([1, -2], dtype=np.int64))
    assert (found.left, found.right, found.ulps) == ("2", "-2", None)
    assert found.right_bits == "fffffffffffffffe"


@pytest.mark.parametrize("right", [np.zeros(4, dtype=np.float32), np.zeros((2, 3), dtype=np.int32)])
def test_other_shapes_and_dtypes_are_told_apart(right: np.ndarray) -> None:
    found = differ(np.zeros((2, 3), dtype=np.float32), right)
    assert found.elements == 0
    assert "float32 [2, 3] against" in found.note


def test_scalars_and_empty_tensors() -> None:
    assert differ(np.float32(1).reshape(()), np.float32(2).reshape(())).index == ()
    assert compare_tensors("w", "param", np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)) is None


def test_ulp_distance_crosses_zero_and_binades() -> None:
    assert ulp_distance(1.0, 1.0000001192092896) == 1
    assert ulp_distance(1.401298464324817e-45, -1.401298464324817e-45) == 3
    assert ulp_distance(float("nan"), 1.0) is None
    assert ulp_distance(float("inf"), 3.4028234663852886e38) == 1
