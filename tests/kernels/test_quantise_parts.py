"""Columns of a matrix in parts (cuda/quantise_parts.cuh) against the matrix in one, and the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels import quantise as fixed
from auditkit.kernels.operands import quantise_columns
from auditkit.kernels.product import quantise_t
from auditkit.numerics.layout import columns
from tests.kernels.test_exact_dot import data
from tests.kernels.test_quantise import BITS, check
from tests.kernels.variants import NOT_FINITE, Run, runs
from tests.same_bits import assert_same_bits

# Heights of the parts, width, first and last column: one part; no quads; a tile across parts; columns that begin inside
# a quad; a last part that is less high; a strip and more.
CASES = [
    ((3,), 5, 0, 5),
    ((2, 2, 1), 7, 1, 6),
    ((30, 30, 30), 12, 4, 12),
    ((64, 64, 10), 70, 2, 68),
    ((100, 100, 100), 264, 4, 264),
    ((33, 33, 20), 400, 0, 300),
    ((5, 5), 8, 3, 4),
]


@BITS
@pytest.mark.parametrize(("heights", "width", "first", "stop"), CASES, ids=str)
def test_columns_of_parts(device: Any, heights: tuple[int, ...], width: int, first: int, stop: int, bits: int) -> None:
    x = data("normal", (sum(heights), width), 3)
    ends = np.cumsum(heights)
    for run in runs(device):
        parts = [run.up(np.ascontiguousarray(x[end - height : end])) for height, end in zip(heights, ends, strict=True)]
        found = fixed.quantise_parts(run.device, run.status, parts, first, stop, bits)
        check(run, found, np.ascontiguousarray(x[:, first:stop].T)[None], bits)
        assert run.bits() == 0


@pytest.mark.parametrize("kind", ["exponents", "subnormal", "largest", "zeros", "ties"])
def test_kinds(device: Any, kind: str) -> None:
    x = data(kind, (70, 28), 2)
    with device.use():
        run = Run(device)
        parts = [run.up(np.ascontiguousarray(part)) for part in (x[:40], x[40:])]
        check(
            run, fixed.quantise_parts(device, run.status, parts, 4, 28, 14), np.ascontiguousarray(x[:, 4:].T)[None], 14
        )
        assert run.bits() == 0


def test_every_product_has_its_columns(device: Any) -> None:
    """Those of f32 are gathered first."""
    x = data("normal", (12, 20), 5)
    with device.use():
        run = Run(device)
        parts = [run.up(x[:8]), run.up(x[8:])]
        for bits in (14, 21, 24):
            found = quantise_columns(device, run.status, parts, 4, 16, bits)
            expected = quantise_t(device, run.status, run.up(columns([x[:8], x[8:]], 4, 16)), bits)
            for name in ("planes", "exponents") if bits != 24 else ("values",):
                assert_same_bits(run.down(getattr(found, name)), run.down(getattr(expected, name)))


def test_parts_that_do_not_begin_at_sixteen_bytes(device: Any) -> None:
    x = data("normal", (12, 20), 6)
    with device.use():
        run = Run(device)
        apart = run.up(np.concatenate([[0], x[8:].reshape(-1)]).astype(np.float32))[1:].reshape((4, 20))
        with pytest.raises(ValueError, match="16 bytes"):
            quantise_columns(device, run.status, [run.up(x[:8]), apart], 4, 16, 14)


def test_a_value_that_is_not_finite_is_found(device: Any) -> None:
    x = np.ones((40, 20), np.float32)
    x[39, 9] = np.nan
    with device.use():
        for first, bits in ((8, NOT_FINITE), (12, 0)):
            run = Run(device)
            fixed.quantise_parts(device, run.status, [run.up(x[:32]), run.up(x[32:])], first, 20, 14)
            assert run.bits() == bits


def test_parts_that_are_no_matrix_are_refused(device: Any) -> None:
    with device.use():
        run = Run(device)
        for heights in ((2, 3), (3, 2, 3)):
            parts = [run.up(np.ones((height, 4), np.float32)) for height in heights]
            with pytest.raises(ValueError, match="parts of"):
                fixed.quantise_parts(device, run.status, parts, 0, 4, 14)
