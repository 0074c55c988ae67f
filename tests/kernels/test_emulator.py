"""The emulator against CUDA's definitions: what is defined gives the defined bits, what is not is an error."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kernels.emulator import EmulatedDevice, EmulationError
from tests.kernels.emulator.build import compiler
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.same_bits import assert_same_bits

pytestmark = EMULATOR_MARKS
SOURCES = Path(__file__).parent / "sources"


def device(**options: Any) -> EmulatedDevice:
    return EmulatedDevice(sources=SOURCES, **options)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_the_sum_of_a_block_is_the_same_in_every_order(seed: int) -> None:
    emulated = device(seed=seed)
    x = np.arange(5 * 128, dtype=np.uint32) * np.uint32(2654435761)
    out = emulated.empty((5,), np.uint32)
    emulated.launch("warp", "block_sum", 5, 128, [emulated.upload(x), out, np.int32(0)])
    assert_same_bits(emulated.download(out), np.add.reduce(x.reshape(5, 128), axis=1, dtype=np.uint32))


def test_a_missing_barrier_is_a_race() -> None:
    emulated = device()
    x, out = emulated.zeros((128,), np.uint32), emulated.empty((1,), np.uint32)
    with pytest.raises(EmulationError, match="race: .* shared memory that thread"):
        emulated.launch("warp", "block_sum", 1, 128, [x, out, np.int32(1)])


def test_two_threads_writing_one_word_race() -> None:
    emulated = device()
    with pytest.raises(EmulationError, match="race: writes the word at offset 0 of a buffer .* wrote"):
        emulated.launch("warp", "last_writer", 1, 2, [emulated.zeros((1,), np.uint32), emulated.zeros((1,), np.uint32)])


def test_atomics_do_not_race_and_show_the_order_of_the_threads() -> None:
    orders = []
    for seed in (0, 1, 2):
        emulated = device(seed=seed)
        place = emulated.zeros((65,), np.uint32)
        emulated.launch("warp", "order_of_atomics", 1, 64, [place])
        got = emulated.download(place)
        assert got[0] == 64 and sorted(got[1:]) == list(range(64))
        orders.append(tuple(got[1:]))
    assert orders[0] == tuple(range(64)) and len(set(orders)) == 3


def test_a_seed_gives_the_same_order_again() -> None:
    def order() -> bytes:
        emulated = device(seed=9)
        place = emulated.zeros((65,), np.uint32)
        emulated.launch("warp", "order_of_atomics", 1, 64, [place])
        return emulated.download(place).tobytes()

    assert order() == order()


def test_warps_synchronise_their_own_lanes() -> None:
    emulated = device()
    out = emulated.empty((32,), np.uint32)
    emulated.launch("faults", "warp_exchange", 1, 32, [out, np.int32(1)])
    assert_same_bits(emulated.download(out), np.arange(32, dtype=np.uint32) ^ np.uint32(1))
    with pytest.raises(EmulationError, match="race"):
        emulated.launch("faults", "warp_exchange", 1, 32, [out, np.int32(0)])


def test_blocks_are_not_ordered() -> None:
    with pytest.raises(EmulationError, match="race: .* of block"):
        emulated = device()
        emulated.launch("faults", "neighbour_blocks", 3, 1, [emulated.zeros((4,), np.uint32)])
    emulated = device(seed=4)
    x = emulated.zeros((5,), np.uint32)
    emulated.launch("faults", "fenced", 3, 1, [x])
    assert list(emulated.download(x)) == [3, 7, 7, 7, 14]


@pytest.mark.parametrize(
    ("kernel", "threads", "message"),
    [
        ("lonely_barrier", 64, "divergence: thread 0 waits in __syncthreads .* thread 3 has returned"),
        ("two_barriers", 32, "divergence: .* waits in __syncwarp .* waits in __syncthreads"),
        ("lost_lane", 32, "divergence: thread 0 waits in __shfl_sync .* thread 20 has returned"),
        ("foreign_lane", 32, "reads lane 20, which is not in mask 0000ffff"),
        ("lost_lane", 20, "names lane 20, which the block does not have"),
    ],
)
@pytest.mark.parametrize("seed", [0, 5])
def test_divergence_is_reported(kernel: str, threads: int, message: str, seed: int) -> None:
    emulated = device(seed=seed)
    args = [emulated.zeros((64,), np.uint32)] if kernel.endswith("lane") else []
    if seed and kernel != "foreign_lane":
        message = "divergence" if "divergence" in message else message
    with pytest.raises(EmulationError, match=message):
        emulated.launch("faults", kernel, 1, threads, args)


@pytest.mark.parametrize("at", [4, 5, 4 + 127, 1 << 40, -1, -100])
def test_reads_out_of_bounds_are_reported(at: int) -> None:
    emulated = device()
    out, x = emulated.zeros((1,), np.uint32), emulated.zeros((4,), np.uint32)
    with pytest.raises(EmulationError, match=r"reads 4 bytes out of bounds.*faults\.cu:6"):
        emulated.launch("faults", "touch", 1, 1, [out, x, np.int64(at)])


@pytest.mark.parametrize("at", [1, 64, -1])
def test_writes_out_of_bounds_are_reported(at: int) -> None:
    emulated = device()
    with pytest.raises(EmulationError, match="writes 4 bytes out of bounds"):
        emulated.launch("faults", "store", 1, 1, [emulated.zeros((1,), np.uint32), np.int64(at)])


def test_a_buffer_is_reached_through_a_table_while_it_lives() -> None:
    emulated = device()
    x, out = emulated.upload(np.array([77], np.uint32)), emulated.zeros((1,), np.uint32)
    table = emulated.upload(np.array([emulated.address(x)], np.uint64))
    emulated.launch("faults", "through_table", 1, 1, [table, out])
    assert emulated.download(out)[0] == 77
    del x
    with pytest.raises(EmulationError, match="reads 4 bytes out of bounds"):
        emulated.launch("faults", "through_table", 1, 1, [table, out])


def test_views_of_a_buffer_keep_it() -> None:
    emulated = device()
    x = emulated.upload(np.arange(8, dtype=np.uint32).reshape(2, 4))[1].reshape(2, 2)
    out = emulated.zeros((1,), np.uint32)
    emulated.launch("faults", "touch", 1, 1, [out, x, np.int64(3)])
    assert emulated.download(out)[0] == 7


@pytest.mark.parametrize(
    ("kernel", "bad", "good", "result", "message"),
    [
        ("shift", np.int32(32), np.int32(31), 1 << 31, r"shift by .*faults\.cu line"),
        ("cast", np.float32(3e9), np.float32(-2.5), 0xFFFFFFFE, "float to integer out of range"),
        ("divide", np.int32(0), np.int32(2), 3, "integer division by zero"),
        ("index_of_static", np.int32(8), np.int32(7), 5, "index outside an array|out of bounds"),
    ],
)
def test_undefined_arithmetic_is_reported(kernel: str, bad: Any, good: Any, result: int, message: str) -> None:
    emulated = device()
    out = emulated.zeros((8,), np.uint32)
    emulated.launch("faults", kernel, 1, 8 if kernel == "index_of_static" else 1, [out, good])
    assert emulated.download(out)[0] == result
    with pytest.raises(EmulationError, match=message):
        emulated.launch("faults", kernel, 1, 8 if kernel == "index_of_static" else 1, [out, bad])


def test_wide_accesses_must_be_aligned() -> None:
    emulated = device()
    x, out = emulated.upload(np.arange(64, dtype=np.uint8)), emulated.zeros((1,), np.uint32)
    emulated.launch("faults", "wide", 1, 1, [x, out, np.int64(16)])
    assert emulated.download(out)[0] == 0x17161514
    with pytest.raises(EmulationError, match="misaligned"):
        emulated.launch("faults", "wide", 1, 1, [x, out, np.int64(20)])


def test_an_endless_loop_ends() -> None:
    emulated = device(most_accesses=100_000)
    with pytest.raises(EmulationError, match="endless"):
        emulated.launch("faults", "endless", 1, 1, [emulated.upload(np.ones(1, np.uint32))])


@pytest.mark.parametrize("poison", [0xA5, 0x3C])
def test_fresh_memory_is_poison(poison: int) -> None:
    emulated = device(poison=poison)
    out = emulated.empty((2,), np.uint32)
    assert emulated.download(out)[1] == poison * 0x01010101
    emulated.launch("faults", "unset_shared", 1, 1, [out])
    assert emulated.download(out)[0] == poison * 0x01010101


def test_conversions_saturate() -> None:
    emulated = device()
    out = emulated.zeros((1,), np.int32)
    cases = {3e9: 2**31 - 1, -3e9: -(2**31), float("nan"): 0, 2.5: 2, 3.5: 4, -0.5: 0, float("inf"): 2**31 - 1}
    for x, want in cases.items():
        emulated.launch("faults", "saturate", 1, 1, [out, np.float32(x)])
        assert emulated.download(out)[0] == want


def test_constant_tables_are_read() -> None:
    emulated = device()
    out = emulated.zeros((6,), np.uint32)
    emulated.launch("faults", "constant", 1, 6, [out])
    assert list(emulated.download(out)) == [10, 20, 30, 40, 10, 20]


def test_arguments_have_the_kernels_types() -> None:
    emulated = device()
    out = emulated.zeros((1,), np.float64)
    args = [np.int8(-1), np.uint8(2), np.int32(-3), np.uint32(4), np.int64(-5), np.uint64(6)]
    args = [*args, np.float32(0.5), np.float64(0.25), np.uint64(0), out]
    emulated.launch("faults", "kinds", 1, 1, args)
    assert emulated.download(out)[0] == 3 + 0.75 + 1
    for i, wrong in enumerate([np.int16(1), 2, np.int64(3), np.int32(4), 5, None, 0.5, np.float32(1), np.zeros(1), 7]):
        with pytest.raises(EmulationError, match=f"argument {i}"):
            emulated.launch("faults", "kinds", 1, 1, [*args[:i], wrong, *args[i + 1 :]])
    with pytest.raises(EmulationError, match="takes 10 arguments"):
        emulated.launch("faults", "kinds", 1, 1, args[:-1])


def test_bad_launches_are_refused() -> None:
    emulated = device()
    x = emulated.zeros((8,), np.uint32)
    bad: list[tuple[int | tuple[int, ...], int, int]] = [
        (1, 129, 0),
        (1, 0, 0),
        (-1, 1, 0),
        ((1, 65536), 1, 0),
        (1, 1, 1 << 20),
        (1 << 31, 1, 0),
    ]
    for grid, block, shared in bad:
        with pytest.raises(EmulationError, match="cannot launch"):
            emulated.launch("warp", "block_sum", grid, block, [x, x, np.int32(0)], shared=shared)
    with pytest.raises(EmulationError, match="no kernel"):
        emulated.launch("warp", "absent", 1, 1, [])
    emulated.launch("warp", "block_sum", 0, 128, [x, x, np.int32(0)])  # nothing to do


def test_only_kernels_compute_on_a_device() -> None:
    x = device().zeros((8,), np.float32)
    for compute in (lambda: x + x, lambda: np.concatenate([x, x]), lambda: x.__setitem__(0, 1)):
        with pytest.raises(EmulationError):
            compute()


def test_strided_views_are_refused() -> None:
    emulated = device()
    x = emulated.zeros((8, 8), np.uint32)
    with pytest.raises(EmulationError, match="strides"):
        emulated.launch("faults", "touch", 1, 1, [x, x[:, 1], np.int64(0)])


FORTIFIED = """#!/bin/sh
test "$1" = --version && echo fortifying
exec {compiler} -O1 -D_FORTIFY_SOURCE=2 "$@"
"""
LAUNCHED = """
import numpy as np
from tests.kernels.test_emulator import device
emulated = device()
x = emulated.zeros((128,), np.uint32)
emulated.launch("warp", "block_sum", 1, 128, [x, emulated.zeros((1,), np.uint32), np.int32(0)])
"""


def test_a_compiler_that_fortifies(tmp_path: Path) -> None:
    """As Ubuntu's does by default: its longjmp takes another stack for an attack, and ends the process."""
    wrapper = tmp_path / "g++"
    wrapper.write_text(FORTIFIED.format(compiler=compiler()), encoding="utf-8")
    wrapper.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run([sys.executable, "-c", LAUNCHED], env={**os.environ, "PATH": path}, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
