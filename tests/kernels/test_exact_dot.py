"""cuda/exact_dot.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels import exact_dot
from auditkit.kernels.exact_dot_choice import compiled
from auditkit.numerics import exact_dot as reference
from tests.kernels.emulator import EmulatedDevice
from tests.same_bits import assert_same_bits

TILE = 64
# (M, N, K): nothing, one, around a piece of K, around a tile, around the longest row whose sums are parked in 32 bits
SIZES = [
    (0, 3, 5),
    (3, 0, 5),
    (2, 3, 0),
    (1, 1, 1),
    (3, 5, 63),
    (5, 3, 64),
    (2, 2, 65),
    (TILE - 1, TILE + 1, 7),
    (TILE, TILE, 130),
    (2 * TILE + 1, 2 * TILE - 1, 33),
    (2, 3, 3968),
    (3, 2, 3969),
]


def data(kind: str, shape: tuple[int, int], seed: int) -> Any:
    """Rows of float32 of one kind of difficulty."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape).astype(np.float32)
    if kind == "largest":  # every integer at its bound: the largest sums
        return np.where(x > 2, np.float32(-0.99999994), np.float32(0.99999994))
    if kind == "subnormal":
        return x * np.float32(1e-40)
    if kind == "tiny":  # normal rows whose products are subnormal: rounded to 24 bits first they would be rounded twice
        return x * np.float32(2.0**-63)
    if kind == "exponents":
        return x * np.float32(2.0) ** rng.integers(-60, 60, (shape[0], 1)).astype(np.float32)
    if kind == "ties":
        return (rng.integers(-(1 << 15), 1 << 15, shape) / 4).astype(np.float32)
    if kind == "zeros":
        return np.where(rng.random((shape[0], 1)) < 0.5, np.float32(-0.0), x)
    return x


def check(device: Any, a: Any, b: Any, bits: int) -> None:
    with device.use():
        status = device.zeros((1,), np.uint32)
        rows = exact_dot.quantise(device, status, device.upload(a), bits)
        columns = exact_dot.quantise_t(
            device, status, device.upload(np.ascontiguousarray(np.swapaxes(b, -1, -2))), bits
        )
        expected = reference.dot(reference.quantise(a, bits), reference.quantise(b, bits))
        for kernel in compiled(device.architecture, bits):
            if kernel == "large128" and rows.padded % 128:
                continue
            got = device.download(exact_dot.dot(device, rows, columns, kernel=kernel))
            assert_same_bits(got.reshape(expected.shape), expected)
        assert device.download(status)[0] == 0


@pytest.mark.parametrize("bits", [14, 21])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(device: Any, size: tuple[int, int, int], bits: int) -> None:
    m, n, k = size
    check(device, data("normal", (m, k), 1), data("normal", (n, k), 2), bits)


@pytest.mark.parametrize("bits", [14, 21])
@pytest.mark.parametrize("kind", ["largest", "subnormal", "tiny", "exponents", "ties", "zeros"])
def test_kinds(device: Any, kind: str, bits: int) -> None:
    check(device, data(kind, (17, 200), 3), data(kind, (9, 200), 4), bits)
    check(device, data(kind, (5, 70), 5), data("subnormal", (6, 70), 6), bits)
    check(device, data(kind, (40, 3), 7), data("tiny", (40, 3), 8), bits)


def test_batches(device: Any) -> None:
    rng = np.random.default_rng(7)
    check(
        device,
        rng.standard_normal((3, 70, 16)).astype(np.float32),
        rng.standard_normal((3, 9, 16)).astype(np.float32),
        14,
    )


def test_a_block_takes_one_tile_after_the_other() -> None:
    rng = np.random.default_rng(12)
    for seed in (0, 3):
        device = EmulatedDevice(seed=seed)
        device.multiprocessors = 1
        for k, bits in ((200, 14), (130, 21)):
            a, b = rng.standard_normal((2, 150, k)), rng.standard_normal((2, 131, k))
            check(device, a.astype(np.float32), b.astype(np.float32), bits)


def test_long_rows(device: Any) -> None:
    """Sums beyond 2^53 of 21 bits, and beyond the 2^16 terms after which int32 sums are moved on."""
    check(device, data("largest", (2, 8193), 8), data("largest", (1, 8193), 9), 21)
    check(device, data("largest", (1, 65600), 10), data("largest", (2, 65600), 11), 14)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_a_value_that_is_not_finite_sets_the_status(device: Any, value: float) -> None:
    x = np.ones((3, 70), np.float32)
    x[1, 69] = value
    with device.use():
        for quantise in (exact_dot.quantise, exact_dot.quantise_t):
            status = device.zeros((1,), np.uint32)
            quantise(device, status, device.upload(x), 14)
            assert device.download(status)[0] == 1
