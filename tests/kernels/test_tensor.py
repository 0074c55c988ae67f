"""cuda/tensor.cuh and the other collectives of a warp against plain NumPy, on the emulator and on a card."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.kernels.emulator import EmulatedDevice, EmulationError
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.kernels.test_emulator import SOURCES
from tests.same_bits import assert_same_bits

pytestmark = EMULATOR_MARKS
LANE = np.arange(32)
ARCHITECTURES = pytest.mark.parametrize("architecture", ["75", "80", "90"])
Words = npt.NDArray[np.uint32]


def device(architecture: str, **options: Any) -> EmulatedDevice:
    return EmulatedDevice(sources=SOURCES, architecture=architecture, **options)


def run(emulated: Any, kernel: str, inputs: list[npt.NDArray[Any]], out: npt.NDArray[Any], *scalars: Any) -> Any:
    held = emulated.upload(out)
    emulated.launch("warp", kernel, 1, 32, [*(emulated.upload(x) for x in inputs), held, *scalars])
    return emulated.download(held)


@pytest.mark.parametrize("width", [32, 16, 2, 1])
@pytest.mark.parametrize("arg", [0, 1, 5, 16, 31])
def test_shuffles(arg: int, width: int) -> None:
    x = np.arange(32, dtype=np.uint64) * np.uint64(0x0123456789ABCDEF)
    got = run(device("90", seed=1), "shuffles", [x], np.zeros(192, np.uint64), np.int32(arg), np.int32(width))
    base, within = LANE // width * width, LANE % width
    fixed = base + arg % width
    up = np.where(within >= arg, LANE - arg, LANE)
    down = np.where(within + arg < width, LANE + arg, LANE)
    xor = np.where((LANE ^ arg) < base + width, LANE ^ arg, LANE)
    low = x & np.uint64(0xFFFFFFFF)
    assert_same_bits(got, np.concatenate([x[fixed], x[up], x[down], x[xor], low[fixed], low[xor]]))


@ARCHITECTURES
def test_votes_and_reductions(architecture: str) -> None:
    x = np.array([0xFFFFFFF0 + 3 * i if i < 4 else 7 * i for i in range(32)], np.uint32)
    got = run(device(architecture, seed=2), "votes", [x], np.zeros(192, np.uint32))
    odd = sum(int(v & 1) << i for i, v in enumerate(x))
    assert set(got[:32]) == {odd}
    assert set(got[32:64]) == {1 + 2 * int((x > 9).all())}
    assert list(got[64:96]) == [odd & 0xFFF] * 12 + [0] * 20
    if architecture != "75":
        assert set(got[96:128]) == {np.add.reduce(x, dtype=np.uint32)}
        assert set(got[128:160]) == {x.view(np.int32).max()}
        assert set(got[160:192]) == {np.bitwise_xor.reduce(x)}


def test_votes_of_a_block() -> None:
    emulated = device("90", seed=3)
    for x in (np.ones(96, np.uint32), np.zeros(96, np.uint32), np.arange(96, dtype=np.uint32)):
        out = emulated.empty((96, 3), np.uint32)
        emulated.launch("warp", "votes_of_block", 1, 96, [emulated.upload(x), out])
        count = np.count_nonzero(x)
        assert_same_bits(emulated.download(out), np.tile(np.array([count == 96, count > 0, count], np.uint32), (96, 1)))


def packed(x: npt.NDArray[np.int8], rows: npt.NDArray[Any], k: npt.NDArray[Any]) -> Words:
    """One register a lane: the four bytes k..k+3 of a row."""
    return np.stack([x[rows, k + i] for i in range(4)], axis=-1).copy().view(np.uint32)[..., 0]


def extreme(rng: np.random.Generator, shape: tuple[int, int]) -> npt.NDArray[np.int8]:
    x = rng.integers(-128, 128, shape).astype(np.int8)
    x[0], x[-1] = -128, 127
    return x


@ARCHITECTURES
@pytest.mark.parametrize("seed", [0, 7])
def test_the_product_of_16x32_and_32x8(architecture: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b = extreme(rng, (16, 32)), extreme(rng, (8, 32))
    start = rng.integers(-(2**31), 2**31, (16, 8)).astype(np.int32)
    start[0, 0] = 2**31 - 1  # wraps
    g, t = LANE // 4, LANE % 4
    fragments_a = np.stack([packed(a, g + 8 * (i % 2), 4 * t + 16 * (i // 2)) for i in range(4)], axis=1)
    fragments_b = np.stack([packed(b, g, 4 * t + 16 * i) for i in range(2)], axis=1)
    rows, columns = np.stack([g, g, g + 8, g + 8], axis=1), np.stack([2 * t, 2 * t + 1] * 2, axis=1)
    got = run(device(architecture, seed=seed), "mma_tall", [fragments_a, fragments_b], start[rows, columns])
    with np.errstate(over="ignore"):
        want = start + a.astype(np.int32) @ b.astype(np.int32).T
    assert_same_bits(got, want[rows, columns])


@ARCHITECTURES
def test_the_product_of_8x16_and_16x8(architecture: str) -> None:
    rng = np.random.default_rng(3)
    a, b = extreme(rng, (8, 16)), extreme(rng, (8, 16))
    g, t = LANE // 4, LANE % 4
    start = rng.integers(-1000, 1000, (8, 8)).astype(np.int32)
    rows, columns = np.stack([g, g], axis=1), np.stack([2 * t, 2 * t + 1], axis=1)
    got = run(device(architecture), "mma_small", [packed(a, g, 4 * t), packed(b, g, 4 * t)], start[rows, columns])
    assert_same_bits(got, (start + a.astype(np.int32) @ b.astype(np.int32).T)[rows, columns])


@ARCHITECTURES
def test_matrices_are_loaded_plain_and_transposed(architecture: str) -> None:
    m = (
        np.random.default_rng(4).integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
    )  # four matrices of 8 rows of 16 bytes
    got = run(device(architecture, seed=1), "matrices", [m.reshape(32, 8).view(np.uint32)], np.zeros(384, np.uint32))
    g, t = LANE // 4, LANE % 4

    def loaded(source: npt.NDArray[np.uint16], count: int) -> Words:
        pairs = [
            np.stack([source[i, g, 2 * t], source[i, g, 2 * t + 1]], axis=1).view(np.uint32)[:, 0] for i in range(count)
        ]
        return np.stack(pairs, axis=1).reshape(-1)

    turned = m.transpose(0, 2, 1)
    assert_same_bits(got, np.concatenate([loaded(m, 4), loaded(turned, 4), loaded(m, 2), loaded(turned, 2)]))


@ARCHITECTURES
@pytest.mark.parametrize("size", [16, 5, 0])
def test_asynchronous_copies(architecture: str, size: int) -> None:
    emulated = device(architecture, seed=5)
    rows = np.arange(2 * 64 * 4, dtype=np.uint32).reshape(2, 64, 4) + np.uint32(0x01020304)
    out = emulated.empty((2, 64, 4), np.uint32)
    emulated.launch("warp", "copies", 1, 64, [emulated.upload(rows), out, np.int32(size), np.int32(0)], shared=2048)
    want = rows[:, ::-1].copy()
    want.view(np.uint8)[1].reshape(64, 16)[:, size:] = 0
    assert_same_bits(emulated.download(out), want)


def test_a_copy_that_is_not_waited_for_has_not_arrived() -> None:
    emulated = device("80")
    rows, out = emulated.zeros((2, 64, 4), np.uint32), emulated.zeros((2, 64, 4), np.uint32)
    emulated.launch("warp", "copies", 1, 64, [rows, out, np.int32(16), np.int32(1)], shared=2048)
    assert np.all(emulated.download(out)[1] == 0xA5A5A5A5)
    with pytest.raises(EmulationError, match="out of bounds"):
        emulated.launch("warp", "copies", 1, 65, [rows, out, np.int32(16), np.int32(0)], shared=65 * 32)
