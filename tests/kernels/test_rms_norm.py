"""cuda/rms_norm.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels import rms_norm
from auditkit.kernels.operands import rms_norm_keep, rms_norm_rows
from auditkit.kernels.product import kept_columns
from auditkit.kernels.quantise import quantise_both
from auditkit.kernels.rms_norm import (
    holds,
    rms_norm_backward,
    rms_norm_backward_add,
    rms_norm_both,
    rms_norm_forward,
)
from auditkit.kernels.row_sum import RowShape
from auditkit.numerics import rms_norm as reference
from auditkit.numerics.layout import add
from tests.kernels.variants import NOT_FINITE, SUM_RANGE, Run, assert_same_operands, runs
from tests.ops.cases import LARGEST, awkward_rows, floats, normals, with_value
from tests.ops.cases import NOT_FINITE as BAD_VALUES
from tests.same_bits import assert_same_bits

EPS = np.float32(1e-5)
SHAPES = (None, RowShape(32, 32), RowShape(32, 128), RowShape(64, 64), RowShape(256, 256))
WIDTHS = (1, 2, 3, 4, 31, 32, 33, 60, 64, 68, 127, 128, 129, 252, 256, 260, 384, 511, 512, 516, 1028)


def check(device: Any, x: Any, weight: Any, dy: Any, shapes: Any = SHAPES) -> None:
    y, cache = reference.rms_norm_forward(x, weight, EPS)
    dx, dweight = reference.rms_norm_backward(dy, weight, cache)
    for run in runs(device):
        on_x, on_weight, on_dy = run.up(x), run.up(weight), run.up(dy)
        for shape in shapes:
            got_y, got = rms_norm_forward(run.device, on_x, on_weight, EPS, shape=shape)
            assert_same_bits(run.down(got_y), y)
            assert_same_bits(run.down(got.rstd), cache.rstd)
            got_dx, got_dweight = rms_norm_backward(run.device, run.status, on_dy, on_weight, got, shape=shape)
            assert_same_bits(run.down(got_dx), dx)
            assert_same_bits(run.down(got_dweight), dweight)
        assert run.bits() == 0


def check_add(device: Any, x: Any, weight: Any, dys: Any, residual: Any, shapes: Any) -> None:
    """One, two and three gradients, with and without a residual: what `add` and `rms_norm_backward` make of them."""
    _, cache = reference.rms_norm_forward(x, weight, EPS)
    sums = [dys[0], add(dys[0], dys[1]), add(add(dys[0], dys[1]), dys[2])]
    want = [reference.rms_norm_backward(dy, weight, cache) for dy in sums]
    for run in runs(device):
        _, got = rms_norm_forward(run.device, run.up(x), run.up(weight), EPS)
        on_weight, on_residual, on_dys = run.up(weight), run.up(residual), [run.up(dy) for dy in dys]
        for shape in shapes:
            for count, (dx, dweight) in enumerate(want, 1):
                for onto, expected in ((None, dx), (on_residual, add(residual, dx))):
                    args = (run.status, on_dys[:count], on_weight, got, onto)
                    found, sums_of_weight = rms_norm_backward_add(run.device, *args, shape=shape)
                    assert_same_bits(run.down(found), expected)
                    assert_same_bits(run.down(sums_of_weight), dweight)
        assert run.bits() == 0


@pytest.mark.parametrize("width", WIDTHS)
def test_widths(device: Any, width: int) -> None:
    rows = 5 if width < 500 else 2
    check(device, normals(1, rows, width), normals(2, width), normals(3, rows, width, scale=1e-3))


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 67])
def test_rows(device: Any, rows: int) -> None:
    few_blocks = (RowShape(32, 64, most=1), RowShape(128, 128, most=2))
    for width in (23, 24):
        check(device, normals(1, rows, width), normals(2, width), normals(3, rows, width), (*SHAPES[:3], *few_blocks))


@pytest.mark.parametrize("width", [764, 1532, 2048, 4096, 5632, 6148, 9000])
def test_wide_rows(device: Any, width: int) -> None:
    """More than one cell a thread, and more than registers hold."""
    check(device, normals(1, 2, width), normals(2, width), normals(3, 2, width), (None,))


@pytest.mark.parametrize(
    ("rows", "width"),
    [(1, 4), (0, 8), (67, 64), (70, 132), (3, 33), (5, 1028), (2, 4100), (2, 9000), (67, 128), (3, 2048), (2, 8192)],
)
def test_operands_are_those_of_the_result(device: Any, rows: int, width: int) -> None:
    x, weight = normals(1, rows, width), normals(2, width)
    few = (
        (None, RowShape(32, 64, most=1), RowShape(128, 128, most=2)) if 0 < width <= 512 and width % 4 == 0 else (None,)
    )
    for run in runs(device):
        on_x, on_weight = run.up(x), run.up(weight)
        y, cache = rms_norm_forward(run.device, on_x, on_weight, EPS)
        for bits in (14, 21):
            made, kept, found = rms_norm_keep(run.device, run.status, on_x, on_weight, EPS, bits)
            columns = kept_columns(run.device, run.status, kept, bits)
            both = quantise_both(run.device, run.status, y, bits)
            assert_same_operands(run, (made, columns), both)
            assert_same_operands(
                run, (rms_norm_rows(run.device, run.status, on_x, on_weight, EPS, bits), columns), both
            )
            assert_same_bits(run.down(found.rstd), run.down(cache.rstd))
        for shape in few if rows and holds(width) else ():
            *made_both, found = rms_norm_both(run.device, run.status, on_x, on_weight, EPS, shape=shape)
            both = quantise_both(run.device, run.status, y, 14)
            assert_same_operands(run, made_both, both)
            assert_same_bits(run.down(found.rstd), run.down(cache.rstd))
            if width % 128 == 0:
                alone = rms_norm.rms_norm_rows(run.device, run.status, on_x, on_weight, EPS, shape=shape)
                assert_same_operands(run, (alone, both[1]), both)
        assert run.bits() == 0


def test_a_value_that_is_not_finite_is_found_in_the_operand(device: Any) -> None:
    x, weight = np.ones((40, 64), np.float32), np.ones(64, np.float32)
    with device.use():
        for value in BAD_VALUES:
            run = Run(device)
            rms_norm_keep(device, run.status, run.up(with_value(x, value)), run.up(weight), EPS, 14)
            assert run.bits() == NOT_FINITE
            for width in (64, 128):
                run, of = Run(device), np.ones(width, np.float32)
                wide = with_value(np.ones((40, width), np.float32), value)
                rms_norm_rows(device, run.status, run.up(wide), run.up(of), EPS, 14)
                assert run.bits() == NOT_FINITE


@pytest.mark.parametrize("width", [4, 33, 64])
def test_awkward_rows(device: Any, width: int) -> None:
    x = awkward_rows(width)
    x[5] = 1e19  # its square overflows: rstd is 0
    check(device, x, floats(5, width, low=-20, high=2), floats(6, 9, width, low=-149, high=-10), SHAPES[:4])


@pytest.mark.parametrize("shape", [RowShape(32, 32), RowShape(64, 64), RowShape(32, 128)], ids=str)
@pytest.mark.parametrize("width", [8, 33])
def test_what_has_no_result_sets_status(device: Any, width: int, shape: RowShape) -> None:
    ones, weight = np.ones((40, width), np.float32), np.ones(width, np.float32)
    for run in runs(device):
        _, cache = rms_norm_forward(run.device, run.up(ones), run.up(weight), np.float32(0), shape=shape)
        for value in (*BAD_VALUES, np.float32(64)):
            run.status = run.device.zeros((1,), np.uint32)
            dy = run.up(with_value(ones * 0, value))
            rms_norm_backward(run.device, run.status, dy, run.up(weight), cache, shape=shape)
            assert run.bits() == NOT_FINITE
        for size, bits in ((np.float32(1.59), 0), (np.float32(1.61), SUM_RANGE), (np.float32(63), SUM_RANGE)):
            run.status = run.device.zeros((1,), np.uint32)
            _, total = rms_norm_backward(
                run.device, run.status, run.up(ones * size), run.up(weight), cache, shape=shape
            )
            assert run.bits() == bits
            if not bits:
                assert_same_bits(run.down(total), np.full(width, 40 * int(np.float64(size) * 2**56), np.int64))


@pytest.mark.parametrize("width", [*WIDTHS, 764, 1532, 4100, 6148, 9000])
def test_widths_of_sums(device: Any, width: int) -> None:
    rows, shapes = (5, (None, RowShape(64, 64))) if width < 500 else (2, (None,))
    dys = [normals(3 + i, rows, width, scale=1e-3) for i in range(3)]
    check_add(device, normals(1, rows, width), normals(2, width), dys, normals(6, rows, width), shapes)


@pytest.mark.parametrize("rows", [0, 1, 9, 67])
def test_rows_of_sums(device: Any, rows: int) -> None:
    """Several rows a thread, so that the next row's gradients are under way."""
    shapes = (None, RowShape(32, 64, most=1), RowShape(128, 128, most=2))
    for width in (23, 24, 256, 268):
        dys = [normals(3 + i, rows, width) for i in range(3)]
        check_add(device, normals(1, rows, width), normals(2, width), dys, normals(6, rows, width), shapes)


@pytest.mark.parametrize("width", [4, 33, 64])
def test_awkward_rows_of_sums(device: Any, width: int) -> None:
    """Gradients of which some are -0, subnormal or the negative of each other; residuals of every size."""
    x, residual = awkward_rows(width), awkward_rows(width)[::-1].copy()
    x[5], residual[3] = 1e19, -0.0
    first = floats(6, 9, width, low=-149, high=-10)
    first[2], first[3] = -0.0, floats(7, width, low=-149, high=-127)
    dys = [first, floats(8, 9, width, low=-149, high=-10), floats(9, 9, width, low=-30, high=-10)]
    dys[1][2], dys[1][4], dys[2][2], dys[2][4] = -0.0, -first[4], -0.0, -0.0
    check_add(device, x, floats(5, width, low=-20, high=2), dys, residual, SHAPES[:4])


@pytest.mark.parametrize("width", [8, 33])
def test_what_has_no_result_sets_status_of_sums(device: Any, width: int) -> None:
    """A gradient that is not finite, or whose sum is not; of the residual nothing is asked here."""
    ones, weight = np.ones((40, width), np.float32), np.ones(width, np.float32)
    half = np.float32(LARGEST / 2)
    for run in runs(device):
        _, cache = rms_norm_forward(run.device, run.up(ones), run.up(weight), np.float32(0))

        def status(dys: Any, residual: Any, run: Run = run, cache: Any = cache) -> int:
            run.status = run.device.zeros((1,), np.uint32)
            args = (run.status, [run.up(dy) for dy in dys], run.up(weight), cache, run.up(residual))
            rms_norm_backward_add(run.device, *args)
            return run.bits()

        for value in (*BAD_VALUES, np.float32(64)):
            for at in range(3):
                dys = [with_value(ones * 0, value) if i == at else ones * 0 for i in range(3)]
                assert status(dys, ones) == NOT_FINITE
            assert status([ones * 0], with_value(ones, value)) == 0
        assert status([with_value(ones * 0, half)] * 3, ones) == NOT_FINITE
        assert status([with_value(ones * 0, value) for value in (np.float32(64), np.float32(-64))], ones) == 0
        for size, bits in ((np.float32(1.59), 0), (np.float32(1.61), SUM_RANGE), (np.float32(63), SUM_RANGE)):
            assert status([ones * (size / 2), ones * (size / 4), ones * (size / 4)], ones) == bits
