"""cuda/swiglu.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels.swiglu import swiglu_backward, swiglu_forward
from auditkit.numerics import swiglu as reference
from tests.kernels.variants import runs
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
