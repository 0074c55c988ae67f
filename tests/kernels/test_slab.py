"""A pool that takes one block from the device and gives parts of it out; on a card and on a model of CuPy's pool."""

from __future__ import annotations

import gc
import itertools
import random

import numpy as np
import pytest

from auditkit.errors import Unsupported
from auditkit.kernels.slab import BESIDE, FROM_THE_END, LEFT, SHARE, Slab
from auditkit.kernels.whole_blocks import LARGE, UNIT
from tests.kernels.on_devices import real_device
from tests.kernels.pools import MIB, Keeping, OutOfMemory, cupy

LIMIT = 325 * MIB + UNIT  # of which the block has 256 MiB
REST = LIMIT - 256 * MIB


def pool(limit: int = LIMIT, *, card: int = 1 << 40, at_once: bool = True) -> tuple[Slab, Keeping]:
    """One under a limit, and the pool of its small blocks."""
    module = cupy(card)
    small = module.cuda.MemoryPool()
    return Slab(module, small, limit, at_once=at_once), small


def test_all_large_blocks_come_from_one() -> None:
    made, _ = pool()
    blocks = [made.malloc(size * MIB) for size in (1, 24, 100, 3)]
    assert made.total_bytes() == 256 * MIB == made.peak
    assert made.used_bytes() == 128 * MIB
    assert len({id(block.mem) for block in blocks}) == 1
    del blocks
    assert (made.used_bytes(), made.free_bytes()) == (0, 256 * MIB)
    whole = made.malloc(256 * MIB)  # neighbours that are free are one
    assert made.free_bytes() == 0 and whole.ptr


def test_large_ones_lie_at_the_end_and_small_ones_at_the_beginning() -> None:
    made, _ = pool(2000 * MIB)
    small, large = made.malloc(FROM_THE_END - UNIT), made.malloc(FROM_THE_END)
    begin, end = large.mem.ptr, large.mem.ptr + made._taken
    assert (small.ptr, large.ptr) == (begin, end - FROM_THE_END)


def test_no_two_blocks_share_a_byte() -> None:
    made, _ = pool()
    chance, held = random.Random(7), []
    for _ in range(3000):
        if held and chance.random() < 0.5:
            held.pop(chance.randrange(len(held)))
        size = chance.choice((1, 2, 5, 9, 30, 70)) * MIB + chance.randrange(MIB)
        try:
            held.append((made.malloc(size), size))
        except OutOfMemory:
            del held[: len(held) // 2]
        ranges = sorted((block.ptr, block.ptr + size) for block, size in held)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(ranges))
        assert made.used_bytes() >= sum(size for _, size in held)
        assert made.total_bytes() <= LIMIT
    held.clear()
    assert made.used_bytes() == 0
    made.malloc(256 * MIB)


def test_what_finds_no_place_has_a_block_of_its_own_within_the_limit() -> None:
    made, _ = pool()
    held = [made.malloc(100 * MIB), made.malloc(20 * MIB), made.malloc(100 * MIB)]
    more = made.malloc(60 * MIB)  # 36 are free in the block, and 69 beside it
    assert more.mem is not held[0].mem
    assert made.total_bytes() == 316 * MIB <= LIMIT
    with pytest.raises(OutOfMemory):
        made.malloc(60 * MIB)
    del more
    made.malloc(60 * MIB)
    assert made.total_bytes() <= LIMIT


def test_small_blocks_have_the_rest_of_the_limit_and_then_what_is_free_in_the_block() -> None:
    made, small = pool()
    held = [made.malloc(200 * MIB)]
    held += [made.malloc(MIB - 1) for _ in range(REST // MIB)]
    assert small.used_bytes() == REST // MIB * (MIB - 1)
    held += [made.malloc(MIB - 1) for _ in range(56)]
    with pytest.raises(OutOfMemory):
        made.malloc(MIB - 1)
    assert small.total_bytes() <= REST and made.total_bytes() <= LIMIT
    held.pop()
    made.malloc(MIB - 1)


def test_small_blocks_have_what_the_others_beside_the_block_leave() -> None:
    made, _ = pool()
    whole = made.malloc(256 * MIB)
    beside = made.malloc(60 * MIB)
    held = [made.malloc(MIB - 1) for _ in range(9)]
    with pytest.raises(OutOfMemory):
        made.malloc(MIB - 1)
    assert made.total_bytes() <= LIMIT and beside and held
    del whole
    held += [made.malloc(MIB - 1) for _ in range(100)]  # from the block, though one lies beside it


def test_small_blocks_have_what_others_keep() -> None:
    made, _ = pool()
    whole = made.malloc(256 * MIB)
    made.malloc(60 * MIB)  # kept beside the block
    held = [made.malloc(MIB - 1) for _ in range(60)]
    assert made.total_bytes() <= LIMIT and whole and held


def test_small_blocks_know_the_limit_at_any_time() -> None:
    """Before there is a large one, after the block went back, under a new limit, with another pool beside."""
    for at_once in (False, True):
        made, small = pool(4 * MIB, at_once=at_once)
        held = [made.malloc(MIB // 2) for _ in range(8)]
        with pytest.raises(OutOfMemory):
            made.malloc(MIB // 2)
        assert small.total_bytes() <= 4 * MIB and held
    made, small = pool()
    made.malloc(LARGE)
    made.set_limit(8 << 30, at_once=False)
    held = [made.malloc(MIB - 1) for _ in range(500)]
    other = made.beside()
    taken = other.malloc(7 << 30)
    with pytest.raises(OutOfMemory):
        held += [made.malloc(MIB - 1) for _ in range(1000)]
    assert made.total_bytes() + other.total_bytes() <= 8 << 30 and taken


def test_a_smaller_limit_holds_though_something_lies_in_the_larger_block() -> None:
    made, _ = pool(4000 * MIB)
    table = made.malloc(2 * MIB)
    made.set_limit(1000 * MIB, at_once=True)
    held = [made.malloc(100 * MIB) for _ in range(9)]
    with pytest.raises(OutOfMemory):
        made.malloc(100 * MIB)
    assert made.used_bytes() <= 1000 * MIB and table and held
    held.clear()
    del table
    made.set_limit(1000 * MIB, at_once=True)
    made.malloc(LARGE)
    assert made.total_bytes() <= 1000 * MIB


def test_a_smaller_limit_holds_though_another_pool_has_its_share() -> None:
    made, _ = pool(1600 * MIB)
    other = made.beside()
    table, beside = made.malloc(2 * MIB), other.malloc(50 * MIB)
    made.set_limit(made.total_bytes() + 60 * MIB, at_once=True)
    limit = made.limit
    held = []
    with pytest.raises(OutOfMemory):
        while True:
            held.append(made.malloc(10 * MIB))
    assert made.used_bytes() + other.used_bytes() <= limit and table and beside


def test_what_is_held_already_counts_when_the_block_is_taken() -> None:
    made, _ = pool(1000 * MIB, at_once=False)
    held = [made.malloc(300 * MIB), made.malloc(300 * MIB)]
    made.set_limit(1000 * MIB, at_once=True)
    made.malloc(LARGE)
    assert 600 * MIB < made.total_bytes() <= 1000 * MIB and held


def test_what_the_small_pool_held_before_counts() -> None:
    made, small = pool()
    before = small.malloc(100 * MIB)
    made.malloc(LARGE)
    assert made.total_bytes() == LIMIT and before.ptr


def test_a_card_with_less_than_the_limit() -> None:
    made, _ = pool(card=200 * MIB)
    made.malloc(LARGE)
    assert made.total_bytes() == 200 * MIB - LEFT
    none, _ = pool(card=LEFT + UNIT)
    with pytest.raises(OutOfMemory):
        none.malloc(70 * MIB)


def test_the_block_goes_back_when_nobody_uses_it() -> None:
    made, small = pool()
    held = made.malloc(LARGE)
    made.free_all_blocks()
    assert made.total_bytes() == 256 * MIB
    del held
    made.free_all_blocks()
    assert made.total_bytes() == small.total_bytes() == 0
    made.set_limit(2 * LIMIT, at_once=True)
    made.malloc(LARGE)
    assert made.total_bytes() == 2 * LIMIT - BESIDE - 2 * LIMIT // SHARE // UNIT * UNIT - UNIT


def test_a_part_keeps_its_block_when_the_pool_has_gone() -> None:
    module = cupy(1 << 40)
    made = Slab(module, module.cuda.MemoryPool(), LIMIT, at_once=True)
    held, total = made.malloc(LARGE), made.total_bytes()
    source = made._source
    del made
    gc.collect()
    assert source.used_bytes() == total and held.ptr
    del held
    gc.collect()
    assert source.used_bytes() == 0


def test_a_limit_is_for_a_pool_beside_it_too() -> None:
    made, _ = pool(300 * MIB)
    other = made.beside()
    held = other.malloc(150 * MIB)
    with pytest.raises(OutOfMemory):
        made.malloc(200 * MIB)
    assert made.get_limit() == 150 * MIB
    large = made.malloc(40 * MIB)
    assert made.total_bytes() + other.total_bytes() <= 300 * MIB
    with pytest.raises(OutOfMemory):
        other.malloc(200 * MIB)
    made.set_limit(600 * MIB, at_once=True)
    assert other.malloc(200 * MIB).ptr and held and large


def test_without_a_block_each_has_its_own() -> None:
    made, _ = pool(at_once=False)
    held = [made.malloc(10 * MIB), made.malloc(20 * MIB)]
    assert made.total_bytes() == 30 * MIB and len({id(block.mem) for block in held}) == 2


@pytest.mark.gpu
@pytest.mark.optional("CI has no GPU; a model of CuPy's pool runs the same lines")
def test_on_a_card() -> None:
    device = real_device()
    device.limit(LIMIT, at_once=True)
    held = [device.upload(np.full(size * MIB, size, np.uint8)) for size in (3, 40, 100, 5)]
    assert device.pool.total_bytes() == 256 * MIB
    assert [set(device.download(array).tolist()) for array in held] == [{3}, {40}, {100}, {5}]
    with pytest.raises(Unsupported, match="too little memory"):
        device.empty((200 * MIB,), np.uint8)
    held.clear()
    device.release()
    assert device.pool.total_bytes() == 0
