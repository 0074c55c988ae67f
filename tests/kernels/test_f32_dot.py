"""cuda/f32_dot.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels import f32_dot, product
from auditkit.numerics import f32_dot as reference
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.kernels.test_exact_dot import data
from tests.kernels.variants import NOT_FINITE, Run, runs
from tests.same_bits import assert_same_bits

KERNELS = ("small", "large", "plain")
# (M, N, K): nothing, one, around a quad, around a piece of K of either kernel, around a tile of either
SIZES = [
    (0, 3, 5),
    (3, 0, 5),
    (2, 3, 0),
    (1, 1, 1),
    (3, 5, 4),
    (4, 4, 3),
    (5, 7, 8),
    (8, 8, 9),
    (9, 3, 16),
    (2, 6, 17),
    (63, 65, 7),
    (64, 64, 33),
    (129, 127, 16),
    (128, 12, 35),
    (2, 3, 1001),
]


def check(run: Run, x: Any, y: Any) -> None:
    """All kernels and all four ways to store the operands give the reference's bits."""
    device = run.device
    expected = reference.dot(reference.rows(x), reference.rows(y))
    stored = [
        (f32_dot.rows(device, run.status, run.up(z)), f32_dot.rows_t(device, run.status, run.up(turned(z))))
        for z in (x, y)
    ]
    for kernel in KERNELS:
        for a in stored[0]:
            for b in stored[1]:
                got = run.down(f32_dot.dot(device, a, b, kernel=kernel))
                assert_same_bits(got.reshape(expected.shape), expected)
    assert run.bits() == 0


def turned(x: Any) -> Any:
    """The transposed matrices in memory."""
    return np.ascontiguousarray(np.swapaxes(x, -1, -2))


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(device: Any, size: tuple[int, int, int]) -> None:
    m, n, k = size
    with device.use():
        check(Run(device), data("normal", (m, k), 1), data("normal", (n, k), 2))


@pytest.mark.parametrize("kind", ["largest", "subnormal", "exponents", "ties", "zeros"])
def test_kinds(device: Any, kind: str) -> None:
    with device.use():
        check(Run(device), data(kind, (17, 50), 3), data(kind, (9, 50), 4))
        check(Run(device), data(kind, (6, 19), 5), data("subnormal", (5, 19), 6))


def test_batches(device: Any) -> None:
    rng = np.random.default_rng(7)
    x, y = (rng.standard_normal((3, rows, 17)).astype(np.float32) for rows in (66, 9))
    with device.use():
        check(Run(device), x, y)


def test_no_order_of_threads_and_no_old_memory_changes_a_bit(device: Any) -> None:
    for run in runs(device):
        check(run, data("normal", (70, 21), 1), data("normal", (5, 21), 2))


def test_products_are_rounded_and_sums_are_in_the_order_of_k(device: Any) -> None:
    """Fused, 0 would be 2^-24; in another order 1 would be 1 + 2^-23."""
    fused = np.array([[-1, 1 + 2.0**-12]], np.float32), np.array([[1 + 2.0**-11, 1 + 2.0**-12]], np.float32)
    order = np.array([[1, 2.0**-24, 2.0**-24]], np.float32), np.ones((1, 3), np.float32)
    with device.use():
        for (x, y), want in ((fused, 0.0), (order, 1.0)):
            assert reference.dot(reference.rows(x), reference.rows(y)) == want
            check(Run(device), x, y)


def test_sums_may_overflow(device: Any) -> None:
    x = np.array([[3e38, 3e38, -3e38], [-3e38, -3e38, 1]], np.float32)
    with device.use():
        check(Run(device), x, np.ones((2, 3), np.float32))


def test_operands_in_the_middle_of_an_array(device: Any) -> None:
    """Rows that begin at no multiple of 16 bytes."""
    x = data("normal", (8, 16), 1)
    with device.use():
        run = Run(device)
        held = run.up(x.reshape(-1))
        part = held[3 : 3 + 7 * 16].reshape((7, 16))
        want = reference.dot(reference.rows(x.reshape(-1)[3:115].reshape(7, 16)), reference.rows(x))
        for kernel in KERNELS:
            a, b = f32_dot.rows(device, run.status, part), f32_dot.rows(device, run.status, run.up(x))
            assert_same_bits(run.down(f32_dot.dot(device, a, b, kernel=kernel)), want)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 100, 209])
def test_a_value_that_is_not_finite_sets_the_status(device: Any, value: float, place: int) -> None:
    x = np.ones((3, 70), np.float32)
    x.reshape(-1)[place] = value
    with device.use():
        for quantise in (product.quantise, product.quantise_t):
            run = Run(device)
            quantise(device, run.status, run.up(x), 24)
            assert run.bits() == NOT_FINITE


def test_operands_of_two_products_do_not_mix(device: Any) -> None:
    with device.use():
        run = Run(device)
        x = run.up(np.ones((2, 3), np.float32))
        plain, fixed = (product.quantise(device, run.status, x, bits) for bits in (24, 14))
        with pytest.raises(ValueError, match="different products"):
            product.dot(device, plain, fixed)
        with pytest.raises(ValueError, match="do not fit"):
            f32_dot.dot(device, f32_dot.rows(device, run.status, x), f32_dot.rows_t(device, run.status, x))


class TestChoice:
    pytestmark = EMULATOR_MARKS

    def test_tiles_are_large_where_they_fill_the_device(self) -> None:
        device: Any = EmulatedDevice()
        ones = f32_dot.finite_rows(device.upload(np.ones((3, 65, 2), np.float32)))
        for first, kernel in ((ones, "f32_dot_large"), (f32_dot.finite_rows(ones.values[:, :64]), "f32_dot_small")):
            held = device.upload(device.download(first.values))
            f32_dot.dot(device, f32_dot.finite_rows(held), ones)
            assert device.launches[-1] == ("f32_dot", kernel)
