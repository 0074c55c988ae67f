"""RMSNorm forward and backward: word for word the oracle, and close to float64."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from auditkit.model.composed import ComposedOps
from auditkit.numerics import reference
from auditkit.numerics.nonfinite import NonFinite
from auditkit.numerics.operands import rms_norm_backward_add
from auditkit.numerics.rms_norm import rms_norm_backward, rms_norm_forward
from tests.ops.cases import (
    BOUNDARY_SIZES,
    F32,
    NOT_FINITE,
    awkward_rows,
    floats,
    frozen,
    normals,
    relative_error,
    strided,
    with_value,
)
from tests.ops.oracle import layers
from tests.same_bits import assert_same_bits

EPS = np.float32(1e-5)


def check(x: F32, weight: F32, dy: F32, eps: np.float32 = EPS) -> None:
    """Forward and backward give the oracle's words and leave their inputs alone."""
    x, weight, dy = frozen(x, weight, dy)
    y, cache = rms_norm_forward(x, weight, eps)
    want, rstd, xhat = layers.rms_norm(x, weight, eps)
    assert_same_bits(y, want)
    dx, dweight = rms_norm_backward(dy, weight, cache)
    want_dx, want_dweight = layers.rms_norm_backward(dy, weight, rstd, xhat)
    assert_same_bits(dx, want_dx)
    assert_same_bits(dweight, want_dweight)


@pytest.mark.parametrize("width", BOUNDARY_SIZES)
def test_equals_the_oracle_at_boundary_sizes(width: int) -> None:
    check(floats(1, 3, width), floats(2, width, low=-2, high=1), floats(3, 3, width, low=-20, high=-2))


def test_equals_the_oracle_on_awkward_rows() -> None:
    """Squares that vanish (rstd is that of eps) and squares that overflow (rstd and the result are 0)."""
    x = awkward_rows(7)
    check(x, floats(1, 7), floats(2, 9, 7, low=-20, high=-2))
    y, _ = rms_norm_forward(x, np.ones(7, np.float32), EPS)
    assert_same_bits(y[5], np.zeros(7, np.float32))
    assert int(y[1].view(np.uint32)[0]) == 0x80000000


@pytest.mark.parametrize("eps", [1e-12, 1e-6, 0.5, float(np.float32(2.0**-149))])
def test_equals_the_oracle_for_every_eps(eps: float) -> None:
    check(floats(1, 4, 6, low=-30, high=0), floats(2, 6), floats(3, 4, 6, low=-60, high=-50), np.float32(eps))


def test_more_rows_than_a_block_holds() -> None:
    """The op works in blocks of rows; a block's edge changes no bit."""
    x, weight, dy = normals(1, 1100, 64), normals(2, 64), normals(3, 1100, 64, scale=1e-3)
    y, cache = rms_norm_forward(x, weight, EPS)
    dx, dweight = rms_norm_backward(dy, weight, cache)
    total = np.zeros(64, np.int64)
    for row in range(0, 1100, 7):
        at = slice(row, row + 7)
        part, part_cache = rms_norm_forward(x[at], weight, EPS)
        part_dx, part_dweight = rms_norm_backward(dy[at], weight, part_cache)
        assert_same_bits(part, y[at])
        assert_same_bits(part_dx, dx[at])
        total += part_dweight
    assert_same_bits(total, dweight)


def test_no_rows() -> None:
    empty = np.zeros((0, 4), np.float32)
    y, cache = rms_norm_forward(empty, np.ones(4, np.float32), EPS)
    dx, dweight = rms_norm_backward(empty, np.ones(4, np.float32), cache)
    assert (y.shape, dx.shape, dweight.tolist()) == ((0, 4), (0, 4), [0, 0, 0, 0])


def test_strides_do_not_matter() -> None:
    x, weight, dy = floats(1, 5, 6), floats(2, 6), floats(3, 5, 6, low=-9, high=0)
    y, cache = rms_norm_forward(x, weight, EPS)
    strided_y, strided_cache = rms_norm_forward(strided(x), strided(weight), EPS)
    assert_same_bits(strided_y, y)
    dx, dweight = rms_norm_backward(dy, weight, cache)
    strided_dx, strided_dweight = rms_norm_backward(strided(dy), strided(weight), strided_cache)
    assert_same_bits(strided_dx, dx)
    assert_same_bits(strided_dweight, dweight)


@pytest.mark.parametrize("bad", NOT_FINITE)
def test_a_gradient_that_is_not_finite_is_refused(bad: np.float32) -> None:
    _, cache = rms_norm_forward(floats(1, 3, 5), np.ones(5, np.float32), EPS)
    with pytest.raises(NonFinite):
        rms_norm_backward(with_value(floats(2, 3, 5), bad), np.ones(5, np.float32), cache)


def test_a_weight_gradient_out_of_range_is_refused() -> None:
    x = np.ones((2, 4), np.float32)
    _, cache = rms_norm_forward(x, np.ones(4, np.float32), EPS)
    with pytest.raises(NonFinite, match=r"reaches 2\^6"):
        rms_norm_backward(x * np.float32(65), np.ones(4, np.float32), cache)
    with pytest.raises(NonFinite, match="leaves 62 bits"):
        rms_norm_backward(x * np.float32(33), np.ones(4, np.float32), cache)


F64 = npt.NDArray[np.float64]


def float64_norm(x: F64, weight: F64, eps: float) -> F64:
    """The formula in binary64."""
    y: F64 = x / np.sqrt(np.mean(x * x, axis=1, keepdims=True) + eps) * weight
    return y


def test_close_to_float64() -> None:
    x, weight, dy = normals(1, 8, 33), normals(2, 33), normals(3, 8, 33, scale=1e-2)
    wide, w64, d64 = x.astype(np.float64), weight.astype(np.float64), dy.astype(np.float64)
    y, cache = rms_norm_forward(x, weight, EPS)
    assert relative_error(y, float64_norm(wide, w64, float(EPS))) < 1e-6
    dx, dweight = rms_norm_backward(dy, weight, cache)
    step, numeric = 1e-6, np.zeros_like(wide)
    for i in range(33):
        bump = np.zeros(33)
        bump[i] = step
        difference = float64_norm(wide + bump, w64, float(EPS)) - float64_norm(wide - bump, w64, float(EPS))
        numeric[:, i] = np.sum(difference * d64, axis=1) / (2 * step)
    assert relative_error(dx, numeric) < 2e-6
    want = np.sum(d64 * float64_norm(wide, np.ones(33), float(EPS)), axis=0)
    assert relative_error(dweight.astype(np.float64) * 2.0**-56, want) < 1e-6


class Asked(ComposedOps):
    """The reference ops, whose combined ones are made of the others; notes which are asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> object:
        self.asked.append(name)
        return getattr(reference, name)


@pytest.mark.parametrize("onto", [False, True], ids=["alone", "onto a residual"])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_sum_of_gradients_is_added_in_its_order(count: int, onto: bool) -> None:
    x, weight, residual = frozen(floats(1, 5, 33), floats(2, 33), floats(3, 5, 33))
    dys = frozen(*(floats(4 + i, 5, 33, low=-20, high=-2) for i in range(count)))
    _, cache = rms_norm_forward(x, weight, EPS)
    _, rstd, xhat = layers.rms_norm(x, weight, EPS)
    dy = dys[0] if count == 1 else dys[0] + dys[1] if count == 2 else (dys[0] + dys[1]) + dys[2]
    dx, dweight = layers.rms_norm_backward(dy, weight, rstd, xhat)
    asked = Asked()
    for made in (rms_norm_backward_add, asked.rms_norm_backward_add):
        got_dx, got_dweight = made(dys, weight, cache, residual if onto else None)
        assert_same_bits(got_dx, residual + dx if onto else dx)
        assert_same_bits(got_dweight, dweight)
    assert set(asked.asked) == {"add", "rms_norm_backward"}
    if count == 3:
        turned, _ = rms_norm_backward_add(dys[::-1], weight, cache, None)
        assert (turned != dx).any()
