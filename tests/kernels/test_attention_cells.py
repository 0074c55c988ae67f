"""cuda/attention_cells.cuh: each step on a warpgroup's cells has the reference's bits, in every form that it has."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from auditkit.kernels.attention import turned
from auditkit.kernels.device import blocks_for
from auditkit.kernels.exact_dot import quantise
from auditkit.kernels.exact_dot_planes import padded_length
from auditkit.numerics.exp import exp
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.kernels.test_emulator import SOURCES
from tests.same_bits import assert_same_bits

pytestmark = EMULATOR_MARKS
Floats = npt.NDArray[np.float32]


def test_cells_in_turn() -> None:
    """Each comes once, with its own number and place, and what stands beside it is where it was."""
    device: Any = EmulatedDevice(sources=SOURCES)
    found = [device.empty((64, 64), np.int32) for _ in range(3)]
    device.launch("cells", "places", 1, 128, found)
    for array in found[:2]:
        assert_same_bits(device.download(array), np.arange(4096, dtype=np.int32).reshape(64, 64))
    assert device.download(found[2]).all()


def test_exps_are_exps() -> None:
    """Each word around the places where n changes and around the ends, and many between."""
    device: Any = EmulatedDevice(sources=SOURCES)
    edges = (-(np.arange(125) + 0.5) * np.log(2)).astype(np.float32)
    edges = edges[edges > -86].view(np.uint32)
    words = [np.arange(int(e) - 100, int(e) + 100, dtype=np.uint32) for e in edges]
    last = int(np.float32(-86).view(np.uint32))
    words += [np.arange(0x80000000, last, 40_009, dtype=np.uint32), np.arange(last - 500, last + 1, dtype=np.uint32)]
    x = np.concatenate([*words, np.zeros(1, np.uint32)]).view(np.float32)
    y = device.empty(x.shape, np.float32)
    device.launch("cells", "exps", blocks_for(x.size, 128), 128, [device.upload(x), y, np.int64(x.size)])
    assert_same_bits(device.download(y), exp(x))


def blocks_of(w: npt.NDArray[np.int64], middle: int) -> npt.NDArray[np.int8]:
    """The three planes' blocks of integers [64][64] (exact_dot_planes.cuh), columns in the order of store_weights.

    middle: what is added so that the lower digit is not below -middle.
    """
    order = np.array([8 * i + 2 * c + b for c in range(4) for i in range(8) for b in range(2)])
    high = (w + middle) >> 7
    low = w - 128 * high
    rows, places = np.arange(64)[:, None], np.arange(64)[None, :]
    at = rows * 64 + ((((places >> 4) ^ (rows >> 1)) & 3) << 4) + (places & 15)
    planes = np.empty((3, 4096), np.int8)
    for plane, digits in enumerate((high, high + low, low)):
        planes[plane, at] = digits[:, order].astype(np.uint8).view(np.int8)
    return planes


def weights() -> Floats:
    """All integers, all halves, neighbours of halves, and what is far below one."""
    halves = (np.arange(-8192, 8192) + 0.5).astype(np.float32)
    beside = [np.nextafter(halves, np.float32(side)) for side in (-np.inf, np.inf)]
    tiny = np.array([2.0**-149, -(2.0**-149), 0.25, -0.0, 1e-30], np.float32)
    w = np.concatenate([np.arange(-8192, 8193).astype(np.float32), halves, *beside, tiny])
    return np.resize(w, -(-w.size // 4096) * 4096).reshape(-1, 64, 64)


@pytest.mark.parametrize("sign", ["signed", "unsigned"])
@pytest.mark.parametrize("factor", [1.0, 2.0**60])
def test_digits_are_those_of_the_rounded_weight(sign: str, factor: float) -> None:
    device: Any = EmulatedDevice(sources=SOURCES)
    w = weights() / np.float32(factor)
    if sign == "unsigned":
        w = np.abs(w)
    out = device.empty((w.shape[0], 3, 4096), np.int8)
    device.launch("cells", f"{sign}_digits", w.shape[0], 128, [device.upload(w), out, np.float32(factor)])
    rounded = np.rint(w.astype(np.float64) * factor).astype(np.int64)
    expected = np.stack([blocks_of(tile, 64 if sign == "signed" else 0) for tile in rounded])
    assert_same_bits(device.download(out), expected)


@pytest.mark.parametrize(("rows", "length"), [(1, 128), (64, 70), (130, 128)])
def test_turned_rows_stand_in_the_order_of_weights(rows: int, length: int) -> None:
    device: Any = EmulatedDevice(poison=0x3C)
    x = np.random.default_rng(9).standard_normal((2, rows, length)).astype(np.float32)
    status = device.zeros((1,), np.uint32)
    given = quantise(device, status, device.upload(x), 14)
    plain, ordered = (turned(device, [given], ordered=choice) for choice in (False, True))
    assert plain.padded == ordered.padded == padded_length(rows)
    order = np.array([8 * i + 2 * c + b for c in range(4) for i in range(8) for b in range(2)])
    found, expected = (whole_rows(device.download(t.planes)) for t in (ordered, plain))
    expected = expected.reshape(*expected.shape[:2], -1, 64)[..., order]
    assert_same_bits(found.reshape(expected.shape), expected)


def whole_rows(planes: npt.NDArray[np.int8]) -> npt.NDArray[np.int8]:
    """Planes in blocks (exact_dot_planes.cuh) as rows."""
    count, lines, padded = planes.shape
    blocks = planes.reshape(count, lines // 64, padded // 64, 4096)
    rows, places = np.arange(64)[:, None], np.arange(64)[None, :]
    at = rows * 64 + ((((places >> 4) ^ (rows >> 1)) & 3) << 4) + (places & 15)
    return np.ascontiguousarray(blocks[..., at].swapaxes(2, 3)).reshape(count, lines, padded)


def test_maxima_of_columns() -> None:
    device: Any = EmulatedDevice(sources=SOURCES)
    x = np.random.default_rng(8).random((64, 64), np.float32)
    columns = device.empty((4, 64), np.float32)
    device.launch("cells", "maxima", 1, 128, [device.upload(x), columns])
    assert_same_bits(device.download(columns), x.reshape(4, 16, 64).max(axis=1))
