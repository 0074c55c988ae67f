"""cuda/quantise.cu against the reference: every integer of the planes, and the zeros that pad them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels import quantise as fixed
from auditkit.numerics import exact_dot as reference
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.test_exact_dot import data
from tests.kernels.variants import NOT_FINITE, Run, plain_planes, runs
from tests.same_bits import assert_same_bits

BITS = pytest.mark.parametrize("bits", [14, 21])
# Nothing, one, around a piece and a tile, around what a warp and a block hold, two matrices' worth of strips.
SHAPES = [
    (0, 5),
    (5, 0),
    (1, 1),
    (3, 63),
    (63, 64),
    (64, 65),
    (65, 127),
    (127, 128),
    (130, 129),
    (2, 512),
    (3, 516),
    (7, 1030),
    (40, 2049),
    (300, 70),
    (160, 260),
]
WEIGHTS = {
    14: ((1, 0, 0), (1, 0, 1), (0, 0, 1)),  # plane = these times (h, -, l)
    21: ((1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 1, 0), (0, 1, 1), (1, 0, 1)),
}


def digits(q: Any, bits: int) -> Any:
    """Planes (planes, ...) of integers, as exact_dot_planes.cuh describes them."""
    high = (q + 64) >> 7
    parts = [high, np.zeros_like(q), q - 128 * high]
    if bits == 21:
        top = (high + 64) >> 7
        parts[:2] = [top, high - 128 * top]
    return np.stack([sum(w * part for w, part in zip(weights, parts, strict=True)) for weights in WEIGHTS[bits]])


def check(run: Run, made: Any, x: Any, bits: int) -> None:
    """Rows of x (batch, rows, length) on the device against the reference."""
    batch, rows, length = x.shape
    assert (made.batch, made.rows, made.length, made.bits) == (batch, rows, length, bits)
    expected = reference.quantise(x, bits)
    assert_same_bits(run.down(made.exponents).reshape(expected.exponents.shape), expected.exponents)
    q = np.ldexp(expected.values, (bits - 1 - expected.exponents)[..., None]).astype(np.int64)
    planes = plain_planes(run.down(made.planes), batch)[:, :, :rows]
    assert np.array_equal(planes[..., :length], digits(q, bits))
    assert not planes[..., length:].any()


def check_all(run: Run, x: Any, bits: int) -> None:
    """Rows, columns, and both at once of x (batch, M, K)."""
    held, turned = run.up(x), np.ascontiguousarray(np.swapaxes(x, -1, -2))
    check(run, fixed.quantise(run.device, run.status, held, bits), x, bits)
    check(run, fixed.quantise_t(run.device, run.status, held, bits), turned, bits)
    rows, columns = fixed.quantise_both(run.device, run.status, held, bits)
    check(run, rows, x, bits)
    check(run, columns, turned, bits)
    assert run.bits() == 0


@BITS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device: Any, shape: tuple[int, int], bits: int) -> None:
    with device.use():
        check_all(Run(device), data("normal", shape, 1)[None], bits)


@BITS
@pytest.mark.parametrize("kind", ["largest", "subnormal", "tiny", "exponents", "ties", "zeros"])
def test_kinds(device: Any, kind: str, bits: int) -> None:
    x = data(kind, (70, 136), 2)
    for run in runs(device):
        check_all(run, np.stack([x, np.zeros_like(x), np.ascontiguousarray(x.T).reshape(x.shape)]), bits)


@BITS
def test_the_largest_and_the_smallest_exponents(device: Any, bits: int) -> None:
    """Every exponent, so that every scale is used, with elements far below their row's largest."""
    largest = np.ldexp(np.float32(0.99999994), np.arange(-148, 129)).astype(np.float32)[:, None]
    x = np.concatenate([largest, -largest, largest / 2, largest / 3, largest * np.float32(2.0**-bits)], axis=1)
    with device.use():
        check_all(Run(device), x[None].astype(np.float32), bits)


@BITS
def test_rows_longer_than_a_block_holds(device: Any, bits: int) -> None:
    with device.use():
        for length in (fixed.longest_row(), fixed.longest_row() + 1):
            run, x = Run(device), data("exponents", (3, length), 3)[None]
            check(run, fixed.quantise(device, run.status, run.up(x), bits), x, bits)


def test_a_large_matrix_has_taller_blocks() -> None:
    device = EmulatedDevice(seed=3)
    device.multiprocessors = 1
    check_all(Run(device), data("normal", (259, 516), 5)[None], 14)  # 3 blocks of 128 rows by 3 of 256 columns


def test_rows_that_do_not_begin_at_sixteen_bytes(device: Any) -> None:
    with device.use():
        run, x = Run(device), data("normal", (66, 132), 4)
        view = run.up(np.concatenate([[np.float32(7)], x.reshape(-1)]))[1:].reshape(x.shape)
        check(run, fixed.quantise(device, run.status, view, 14), x[None], 14)
        rows, columns = fixed.quantise_both(device, run.status, view, 14)
        check(run, rows, x[None], 14)
        check(run, columns, np.ascontiguousarray(x.T)[None], 14)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_value_that_is_not_finite_sets_the_status(device: Any, value: float) -> None:
    for shape in ((70, 135), (2, fixed.longest_row() + 5)):
        x = np.ones(shape, np.float32)
        x[-1, -1] = value
        with device.use():
            for quantise in (fixed.quantise, fixed.quantise_t, fixed.quantise_both):
                run = Run(device)
                quantise(device, run.status, run.up(x), 14)
                assert run.bits() == NOT_FINITE
