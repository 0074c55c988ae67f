"""Products in ranges of K give the bits of the whole ones; which way is chosen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels import exact_dot
from auditkit.kernels.exact_dot_choice import SUMS_BYTES, Size, Way, choose
from auditkit.numerics import exact_dot as reference
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.kernels.test_exact_dot import data
from tests.kernels.test_exact_dot_planes import kernels_for, rows_of
from tests.same_bits import assert_same_bits

H200, GEFORCE = ("90", 132), ("86", 82)


def check(device: Any, a: Any, b: Any, bits: int, ranges: int, kernels: tuple[str, ...] = ()) -> None:
    """All tensor-core kernels, into a part of a larger result, from a part of longer rows too."""
    want = reference.dot(reference.quantise(a, bits), reference.quantise(b, bits))
    with device.use():
        left, right = (rows_of(device, x, bits).operand for x in (a, b))
        for kernel in kernels or kernels_for(device, left.ranges(ranges)):
            if kernel == "plain":
                continue
            got = exact_dot.dot(device, left, right, kernel=kernel, ranges=ranges)
            assert_same_bits(device.download(got), want)
            into = device.zeros((a.shape[0] + 1, b.shape[0] + 2), np.float32)
            exact_dot.dot(device, left, right, into=into, at=(1, 1), kernel=kernel, ranges=ranges)
            assert_same_bits(np.ascontiguousarray(device.download(into)[1:, 1:-1]), want)


@pytest.mark.parametrize("bits", [14, 21])
@pytest.mark.parametrize(
    ("m", "n", "k", "ranges"), [(1, 1, 130, 2), (65, 7, 700, 3), (129, 258, 512, 4), (130, 66, 500, 2)], ids=str
)
def test_ranges(device: Any, m: int, n: int, k: int, ranges: int, bits: int) -> None:
    check(device, data("exponents", (m, k), 1), data("exponents", (n, k), 2), bits, ranges)


@pytest.mark.parametrize("bits", [14, 21])
@pytest.mark.parametrize("kind", ["largest", "subnormal", "tiny", "ties", "zeros"])
def test_kinds(device: Any, kind: str, bits: int) -> None:
    check(device, data(kind, (17, 250), 3), data(kind, (9, 250), 4), bits, 2)
    check(device, data(kind, (3, 250), 5), data("tiny", (5, 250), 6), bits, 2)


def test_long_rows(device: Any) -> None:
    """Ranges beyond the short sums; ranges that are together beyond the quick rounding, or 2^53."""
    check(device, data("largest", (2, 8192), 8), data("largest", (1, 8192), 9), 14, 2)
    check(device, data("largest", (2, 8193), 8), data("largest", (1, 8193), 9), 21, 5)
    check(device, data("largest", (1, 65600), 10), data("largest", (2, 65600), 11), 14, 3, ("small",))


def test_ranges_of_a_part(device: Any) -> None:
    a = data("exponents", (200, 600), 1)
    rows = reference.quantise(a, 14)
    part = reference.Rows(rows.values[64:, 128:512], rows.exponents[64:], 14)
    with device.use():
        left = rows_of(device, a, 14).part(rows=slice(64, None), columns=slice(128, 512))
        for kernel in kernels_for(device, left)[1:]:
            got = exact_dot.dot(device, left, left, kernel=kernel, ranges=3)
            assert_same_bits(device.download(got), reference.dot(part, part))


class TestRefused:
    pytestmark = EMULATOR_MARKS

    @pytest.mark.parametrize(
        ("shape", "kernel", "ranges"),
        [((3, 384), "small", 2), ((3, 200), "small", 4), ((3, 256), "plain", 2), ((2, 3, 256), "small", 2)],
        ids=str,
    )
    def test_what_cannot_be_divided(self, shape: tuple[int, ...], kernel: str, ranges: int) -> None:
        device: Any = EmulatedDevice()
        rows = rows_of(device, np.ones(shape, np.float32), 14)
        with pytest.raises(ValueError, match="does not divide"):
            exact_dot.dot(device, rows, rows, kernel=kernel, ranges=ranges)


@pytest.mark.parametrize(
    ("card", "size", "way"),
    [
        (H200, Size(14, 1, 8192, 8192, 8192), Way("wgmma_long")),
        (H200, Size(14, 1, 16384, 2048, 2048), Way("wgmma_short")),
        (H200, Size(21, 1, 16384, 128256, 2048), Way("wgmma_wide")),
        (H200, Size(14, 1, 512, 2048, 16384), Way("wgmma_long", 4)),
        (H200, Size(14, 1, 64, 64, 64), Way("small")),
        (GEFORCE, Size(14, 1, 8192, 8192, 8192), Way("large64")),
        (GEFORCE, Size(14, 1, 64, 64, 64), Way("small")),
        (("120", 170), Size(21, 1, 8192, 8192, 8192), Way("small")),
    ],
    ids=str,
)
def test_the_choice(card: tuple[str, int], size: Size, way: Way) -> None:
    assert choose(*card, size) == way


@pytest.mark.parametrize("card", [H200, GEFORCE, ("120", 170), ("75", 40), ("90", 3)], ids=str)
def test_every_choice_can_be_made(card: tuple[str, int]) -> None:
    """For many sizes: ranges divide K, sums fit, kernels take the rows; few tiles of long rows are divided."""
    divided = 0
    for bits in (14, 21):
        for batch in (1, 3):
            for rows, columns in ((1, 1), (64, 256), (300, 520), (512, 2048), (5632, 2048), (0, 5)):
                for padded in (64, 128, 1152, 3968, 16384, 65536, 1 << 20):
                    size = Size(bits, batch, rows, columns, padded)
                    way = choose(*card, size)
                    divided += way.ranges > 1
                    assert way.ranges == 1 or (batch == 1 and padded % (128 * way.ranges) == 0)
                    assert way.ranges == 1 or way.ranges * rows * columns * 8 <= SUMS_BYTES
                    assert card[0] == "90" or not way.kernel.startswith("wgmma")
                    assert padded % 128 == 0 or way.kernel in ("small", "large64")
    assert divided > 5


def test_a_product_with_few_tiles_is_divided_by_itself() -> None:
    device: Any = EmulatedDevice()
    device.multiprocessors = 8
    a, b = data("normal", (40, 4096), 1), data("normal", (130, 4096), 2)
    got = exact_dot.dot(device, rows_of(device, a, 14), rows_of(device, b, 14))
    assert [name for _, name in device.launches[-1:]] == ["exact_dot_round_14"]
    assert_same_bits(device.download(got), reference.dot(reference.quantise(a, 14), reference.quantise(b, 14)))


test_a_product_with_few_tiles_is_divided_by_itself.pytestmark = EMULATOR_MARKS  # type: ignore[attr-defined]
