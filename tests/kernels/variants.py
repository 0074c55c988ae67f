"""The devices that one test runs on: thread orders and poisons of the emulator, or many repeats on a real card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tests.kernels.emulator import EmulatedDevice
from tests.same_bits import assert_same_bits

REPEATS = 50  # on a card, where only luck decides the order of threads and atomics
ORDERS = ((0, 0xA5), (3, 0xFF), (4, 0x3C))  # (order of threads and blocks, byte that fresh memory is full of)

NOT_FINITE, SUM_RANGE, TOKEN_RANGE = 1, 2, 4  # bits of the status word (cuda/common.cuh)


def variants(device: Any) -> Iterator[Any]:
    """Emulators of several orders and poisons in place of an emulator; a card again and again, its memory poisoned."""
    if isinstance(device, EmulatedDevice):
        for seed, poison in ORDERS:
            yield EmulatedDevice(seed=seed, poison=poison)
        return
    for repeat in range(REPEATS):
        poison_pool(device, 0xFF if repeat % 2 else 0x3C)
        yield device


def poison_pool(device: Any, byte: int) -> None:
    """Fill the memory that the next allocations will get."""
    with device.use():
        held = [device.upload(np.full(1 << bits, byte, np.uint8)) for bits in range(9, 23) for _ in range(2)]
        del held


class Run:
    """Uploads, a status word and downloads for one call of a launcher."""

    def __init__(self, device: Any) -> None:
        self.device = device
        self.status = device.zeros((1,), np.uint32)

    def up(self, array: Any) -> Any:
        """A copy on the device."""
        return self.device.upload(np.asarray(array))

    def down(self, array: Any) -> Any:
        """A copy on the host."""
        return self.device.download(array)

    def bits(self) -> int:
        """The status word."""
        return int(self.device.download(self.status)[0])


def assert_same_operands(run: Run, got: Any, want: Any) -> None:
    """Rows or columns with the same exponents and the same bytes of planes, those of no row aside."""
    for made, expected in zip(got, want, strict=True):
        assert (made.bits, made.batch, made.rows, made.length) == (
            expected.bits, expected.batch, expected.rows, expected.length,
        )  # fmt: skip
        assert_same_bits(run.down(made.exponents), run.down(expected.exponents))
        assert_same_bits(*(plain_planes(run.down(side.planes), 1)[:, :, : made.rows] for side in (made, expected)))


def plain_planes(planes: Any, batch: int) -> Any:
    """Planes in blocks (cuda/exact_dot_planes.cuh) -> int8 (planes, batch, rows, bytes of a row)."""
    count, lines, padded = planes.shape
    blocks = planes.reshape(count, batch, -1, padded // 64, 64, 4, 16)
    rows = np.arange(64)[:, None]
    piece = (np.arange(4)[None, :] ^ rows >> 1) & 3
    plain = blocks[..., rows, piece, :]
    return np.moveaxis(plain, 3, 4).reshape(count, batch, lines // max(1, batch), padded)


def runs(device: Any) -> Iterator[Run]:
    """A Run for each variant of the device, which is the current one meanwhile."""
    for variant in variants(device):
        with variant.use():
            yield Run(variant)
