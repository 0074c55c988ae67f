"""cuda/global_norm.cu against the reference, as integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels.global_norm import squares, squares_value
from auditkit.numerics import global_norm as reference
from tests.kernels.variants import NOT_FINITE, SUM_RANGE, runs
from tests.ops.cases import NOT_FINITE as BAD_VALUES
from tests.ops.cases import awkward_rows, floats, normals, with_value

LAUNCHES = ((None, None), (32, 1), (64, 7), (256, 2))  # (threads, most blocks)
SIZES = (0, 1, 3, 4, 5, 127, 128, 129, 4095, 4096, 4097, 9001)


def check(device: Any, grads: list[Any], launches: Any = LAUNCHES) -> None:
    want = sum(reference.squares(grad) for grad in grads)
    for run in runs(device):
        arrays = [run.up(grad) for grad in grads]
        for block, blocks in launches:
            got = run.down(squares(run.device, run.status, arrays, block=block, blocks=blocks))
            assert got.dtype == np.int64
            assert squares_value(got) == want
        assert run.bits() == 0


@pytest.mark.parametrize("size", SIZES)
def test_sizes(device: Any, size: int) -> None:
    check(device, [floats(size, size, low=-40, high=5)])


def test_many_tensors(device: Any) -> None:
    check(device, [])
    check(device, [normals(i, *shape) for i, shape in enumerate(((3, 5), (0,), (4096,), (7, 1, 2), (2, 4099)))])


def test_awkward_values(device: Any) -> None:
    """Squares that underflow, are subnormal, lie half-way between two integers, or are as large as may be."""
    small = [row for row in awkward_rows(37) if abs(row).max() < 1000]
    halves = np.sqrt(np.ldexp(np.arange(1, 200, dtype=np.float64), -63)).astype(np.float32)
    large = np.full(3, np.nextafter(np.float32(2.0**15), np.float32(0)))
    check(device, [*small, halves, large, floats(3, 500, low=-75, high=-20)])


@pytest.mark.parametrize("value", [*BAD_VALUES, np.float32(65536), np.float32(-1e30)], ids=str)
def test_a_square_out_of_range_sets_status(device: Any, value: np.float32) -> None:
    for run in runs(device):
        arrays = [run.up(normals(1, 40)), run.up(with_value(normals(2, 4100), value))]
        squares(run.device, run.status, arrays)
        assert run.bits() == NOT_FINITE


def test_a_sum_out_of_range_sets_status(device: Any) -> None:
    """Terms just below 2^32: the first four hundred elements would wrap a 64-bit sum several times."""
    largest = np.nextafter(np.float32(65536), np.float32(0))
    for run in runs(device):
        for block, blocks in LAUNCHES:
            run.status = run.device.zeros((1,), np.uint32)
            squares(run.device, run.status, [run.up(np.full(400, largest))], block=block, blocks=blocks)
            assert run.bits() == SUM_RANGE
