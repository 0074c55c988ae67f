"""exp: vectors, the specification one element at a time, accuracy over all exponents, its three ways of scaling."""

from __future__ import annotations

import time
from collections.abc import Callable
from decimal import Decimal

import numpy as np
import pytest

from auditkit.numerics import exp as module
from auditkit.numerics.exp import exp
from tests.ops import elementary_scalar
from tests.ops.elementary_checks import CHECKS, Elementwise, check_vectors, f32
from tests.ops.measure_elementary import SIGN, sweep, worst_error
from tests.same_bits import assert_same_bits


def test_vectors() -> None:
    check_vectors(exp, "exp")


@pytest.mark.parametrize("check", CHECKS)
def test_elementwise(check: Callable[[Elementwise], None]) -> None:
    check(exp)


def test_specification_one_element_at_a_time() -> None:
    """Where results turn subnormal; test_elementwise.py does the same with words of all kinds."""
    x = f32(np.arange(0xC2AEA000, 0xC2D00000, 1031, dtype=np.uint32))
    assert_same_bits(exp(x), np.array([elementary_scalar.exp(v) for v in x.tolist()], np.float32))


def test_accuracy_over_all_exponents() -> None:
    error, word = sweep("exp", 1 << 10)
    assert error < 1.0, f"{error} ulp at {word:08x}"


@pytest.mark.parametrize(
    ("first", "last"),
    [(0x3F000000, 0x3F800000), (SIGN | 0x3F000000, SIGN | 0x3F800000), (SIGN | 0x42AE0000, SIGN | 0x42D00000)],
    ids=["1/2 .. 1", "-1 .. -1/2", "-104 .. -87"],
)
def test_accuracy_of_all_words(first: int, last: int) -> None:
    error, word = worst_error("exp", np.arange(first, last, dtype=np.uint64).astype(np.uint32))
    assert error < 1.0, f"{error} ulp at {word:08x}"


def test_special_values() -> None:
    x = f32([0, SIGN, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00001, 0x7F800001, 0x42B17217, 0x42B17218])
    want = [0x3F800000, 0x3F800000, 0x7F800000, 0, 0x7FC00000, 0x7FC00000, 0x7FC00000, 0x7F7FFF84, 0x7F800000]
    assert_same_bits(exp(x), f32(want))
    assert_same_bits(exp(f32([0xC2CFF1B4, 0xC2CFF1B5, 0xC2AEAC4F, 0xC2AEAC50])), f32([1, 0, 0x00800026, 0x007FFFE6]))


def test_never_above_one_for_what_is_not_positive() -> None:
    x = f32(np.arange(SIGN, SIGN + 0x40000000, 4099, dtype=np.uint32))
    assert (exp(x) <= 1).all()


@pytest.mark.parametrize("companion", [np.inf, -np.inf, np.nan, 88.7, -100.0], ids=str)
def test_a_neighbour_in_the_block_changes_no_bit(companion: float) -> None:
    """The companion decides how the whole block is scaled."""
    around_normal = f32(np.arange(0xC2AE0000, 0xC2AF0000, 7, dtype=np.uint32))
    x = np.concatenate([around_normal, np.linspace(-87, 44, 9973, dtype=np.float32)])
    together = exp(np.append(x, np.float32(companion)))
    assert_same_bits(together[:-1], exp(x))
    for i in range(0, x.size, 211):
        assert_same_bits(together[i : i + 1], exp(x[i : i + 1]))


def test_constants() -> None:
    ln2 = Decimal(2).ln()
    hi, lo = (Decimal(float(c)) for c in (module.LN2_HI, module.LN2_LO))
    assert np.float32(float(1 / ln2)) == module.LOG2E
    assert np.float32(float(ln2 - hi)) == np.float32(float(lo))
    assert int(module.LN2_HI.view(np.uint32)) % (1 << 9) == 0  # 15 significant bits: n * LN2_HI is exact for |n| < 2^9


def test_speed() -> None:
    """The hot path runs in vector blocks: far below what one Python-level or scalar call an element would take."""
    x = np.linspace(-88, 0, 1 << 20, dtype=np.float32)
    out = np.empty_like(x)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        exp(x, out=out)
        times.append(time.perf_counter() - start)
    assert min(times) / x.size < 30e-9
