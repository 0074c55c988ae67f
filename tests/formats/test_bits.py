"""Bit patterns as text, against NumPy's conversions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact
from auditkit.formats import bits
from tests.formats.strategies import patterns


@given(patterns)
def test_every_finite_binary32_pattern_survives(pattern: int) -> None:
    value = bits.f32_from_bits(pattern)
    assert np.float32(value).view(np.uint32) == pattern
    assert bits.f32_bits(value) == pattern
    assert bits.parse_f32(bits.f32_text(value)) == value
    assert bits.parse_f32_bits(f"f32:{pattern:08x}") == pattern


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_binary64_number_survives(value: float) -> None:
    text = bits.f64_text(value)
    assert text == f"f64:{np.float64(value).view(np.uint64):016x}"
    assert np.float64(bits.parse_f64(text)).view(np.uint64) == np.float64(value).view(np.uint64)


@given(st.floats(-1e38, 1e38))
def test_rounding_is_that_of_numpy(value: float) -> None:
    assert np.float32(bits.to_f32(value)).view(np.uint32) == np.float32(value).view(np.uint32)


def test_numpy_scalars_are_numbers_too() -> None:
    assert bits.f32_text(np.float32(0.1)) == "f32:3dcccccd"
    assert bits.f64_text(np.float64(0.1)) == "f64:3fb999999999999a"


@pytest.mark.parametrize("value", [0.1, 1e-8, 16777217.0, 1e300, float("inf"), float("nan")])
def test_what_binary32_does_not_hold_is_refused_not_rounded(value: float) -> None:
    with pytest.raises(BadArtifact):
        bits.f32_text(value)


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_only_finite_numbers_have_a_text(value: float) -> None:
    with pytest.raises(BadArtifact):
        bits.f64_text(value)
    with pytest.raises(BadArtifact):
        bits.to_f32(value)


def test_numbers_beyond_binary32_are_not_made_infinite() -> None:
    with pytest.raises(BadArtifact, match="is not a finite binary32 number"):
        bits.to_f32(3.5e38)


def test_zero_and_minus_zero_have_two_texts() -> None:
    assert bits.f32_text(0.0) == "f32:00000000"
    assert bits.f32_text(-0.0) == "f32:80000000"


@pytest.mark.parametrize("pattern", [-1, 1 << 32, True, 0x7F800000, 0xFFC00000])
def test_patterns_that_are_no_finite_number_are_refused(pattern: int) -> None:
    with pytest.raises(BadArtifact):
        bits.check_f32_bits(pattern, "loss")
