"""cuda/f32_attention.cu against the reference, word for word, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels import product
from auditkit.numerics import product as reference
from auditkit.numerics.nonfinite import NonFinite
from tests.kernels.test_attention import inputs
from tests.kernels.variants import NOT_FINITE, Run, runs
from tests.same_bits import assert_same_bits

# (B, H, G, T, D, window)
SHAPES = [
    (1, 1, 1, 1, 2, 0),
    (2, 4, 2, 7, 8, 0),
    (1, 2, 1, 33, 16, 0),
    (1, 2, 2, 64, 4, 5),
    (1, 3, 1, 65, 6, 1),
    (2, 2, 1, 31, 10, 31),
]


def check(run: Run, q: Any, k: Any, v: Any, dout: Any, window: int) -> None:
    """Output and gradients are the reference's, and nothing is found amiss."""
    expected, cache = reference.attention_forward(q, k, v, window=window, bits=24)
    up = [run.up(array) for array in (q, k, v)]
    out, held = product.attention_forward(run.device, run.status, *up, window=window, bits=24)
    assert_same_bits(run.down(out), expected)
    found = product.attention_backward(run.device, run.status, run.up(dout), held)
    for got, want in zip(found, reference.attention_backward(dout, cache), strict=True):
        assert_same_bits(run.down(got), want)
    assert run.bits() == 0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device: Any, shape: tuple[int, ...]) -> None:
    with device.use():
        check(Run(device), *inputs(shape, "normal", 1), shape[5])


@pytest.mark.parametrize("kind", ["peaked", "exponents", "zeros"])
def test_kinds(device: Any, kind: str) -> None:
    with device.use():
        for shape in ((1, 4, 2, 21, 8, 0), (1, 2, 1, 21, 8, 6)):
            check(Run(device), *inputs(shape, kind, 1), shape[5])


def test_no_order_of_threads_and_no_old_memory_changes_a_bit(device: Any) -> None:
    shape = (1, 2, 1, 19, 6, 7)
    for run in runs(device):
        check(run, *inputs(shape, "normal", 2), shape[5])


def bits_of(run: Run, given: tuple[Any, Any, Any, Any]) -> int:
    """The status word of the device, after the reference has refused or accepted the same."""
    q, k, v, dout = given
    up = [run.up(array) for array in (q, k, v)]
    _, held = product.attention_forward(run.device, run.status, *up, window=0, bits=24)
    product.attention_backward(run.device, run.status, run.up(dout), held)
    try:
        reference.attention_backward(dout, reference.attention_forward(q, k, v, window=0, bits=24)[1])
        refused = 0
    except NonFinite:
        refused = NOT_FINITE
    assert run.bits() == refused
    return refused


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38, -3e38])
def test_no_result_where_the_reference_has_none(device: Any, which: int, value: float) -> None:
    given = inputs((1, 2, 1, 5, 4, 0), "normal", 3)
    given[which][0, 0, 2] = value
    with device.use():
        assert bits_of(Run(device), given) == NOT_FINITE or value in (3e38, -3e38)


def test_a_score_of_minus_infinity_is_a_weight_of_zero(device: Any) -> None:
    q, k, v, dout = (np.ones((1, 1, 3, 2), np.float32) for _ in range(4))
    q[0, 0, 2], k[0, 0, 1], k[0, 0, 0], k[0, 0, 2] = 3e38, -3e38, 0.25, 0.25
    with device.use():
        assert bits_of(Run(device), (q, k, v, dout)) == 0
        check(Run(device), q, k, v, dout, 0)


def test_huge_values_that_nobody_sees_change_nothing(device: Any) -> None:
    q, k, v, dout = inputs((1, 2, 1, 6, 4, 0), "normal", 4)
    q *= np.float32(2.0**20)
    q[:, :, 5:], dout[:, :, 5:] = 0.0, 0.0
    k[:, :, 5:], v[:, :, 5:] = 2.0**124, -(2.0**124)
    with device.use():
        check(Run(device), q, k, v, dout, 0)
