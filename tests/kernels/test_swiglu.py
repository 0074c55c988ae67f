"""cuda/swiglu.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels.operands import swiglu_backward_both, swiglu_columns, swiglu_keep, swiglu_rows
from auditkit.kernels.product import kept_columns
from auditkit.kernels.quantise import quantise_both
from auditkit.kernels.swiglu import swiglu_backward, swiglu_forward
from auditkit.numerics import swiglu as reference
from tests.kernels.variants import NOT_FINITE, Run, assert_same_operands, runs
from tests.ops.cases import SMALLEST, floats
from tests.same_bits import assert_same_bits

GATES = (0.0, -0.0, SMALLEST, -SMALLEST, 87.4, -87.4, 103.9, -103.9, 200.0, -200.0, np.inf, -np.inf, 1e-20, -17.0)


def check(device: Any, gate: Any, up: Any, dy: Any) -> None:
    y, cache = reference.swiglu_forward(gate, up)
    dgate, dup = reference.swiglu_backward(dy, cache)
    for run in runs(device):
        arrays = run.up(gate), run.up(up), run.up(dy)
        for block in (32, 64, 256):
            got, on_cache = swiglu_forward(run.device, *arrays[:2], block=block)
            assert_same_bits(run.down(got), y)
            got_gate, got_up = swiglu_backward(run.device, arrays[2], on_cache, block=block)
            assert_same_bits(run.down(got_gate), dgate)
            assert_same_bits(run.down(got_up), dup)


@pytest.mark.parametrize(
    "shape", [(1, 3), (2, 128), (7, 129), (33, 132), (65, 260), (40, 516), (3, 4100), (2, 8196)], ids=str
)
def test_operands_are_those_of_the_results(device: Any, shape: tuple[int, int]) -> None:
    gate, up, dy = (floats(seed, *shape) for seed in (1, 2, 3))
    for run in runs(device):
        arrays = run.up(gate), run.up(up), run.up(dy)
        y, cache = swiglu_forward(run.device, *arrays[:2])
        for bits in (14, 21):
            rows, kept, fused = swiglu_keep(run.device, run.status, *arrays[:2], bits)
            columns = kept_columns(run.device, run.status, kept, bits)
            expected = quantise_both(run.device, run.status, y, bits)
            assert_same_operands(run, (rows, columns), expected)
            kept, again = swiglu_columns(run.device, run.status, *arrays[:2], bits)
            apart = (
                swiglu_rows(run.device, run.status, *arrays[:2], bits),
                kept_columns(run.device, run.status, kept, bits),
            )
            assert_same_operands(run, apart, expected)
            assert again == fused
            both = swiglu_backward_both(run.device, run.status, arrays[2], fused, bits)
            for found, made in zip(both, swiglu_backward(run.device, arrays[2], cache), strict=True):
                assert_same_operands(run, found, quantise_both(run.device, run.status, made, bits))
        assert run.bits() == 0


def test_a_value_that_is_not_finite_is_found_in_the_operand(device: Any) -> None:
    with device.use():
        for at, value in ((0, np.inf), (1, np.nan), (2, -np.inf)):
            run, arrays = Run(device), [np.ones((40, 130), np.float32) for _ in range(3)]
            arrays[at][39, 129] = value
            gate, up, dy = (run.up(array) for array in arrays)
            _, _, cache = swiglu_keep(device, run.status, gate, up, 14)
            assert run.bits() == (NOT_FINITE if at < 2 else 0)
            for op in (swiglu_rows, swiglu_columns):
                run = Run(device)
                op(device, run.status, gate, up, 14)
                assert run.bits() == (NOT_FINITE if at < 2 else 0)
            swiglu_backward_both(device, run.status, dy, cache, 14)
            assert run.bits() == NOT_FINITE


@pytest.mark.parametrize(
    "shape", [(0, 7), (1, 1), (1, 127), (1, 128), (1, 129), (3, 341), (1, 1023), (2, 512), (5, 205)]
)
def test_sizes(device: Any, shape: tuple[int, int]) -> None:
    check(device, floats(1, *shape), floats(2, *shape), floats(3, *shape))


def test_awkward_values(device: Any) -> None:
    """Both ends of the sigmoid, infinite gates; no case makes a NaN, whose payload machines choose."""
    gate = np.repeat(np.array(GATES, np.float32), 8)[None]
    up = np.tile(np.array([0, -0.0, 1, -3e38, SMALLEST, 1e-38, 7, -0.5], np.float32), len(GATES))[None]
    finite = np.isfinite(gate) & ~((gate == 0) & ~np.isfinite(up))
    dy = np.maximum(np.roll(up, 3), np.float32(-3))  # or dy * up overflows, and times a slope of 0 is a NaN
    check(device, gate[finite][None], up[finite][None], dy[finite][None])
    check(
        device,
        floats(4, 1, 600, low=-149, high=7),
        floats(5, 1, 600, low=-149, high=20),
        floats(6, 1, 600, low=-149, high=3),
    )
