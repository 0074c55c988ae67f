"""Parts of digit planes in exact dots: each kernel reads a part as it reads a copy, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels import exact_dot
from auditkit.kernels.exact_dot_choice import compiled
from auditkit.kernels.exact_dot_planes import DeviceRows, Operand
from auditkit.kernels.exact_dot_sm90 import KERNELS as WGMMA
from auditkit.numerics import exact_dot as reference
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.kernels.test_exact_dot import data
from tests.same_bits import assert_same_bits

ALL = slice(None)


def batches(count: int, shape: tuple[int, int], seed: int) -> Any:
    """Matrices whose rows have different exponents; the last row is out of the quick rounding's reach."""
    x = np.stack([data("exponents", shape, seed + i) for i in range(count)])
    x[:, -1] *= np.float32(2.0**-60)
    return x


def rows_of(device: Any, x: Any, bits: int) -> DeviceRows:
    return exact_dot.quantise(device, device.zeros((1,), np.uint32), device.upload(x), bits)


def kernels_for(device: Any, a: Operand) -> list[str]:
    return [
        name
        for name in (*compiled(device.architecture, a.bits), *WGMMA)
        if (a.padded % 128 == 0 or name in ("plain", "small", "large64"))
        and (name not in WGMMA or (device.architecture == "90" and a.padded <= WGMMA[name].longest.get(a.bits, 0)))
    ]


def expected(a: Any, b: Any, bits: int, columns: slice = ALL) -> Any:
    """The reference's dot of those columns of the integers of whole rows a and b."""
    whole = (reference.quantise(x, bits) for x in (a, b))
    left, right = (reference.Rows(rows.values[..., columns], rows.exponents, bits) for rows in whole)
    return reference.dot(left, right)


@pytest.mark.parametrize("bits", [14, 21])
@pytest.mark.parametrize("columns", [ALL, slice(0, 128), slice(128, 384), slice(256, None), slice(384, None)], ids=str)
def test_ranges_of_columns(device: Any, columns: slice, bits: int) -> None:
    a, b = batches(2, (70, 400), 1), batches(2, (9, 400), 3)
    with device.use():
        left, right = (rows_of(device, x, bits).part(columns=columns) for x in (a, b))
        for kernel in kernels_for(device, left):
            assert_same_bits(
                device.download(exact_dot.dot(device, left, right, kernel=kernel)), expected(a, b, bits, columns)
            )


@pytest.mark.parametrize("bits", [14, 21])
@pytest.mark.parametrize(
    "rows", [slice(0, 64), slice(64, 200), slice(128, 131), slice(192, None), slice(64, 64)], ids=str
)
def test_ranges_of_rows(device: Any, rows: slice, bits: int) -> None:
    """Of both operands, the last rows ragged; of some matrices of a batch."""
    a, b = batches(3, (201, 130), 1), batches(3, (330, 130), 4)
    with device.use():
        part = rows_of(device, a, bits).part(rows=rows, batches=slice(1, 3))
        other = rows_of(device, b, bits).part(batches=slice(0, 2), rows=slice(64, None))
        for x, y, want in (
            (part, other, expected(a[1:3, rows], b[0:2, 64:], bits)),
            (other, part, expected(b[0:2, 64:], a[1:3, rows], bits)),
        ):
            for kernel in kernels_for(device, part):
                assert_same_bits(device.download(exact_dot.dot(device, x, y, kernel=kernel)), want)


@pytest.mark.parametrize("bits", [14, 21])
def test_one_matrix_for_several(device: Any, bits: int) -> None:
    """Matrix i of the one operand is multiplied with matrix i // share of the other, also in a part of both."""
    a, b = batches(6, (70, 200), 1), batches(2, (9, 200), 8)
    want = expected(a, np.repeat(b, 3, axis=0), bits)
    with device.use():
        left, right = rows_of(device, a, bits).operand, rows_of(device, b, bits).shared(3)
        for kernel in kernels_for(device, left):
            assert_same_bits(device.download(exact_dot.dot(device, left, right, kernel=kernel)), want)
            turned = device.download(exact_dot.dot(device, right, left, kernel=kernel))
            assert_same_bits(turned, np.ascontiguousarray(np.swapaxes(want, 1, 2)))
            part = exact_dot.dot(device, left.part(batches=slice(3, 6)), right.part(batches=slice(3, 6)), kernel=kernel)
            assert_same_bits(device.download(part), want[3:6])


@pytest.mark.parametrize("bits", [14, 21])
@pytest.mark.parametrize("n", [6, 7, 8])
@pytest.mark.parametrize(("width", "at"), [(20, (3, 4)), (20, (3, 5)), (21, (0, 2)), (22, (1, 2))], ids=str)
def test_into_a_part_of_a_larger_result(device: Any, width: int, at: tuple[int, int], n: int, bits: int) -> None:
    """Whether pairs of columns can be written at once or not; what lies around stays."""
    a, b = batches(2, (66, 130), 1), batches(2, (n, 130), 3)
    rows, columns = (slice(first, first + size) for first, size in zip(at, (66, n), strict=True))
    around = np.random.default_rng(5).standard_normal((2, 70, width)).astype(np.float32)
    want = around.copy()
    want[:, rows, columns] = expected(a, b, bits)
    with device.use():
        left, right = (rows_of(device, x, bits) for x in (a, b))
        for kernel in kernels_for(device, left.operand):
            into = device.upload(around)
            assert exact_dot.dot(device, left, right, into=into, at=at, kernel=kernel) is into
            assert_same_bits(device.download(into), want)


def test_parts_of_parts(device: Any) -> None:
    a = batches(2, (300, 600), 1)
    with device.use():
        whole = rows_of(device, a, 14)
        part = whole.part(rows=slice(64, None), columns=slice(128, 512)).part(batches=slice(1, 2))
        part = part.part(rows=slice(128, 200), columns=slice(0, 256))
        for kernel in kernels_for(device, part):
            got = device.download(exact_dot.dot(device, part, part, kernel=kernel))
            assert_same_bits(got, expected(a[1, 192:264], a[1, 192:264], 14, slice(128, 384)))


class TestWhatIsRefused:
    pytestmark = EMULATOR_MARKS

    @pytest.mark.parametrize(
        "part",
        [
            {"rows": slice(1, 64)},
            {"rows": slice(0, 64, 2)},
            {"columns": slice(64, 128)},
            {"columns": slice(0, 130)},
            {"batches": slice(1, 4)},
            {"batches": slice(0, 3)},
        ],
        ids=str,
    )
    def test_parts_that_do_not_begin_or_end_where_blocks_do(self, part: dict[str, slice]) -> None:
        rows = rows_of(EmulatedDevice(), batches(2, (70, 200), 1), 14).shared(2)
        with pytest.raises(ValueError, match="does not begin at a multiple"):
            rows.part(**part)

    @pytest.mark.parametrize(
        ("shape", "at"), [((2, 6, 9), (2, 0)), ((2, 6, 9), (0, 6)), ((2, 6, 9), (-1, 0)), ((1, 6, 9), (0, 0))], ids=str
    )
    def test_results_that_do_not_fit(self, shape: tuple[int, int, int], at: tuple[int, int]) -> None:
        device: Any = EmulatedDevice()
        rows, columns = (rows_of(device, batches(2, (size, 20), 1), 14) for size in (5, 4))
        with pytest.raises(ValueError, match="do not fit"):
            exact_dot.dot(device, rows, columns, into=device.empty(shape, np.float32), at=at)
        with pytest.raises(ValueError, match="do not fit"):
            exact_dot.dot(device, rows, columns, into=device.empty((2, 5, 4), np.int32))
