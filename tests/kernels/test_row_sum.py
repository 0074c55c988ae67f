"""cuda/row_sum.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.errors import Unsupported
from auditkit.kernels.row_sum import RowShape, check_width, padded_width, row_sum
from auditkit.numerics import row_sum as reference
from tests.kernels.variants import runs
from tests.ops.cases import BOUNDARY_SIZES, NOT_FINITE, awkward_rows, floats, with_value
from tests.same_bits import assert_same_bits

SHAPES = (None, RowShape(32, 32), RowShape(32, 96), RowShape(64, 64), RowShape(256, 256), RowShape(1024, 1024))
FEW_BLOCKS = (RowShape(32, 64, most=1), RowShape(128, 128, most=2))


def check(device: Any, x: Any, shapes: Any = SHAPES) -> None:
    want = reference.row_sum(x)
    for run in runs(device):
        on_device = run.up(x)
        for shape in shapes:
            assert_same_bits(run.down(row_sum(run.device, on_device, shape=shape)), want)


@pytest.mark.parametrize("width", [0, *BOUNDARY_SIZES, 255, 257, 388, 508, 760, 900, 1023, 1024, 1025, 4099, 5632])
def test_widths(device: Any, width: int) -> None:
    check(device, floats(width, 3, width, low=-30, high=30))


@pytest.mark.parametrize("width", [1, 2, 3, 33, 64, 300])
def test_awkward_rows(device: Any, width: int) -> None:
    """Minus zero survives only where nothing is padded; subnormals, overflow, one spike."""
    rows = np.concatenate([awkward_rows(width), *(with_value(floats(1, 1, width), value) for value in NOT_FINITE[:2])])
    check(device, rows, SHAPES[:5])


def test_many_rows_and_axes(device: Any) -> None:
    """More rows than teams, and leading axes."""
    check(device, floats(1, 3, 7, 11, low=-3, high=3), (None, RowShape(32, 64), *FEW_BLOCKS))
    check(device, floats(1, 0, 5), (None,))


def test_order_is_that_of_the_halving_tree(device: Any) -> None:
    """Every pair of elements cancels exactly only if it meets where the tree says."""
    for width in (8, 64, 129):
        pairs = np.zeros((width, width), np.float32)
        for i in range(width):
            pairs[i] = 1
            pairs[i, i] = 2.0**25
            pairs[i, (i + padded_width(width) // 2) % width] = -(2.0**25)
        check(device, pairs, SHAPES[:3])


def test_a_row_that_is_too_long() -> None:
    check_width(1 << 28, 32)
    with pytest.raises(Unsupported, match="longer than 32 threads"):
        check_width((1 << 28) + 1, 32)
