"""cuda/exact_dot_sm90.cu against the reference, word for word."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.kernels import exact_dot, exact_dot_sm90
from auditkit.kernels.source import source_folder
from auditkit.numerics import exact_dot as reference
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.kernels.test_exact_dot import data
from tests.same_bits import assert_same_bits

KERNELS = {14: ("wgmma_short", "wgmma_long", "wgmma_wide"), 21: ("wgmma_wide",)}
LONGEST = {"wgmma_short": 3840, "wgmma_long": 32640, "wgmma_wide": 1 << 23}
# (M, N, K): one, around a stage of K, around a tile, rows for one block of a pair only, several tiles of a block
SIZES = [
    (1, 1, 65),
    (3, 5, 127),
    (64, 8, 128),
    (65, 7, 129),
    (127, 255, 130),
    (129, 257, 256),
    (257, 130, 257),
    (300, 520, 384),
    (2, 3, 700),
]
KINDS = ["normal", "largest", "subnormal", "tiny", "exponents", "ties", "zeros"]


def rows_of(q: int, shape: tuple[int, int]) -> Any:
    """Rows whose integers of 14 bits are all q, |q| from 4096 on."""
    return np.full(shape, q / 8192, np.float32)


def check(device: Any, a: Any, b: Any, bits: int, kernels: tuple[str, ...] = ()) -> None:
    """All kernels that take such long rows give the reference's bits."""
    if device.architecture != "90":
        pytest.skip("only for sm_90")
    with device.use():
        status = device.zeros((1,), np.uint32)
        rows, columns = (exact_dot.quantise(device, status, device.upload(x), bits) for x in (a, b))
        expected = reference.dot(reference.quantise(a, bits), reference.quantise(b, bits))
        for kernel in kernels or (*KERNELS[bits], "wgmma"):
            if rows.padded > LONGEST.get(kernel, rows.padded):
                continue
            got = device.download(exact_dot.dot(device, rows, columns, kernel=kernel))
            assert_same_bits(got.reshape(expected.shape), expected)


@pytest.mark.parametrize("bits", [14, 21])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(device: Any, size: tuple[int, int, int], bits: int) -> None:
    m, n, k = size
    check(device, data("normal", (m, k), 1), data("normal", (n, k), 2), bits)


@pytest.mark.parametrize("bits", [14, 21])
@pytest.mark.parametrize("kind", KINDS)
def test_kinds(device: Any, kind: str, bits: int) -> None:
    check(device, data(kind, (17, 200), 3), data(kind, (9, 200), 4), bits)
    check(device, data(kind, (5, 70), 5), data("subnormal", (6, 70), 6), bits)
    check(device, data(kind, (12, 300), 7), data("tiny", (40, 300), 8), bits)


@pytest.mark.parametrize("bits", [14, 21])
def test_some_rows_need_the_other_rounding(device: Any, bits: int) -> None:
    """Exponents out of the quick rounding's reach in one row of a thread's two, or in one column of a warp's."""
    a, b = data("normal", (70, 130), 21), data("normal", (260, 130), 22)
    a[[3, 40]] *= np.float32(2.0**-90)
    check(device, a, b, bits)
    b[200] *= np.float32(2.0**-100)
    check(device, a, b, bits)


@pytest.mark.parametrize("q", [8192, -8192, 8128, -8128, 8127, -8191, 8064])
@pytest.mark.parametrize("k", [128, 3840])
def test_digits_at_their_bounds(device: Any, q: int, k: int) -> None:
    """The largest sums of each plane, with one sign and with both; 8128 is 64 * 128 - 64, 8127 is 63 * 128 + 63."""
    a, b = rows_of(q, (4, k)), rows_of(q, (4, k))
    a[1] = -a[1]
    b[2, ::2] = -b[2, ::2]
    check(device, a, b, 14, ("wgmma_short", "wgmma_long"))


def test_the_bound_of_the_short_sums_holds() -> None:
    """|127 h h' + s s'| is not above the larger 127 h^2 + s^2: 2^19, so K < 4096 products of one fit int32."""
    q = np.arange(-8192, 8193)
    high = (q + 64) >> 7
    low = q - 128 * high
    assert np.max(127 * high**2 + (high + low) ** 2) == 1 << 19
    assert (low.min(), low.max(), (high + low).min(), (high + low).max()) == (-64, 63, -127, 126)
    assert 127 * 64 * 64 * 3840 + (1 << 26) < 1 << 31 and 127 * 65535 + 128 * 128 * 32640 < 1 << 31


@pytest.mark.parametrize("k", [3841, 7681])
def test_rows_longer_than_the_short_ones(device: Any, k: int) -> None:
    check(device, data("largest", (3, k), 8), data("normal", (2, k), 9), 14)
    check(device, rows_of(-8192, (2, k)), rows_of(8128, (2, k)), 14, ("wgmma_long",))


def test_long_rows(device: Any) -> None:
    """The longest rows of the kernel for long ones; beyond 2^16 terms; sums of 21 bits beyond 2^53."""
    check(device, rows_of(-8192, (1, 32640)), rows_of(-8192, (2, 32640)), 14, ("wgmma_long",))
    check(device, data("largest", (1, 65700), 10), data("largest", (2, 65700), 11), 14, ("wgmma",))
    check(device, data("largest", (2, 8193), 8), data("largest", (1, 8193), 9), 21)


def test_batches(device: Any) -> None:
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((3, 70, 150)), rng.standard_normal((3, 300, 150))
    for bits in (14, 21):
        check(device, a.astype(np.float32), b.astype(np.float32), bits)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("multiprocessors", [2, 5])
def test_pairs_of_blocks_take_one_tile_after_the_other(seed: int, multiprocessors: int) -> None:
    device = EmulatedDevice(seed=seed, poison=0x3C if seed % 2 else 0xA5)
    device.multiprocessors = multiprocessors
    a, b = data("normal", (385, 260), 12), data("normal", (600, 260), 13)
    check(device, a, b, 14, ("wgmma_short", "wgmma_long"))
    check(device, a[:, :200], b[:260, :200], 21)


test_pairs_of_blocks_take_one_tile_after_the_other.pytestmark += EMULATOR_MARKS  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["staged", "no-cluster"])
def test_variants_give_the_same_bits(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of bench/exact_dot_variants.py that take other ways than the shipped one."""
    pytest.importorskip("torch")
    from bench.exact_dot_variants import OP, VARIANTS

    sources = shutil.copytree(source_folder(), tmp_path / "cuda")
    (sources / f"{OP}.cu").write_bytes(VARIANTS[name].text)
    monkeypatch.setattr(exact_dot_sm90, "KERNELS", VARIANTS[name].kernels())
    for seed in (0, 3):
        device = EmulatedDevice(seed=seed, sources=sources)
        for m, n, k in ((260, 300, 400), (70, 301, 130)):
            a, b = data("normal", (m, k), 1), data("normal", (n, k), 2)
            a[[3, 40]] *= np.float32(2.0 ** (-90 * seed))
            check(device, a, b, 14)
            check(device, a, b, 21)


test_variants_give_the_same_bits.pytestmark += [  # type: ignore[attr-defined]
    *EMULATOR_MARKS,
    pytest.mark.optional("the benchmarks need torch, which not every CI machine has"),
]


class TestChoice:
    pytestmark = EMULATOR_MARKS

    def chosen(self, device: EmulatedDevice, m: int, n: int, k: int, bits: int = 14) -> str:
        a, b = data("normal", (m, k), 1), data("normal", (n, k), 2)
        status = device.zeros((1,), np.uint32)
        rows, columns = (exact_dot.quantise(device, status, device.upload(x), bits) for x in (a, b))
        got = device.download(exact_dot.dot(device, rows, columns))
        assert_same_bits(got, reference.dot(reference.quantise(a, bits), reference.quantise(b, bits)))
        return device.launches[-1][1]

    def test_it_is_the_choice_where_it_fits(self) -> None:
        device = EmulatedDevice()
        device.multiprocessors = 4
        assert self.chosen(device, 400, 500, 130) == "exact_dot_wgmma_short_14"
        assert self.chosen(device, 400, 500, 130, 21) == "exact_dot_wgmma_wide_21"
        assert self.chosen(device, 40, 3, 130) == "exact_dot_small_14"
        for k in (0, 64):
            assert "wgmma" not in self.chosen(device, 400, 300, k)
        assert "wgmma" not in self.chosen(EmulatedDevice(architecture="80"), 400, 300, 130)

    @pytest.mark.parametrize(
        ("architecture", "k", "kernel"), [("80", 130, "wgmma"), ("90", 64, "wgmma"), ("90", 3841, "wgmma_short")]
    )
    def test_what_does_not_fit_is_refused(self, architecture: str, k: int, kernel: str) -> None:
        device = EmulatedDevice(architecture=architecture)
        rows = exact_dot.quantise(device, device.zeros((1,), np.uint32), device.upload(data("normal", (3, k), 1)), 14)
        with pytest.raises(ValueError, match="does not fit"):
            exact_dot.dot(device, rows, rows, kernel=kernel)
