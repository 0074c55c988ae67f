"""Global gradient norm: exact in two limbs, and the clip factor."""

from __future__ import annotations

import numpy as np
import pytest

from auditkit.numerics.global_norm import clip_factor, norm_from_squares, squares
from auditkit.numerics.nonfinite import NonFinite
from tests.ops.cases import F32, NOT_FINITE, SMALLEST, awkward_rows, floats, frozen, normals, strided, with_value
from tests.ops.oracle import update
from tests.same_bits import assert_same_bits


def check(grad: F32) -> None:
    """Squares and norm are the oracle's; the gradient is left alone."""
    (grad,) = frozen(grad)
    total = squares(grad)
    assert type(total) is int
    assert total == update.squares(grad)
    assert_same_bits(np.array(norm_from_squares([total])), np.array(update.norm([total])))


@pytest.mark.parametrize(("low", "high"), [(-149, -75), (-40, -25), (-35, 3), (0, 14)])
@pytest.mark.parametrize("count", [1, 2, 17])
def test_equals_the_oracle(count: int, low: int, high: int) -> None:
    check(floats(-low, count, 3, low=low, high=high))


def test_equals_the_oracle_on_awkward_rows() -> None:
    check(awkward_rows(5)[[0, 1, 2, 3, 4, 7, 8]])


def test_both_limbs_round_ties_to_even() -> None:
    """g * g exact; then rint at 2^-30 leaves a half, and the rest has ties of its own at 2^-62."""
    high = np.ldexp(np.arange(1, 12).astype(np.float32), -16)  # squares in units of 2^-32
    low = np.ldexp(np.arange(1, 12).astype(np.float32), -32)  # squares in units of 2^-64
    check(np.concatenate([high, low]))


def test_more_elements_than_a_block_holds() -> None:
    grad = normals(1, 70_001, scale=1e-3)
    parts = [squares(grad[start : start + 999]) for start in range(0, grad.size, 999)]
    assert squares(grad) == sum(parts)
    assert_same_bits(np.array(norm_from_squares(parts)), np.array(norm_from_squares([squares(grad)])))


def test_small_gradients_are_not_lost_beside_large_ones() -> None:
    grad = np.array([4096.0, *[2.0**-31] * 4], np.float32)
    assert squares(grad) == (1 << 86) + 4


def test_nothing_and_zeros() -> None:
    assert squares(np.zeros((0,), np.float32)) == 0
    assert squares(np.array([0.0, -0.0, SMALLEST], np.float32)) == 0
    assert norm_from_squares([]).view(np.uint32) == 0


def test_shape_and_strides_do_not_matter() -> None:
    grad = floats(1, 6, 8, low=-20, high=0)
    assert squares(strided(grad)) == squares(grad.T) == squares(grad.reshape(-1)) == squares(grad)


@pytest.mark.parametrize("bad", [*NOT_FINITE, np.float32(65536), np.float32(-1e30)])
def test_out_of_range_is_refused(bad: np.float32) -> None:
    with pytest.raises(NonFinite, match="squared gradient"):
        squares(with_value(floats(1, 9), bad))


def test_a_norm_of_2_to_the_16_is_refused() -> None:
    below = np.nextafter(np.float32(65536), np.float32(0))
    assert float(norm_from_squares([squares(np.array([below]))])) == float(below)
    with pytest.raises(NonFinite, match="reaches 2\\^32"):
        norm_from_squares([1 << 93, 1 << 93])


@pytest.mark.parametrize(
    "totals",
    [
        [1],
        [3],
        [1 << 62],
        [(1 << 62) + 1],
        [(1 << 93) + 12345],
        [(1 << 53) + 1, 1 << 10],
        [2, 5],
        [((1 << 24) + 1) ** 2],
    ],
)
def test_norm_equals_the_oracle(totals: list[int]) -> None:
    assert_same_bits(np.array(norm_from_squares(totals)), np.array(update.norm(totals)))
    assert_same_bits(np.array(norm_from_squares(totals[::-1])), np.array(update.norm(totals)))


@pytest.mark.parametrize("norm", [0.0, 0.5, 1.0, 1.0000001, 3.7, 65535.0])
@pytest.mark.parametrize("limit", [0.0, 0.3, 1.0, 10.0])
def test_clip_factor_equals_the_oracle(norm: float, limit: float) -> None:
    got = clip_factor(np.float32(norm), np.float32(limit))
    assert got.dtype == np.float32
    assert got.view(np.uint32) == update.clip_factor(np.float32(norm), np.float32(limit)).view(np.uint32)


def test_clip_off_and_on() -> None:
    assert float(clip_factor(np.float32(1e4), np.float32(0))) == 1.0
    assert float(clip_factor(np.float32(1), np.float32(1))) == 1.0
    assert float(clip_factor(np.float32(4), np.float32(1))) == 0.25


def test_close_to_float64() -> None:
    grads = [normals(seed, 300, scale=10.0**-seed) for seed in range(1, 7)]
    want = float(np.sqrt(sum(np.sum(g.astype(np.float64) ** 2) for g in grads)))
    assert abs(float(norm_from_squares([squares(g) for g in grads])) - want) < 1e-7 * want
