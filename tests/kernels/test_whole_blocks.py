"""A pool under a limit loses nothing between blocks; on a card and on a model of CuPy's pool."""

from __future__ import annotations

import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from auditkit.errors import Unsupported
from auditkit.kernels.whole_blocks import LARGE, UNIT, WholeBlocks
from tests.kernels.on_devices import real_device

MIB = 1 << 20


class OutOfMemory(Exception):
    """As CuPy's OutOfMemoryError."""


class Block:
    """What `malloc` returns; goes back to its pool with its last reference."""


class Splitting:
    """CuPy's pool in short: blocks that are free are cut to what is asked for, whole ones go back to the device."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, int]] = []  # bytes and how many of them are used, from the start
        self.limit = 0

    def malloc(self, size: int) -> Block:
        for block in self.blocks:
            if block["size"] - block["used"] >= size:
                return self._taken(block, size)
        if self.limit and self.total_bytes() + size > self.limit:
            self.free_all_blocks()
            if self.total_bytes() + size > self.limit:
                raise OutOfMemory
        self.blocks.append({"size": size, "used": 0})
        return self._taken(self.blocks[-1], size)

    def _taken(self, block: dict[str, int], size: int) -> Block:
        def back() -> None:
            block["used"] -= size

        block["used"] += size
        made = Block()
        weakref.finalize(made, back)
        return made

    def set_limit(self, size: int) -> None:
        self.limit = size

    def total_bytes(self) -> int:
        return sum(block["size"] for block in self.blocks)

    def used_bytes(self) -> int:
        return sum(block["used"] for block in self.blocks)

    def free_bytes(self) -> int:
        return self.total_bytes() - self.used_bytes()

    def free_all_blocks(self) -> None:
        self.blocks = [block for block in self.blocks if block["used"]]


CUPY = SimpleNamespace(cuda=SimpleNamespace(MemoryPool=Splitting, memory=SimpleNamespace(OutOfMemoryError=OutOfMemory)))


def limited(limit: int, small: Any = None) -> WholeBlocks:
    return WholeBlocks(CUPY, small or Splitting(), limit)


def a_large_block_after_a_small_part_of_one(malloc: Any) -> None:
    """56 of 64 MiB, where the small part sits in a block of 48 if that was cut."""
    first = malloc(48 * MIB)
    del first
    part = malloc(8 * MIB)
    again = malloc(48 * MIB)
    del part, again


def test_a_large_block_fits_where_a_pool_that_splits_has_lost_the_room() -> None:
    plain = Splitting()
    plain.set_limit(64 * MIB)
    with pytest.raises(OutOfMemory):
        a_large_block_after_a_small_part_of_one(plain.malloc)
    pool = limited(64 * MIB)
    a_large_block_after_a_small_part_of_one(pool.malloc)
    assert pool.total_bytes() <= 64 * MIB and pool.used_bytes() == 0


@pytest.mark.gpu
@pytest.mark.optional("CI has no GPU; a model of CuPy's pool runs the same lines")
def test_on_a_card() -> None:
    device = real_device()
    device.pool.set_limit(size=64 * MIB)
    with pytest.raises(Unsupported):
        a_large_block_after_a_small_part_of_one(lambda size: device.empty((size,), np.uint8))
    device = real_device()
    device.limit(64 * MIB)
    a_large_block_after_a_small_part_of_one(lambda size: device.empty((size,), np.uint8))
    assert device.pool.total_bytes() <= 64 * MIB
    held = device.empty((60 * MIB,), np.uint8)
    with pytest.raises(Unsupported, match=r"8388608 bytes more needed, 4194304 of \d+ bytes free"):
        device.empty((8 * MIB,), np.uint8)
    del held


def test_kept_blocks_are_used_again_and_the_longest_unused_go_first() -> None:
    pool = limited(100 * MIB)
    for size in (10, 20, 30, 40):
        pool.malloc(size * MIB)
    assert (pool.used_bytes(), pool.free_bytes()) == (0, 100 * MIB)
    pool.malloc(10 * MIB)
    assert pool.total_bytes() == 100 * MIB
    held = pool.malloc(25 * MIB)  # instead of those of 20 and 30, since the one of 10 was used last
    assert (pool.used_bytes(), pool.free_bytes()) == (25 * MIB, 50 * MIB)
    pool.malloc(10 * MIB), pool.malloc(40 * MIB)
    assert pool.total_bytes() == 75 * MIB
    del held


def test_small_blocks_count_and_never_pass_the_limit() -> None:
    pool = limited(LARGE + 2 * UNIT)
    small = [pool.malloc(UNIT), pool.malloc(UNIT)]
    large = pool.malloc(LARGE)
    with pytest.raises(OutOfMemory):
        pool.malloc(1)
    del large
    small.append(pool.malloc(1))  # what was kept for large ones has gone
    assert pool.total_bytes() <= LARGE + 2 * UNIT
    del small
    pool.malloc(LARGE + UNIT)
    pool.free_all_blocks()
    assert pool.total_bytes() == 0


def test_what_a_pool_held_before_counts() -> None:
    before = Splitting()
    held = before.malloc(60 * MIB)
    pool = limited(64 * MIB, before)
    with pytest.raises(OutOfMemory):
        pool.malloc(5 * MIB)
    del held
    pool.malloc(64 * MIB)
    assert pool.get_limit() == 64 * MIB


def test_a_card_with_less_than_the_limit_gives_up_what_is_kept() -> None:
    class Card(Splitting):
        """The pools of a card of 64 MiB."""

        pools: list[Splitting] = []

        def malloc(self, size: int) -> Block:
            Card.pools.append(self)
            if self.free_bytes() < size and sum(pool.total_bytes() for pool in {*Card.pools}) + size > 64 * MIB:
                raise OutOfMemory
            return super().malloc(size)

    cupy = SimpleNamespace(cuda=SimpleNamespace(MemoryPool=Card, memory=CUPY.cuda.memory))
    pool = WholeBlocks(cupy, Card(), 1000 * MIB)
    pool.malloc(40 * MIB)
    pool.malloc(48 * MIB)
    assert pool.total_bytes() == 48 * MIB
