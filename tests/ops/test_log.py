"""log: vectors, accuracy over all exponents and all words around 1, special values."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pytest

from auditkit.numerics import log as module
from auditkit.numerics.log import log
from tests.ops.elementary_checks import CHECKS, Elementwise, check_vectors, f32
from tests.ops.measure_elementary import sweep, worst_error
from tests.same_bits import assert_same_bits


def test_vectors() -> None:
    check_vectors(log, "log")


@pytest.mark.parametrize("check", CHECKS)
def test_elementwise(check: Callable[[Elementwise], None]) -> None:
    check(log)


def test_accuracy_over_all_exponents() -> None:
    error, word = sweep("log", 1 << 10)
    assert error < 1.0, f"{error} ulp at {word:08x}"


@pytest.mark.parametrize(("first", "last"), [(0x3F3504F3, 0x3FB504F3), (1, 1 << 20)], ids=["around 1", "subnormal"])
def test_accuracy_of_all_words(first: int, last: int) -> None:
    error, word = worst_error("log", np.arange(first, last, dtype=np.uint32))
    assert error < 1.0, f"{error} ulp at {word:08x}"


def test_special_values() -> None:
    x = f32([0, 0x80000000, 0x3F800000, 0x7F800000, 0xFF800000, 0xBF800000, 0x80000001, 0x7FC00000, 0xFFFFFFFF])
    nan = 0x7FC00000
    assert_same_bits(log(x), f32([0xFF800000, 0xFF800000, 0, 0x7F800000, nan, nan, nan, nan, nan]))


def test_constants() -> None:
    terms = [2 / 3, 2 / 5, 2 / 7, 2 / 9]
    assert [module.L1, module.L2, module.L3, module.L4] == [np.float32(t) for t in terms]
    assert np.float32(float(Decimal(2).ln() - Decimal(float(module.LN2_HI)))) == module.LN2_LO
