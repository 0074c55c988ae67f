"""cos: vectors, accuracy over all exponents with exact reduction, special values."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pytest

from auditkit.numerics.cos import cos
from tests.ops.elementary_checks import CHECKS, Elementwise, check_vectors, f32
from tests.ops.high_precision import sin_cos
from tests.ops.measure_elementary import sweep, worst_error
from tests.same_bits import assert_same_bits


def test_vectors() -> None:
    check_vectors(cos, "cos")


@pytest.mark.parametrize("check", CHECKS)
def test_elementwise(check: Callable[[Elementwise], None]) -> None:
    check(cos)


def test_accuracy_over_all_exponents() -> None:
    error, word = sweep("cos", 1 << 12)
    assert error < 0.5001, f"{error} ulp at {word:08x}"


def test_accuracy_of_all_words_around_a_quarter_turn() -> None:
    error, word = worst_error("cos", np.arange(0x3FC90FDB - (1 << 19), 0x3FC90FDB + (1 << 19), dtype=np.uint32))
    assert error < 0.5001, f"{error} ulp at {word:08x}"


def test_special_values() -> None:
    x = f32([0, 0x80000000, 1, 0x80000001, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFF800001])
    assert_same_bits(cos(x), f32([*[0x3F800000] * 4, *[0x7FC00000] * 4]))


def test_even() -> None:
    x = f32(np.arange(0, 0x7F800000, 65537, dtype=np.uint32))
    assert_same_bits(cos(-x), cos(x))


def test_the_number_nearest_to_a_multiple_of_a_quarter_turn() -> None:
    """16367173 * 2^72: a reduction with too few bits of 2/pi loses everything here."""
    x = np.array([16367173.0 * 2.0**72], np.float32)
    _, exact = sin_cos(Decimal(float(x[0])))
    assert_same_bits(cos(x), np.array([float(exact)], np.float32))
