"""cuda/attention_quotient.cuh: a division's bits without a division."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from auditkit.kernels.device import blocks_for
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.kernels.test_attention_cells import Floats
from tests.kernels.test_emulator import SOURCES
from tests.same_bits import assert_same_bits

pytestmark = EMULATOR_MARKS


def hard_quotients(b: npt.NDArray[np.int64], most: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Numerators a of 24 bits whose quotients by odd b of 24 bits are within `most` / (2^25 b) of the middle between
    two floats: a 2^s = odd * b + k, so that a = k / 2^s modulo b.
    """
    found_a, found_b = [], []
    for shift in (24, 25):
        half = np.ones_like(b)
        for _ in range(shift):  # 2^-shift modulo b
            half = np.where(half % 2 == 0, half, half + b) // 2
        for k in [*range(-most, 0), *range(1, most + 1)]:
            a = (k * half) % b
            a = np.where(a < 1 << 23, a + b, a)
            right = (a >= 1 << 23) & (a < 1 << 24) & ((a < b) == (shift == 25))
            found_a.append(a[right])
            found_b.append(b[right])
    return np.concatenate(found_a), np.concatenate(found_b)


def check(x: Floats, divisor: Floats) -> None:
    device: Any = EmulatedDevice(sources=SOURCES)
    out = device.empty(x.shape, np.float32)
    arguments = [device.upload(x), device.upload(divisor), out, np.int64(x.size)]
    device.launch("quotient", "divide", blocks_for(x.size, 128), 128, arguments)
    assert_same_bits(device.download(out), x / divisor)


@pytest.mark.parametrize("power", [-86, -74, 0, 110])
def test_quotients_next_to_the_middle_of_two_floats(power: int) -> None:
    rng = np.random.default_rng(5)
    b = np.concatenate([np.array([(1 << 23) + 1, (1 << 24) - 1]), rng.integers(1 << 22, 1 << 23, 3000) * 2 + 1])
    a, b = hard_quotients(b.astype(np.int64), 12)
    divisor = (b / 2.0**23 * 2.0 ** rng.integers(0, 38, b.size)).astype(np.float32)
    check((a / 2.0**24 * 2.0**power * rng.choice([-1, 1], a.size)).astype(np.float32), divisor)


def test_the_ends_of_the_range_and_anything_between() -> None:
    rng = np.random.default_rng(6)
    x = np.array([0, 2**-87, -(2**-87) * (2 - 2**-23), 1, 1 - 2**-24, 2.0**119 * (2 - 2**-23)], np.float32)
    bounds = np.array([1, 1 + 2**-23, 2 - 2**-23, 3, 2**16, 2**39 - 2**15], np.float32)
    check(*(grid.reshape(-1).copy() for grid in np.meshgrid(x, bounds)))
    check(rng.standard_normal(40_000).astype(np.float32), 1 + 4000 * rng.random(40_000, np.float32))
    words = rng.integers(127 << 23, 128 << 23, (2, 40_000)).astype(np.uint32)
    check(words[0].view(np.float32), words[1].view(np.float32))
