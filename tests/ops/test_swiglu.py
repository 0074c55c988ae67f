"""SwiGLU forward and backward: word for word the oracle, and close to float64."""

from __future__ import annotations

import numpy as np
import pytest

from auditkit.numerics.swiglu import swiglu_backward, swiglu_forward
from tests.ops.cases import F32, LARGEST, SMALLEST, awkward_rows, floats, frozen, normals, relative_error, strided
from tests.ops.oracle import layers
from tests.same_bits import assert_same_bits

# Around 0, saturation, and where exp(-|a|) leaves the normal numbers and then vanishes.
SIZES = np.array([0.0, SMALLEST, 1.0, 16.7, 87.3, 87.4, 103.9, 104.0, 1e4, LARGEST], np.float32)
GATES = np.concatenate([SIZES, -SIZES])


def check(gate: F32, up: F32, dy: F32) -> None:
    """Forward and backward give the oracle's words and leave their inputs alone."""
    gate, up, dy = frozen(gate, up, dy)
    y, cache = swiglu_forward(gate, up)
    assert_same_bits(y.reshape(-1), layers.swiglu(gate.reshape(-1), up.reshape(-1)))
    dgate, dup = swiglu_backward(dy, cache)
    want_gate, want_up = layers.swiglu_backward(gate.reshape(-1), up.reshape(-1), dy.reshape(-1))
    assert_same_bits(dgate.reshape(-1), want_gate)
    assert_same_bits(dup.reshape(-1), want_up)


@pytest.mark.parametrize("width", [1, 2, 3, 8, 33])
def test_equals_the_oracle(width: int) -> None:
    check(floats(1, 4, width), floats(2, 4, width), floats(3, 4, width))


def test_equals_the_oracle_at_extreme_gates() -> None:
    gate = np.tile(GATES, (5, 1))
    up = np.repeat(np.array([1.5, -0.0, SMALLEST, LARGEST, -3e-20], np.float32), len(GATES)).reshape(gate.shape)
    check(gate, up, np.full_like(gate, 0.7))
    check(gate, np.full_like(gate, 0.7), up)


def test_equals_the_oracle_on_awkward_rows() -> None:
    check(awkward_rows(8), floats(1, 9, 8), floats(2, 9, 8))
    check(floats(3, 9, 8), awkward_rows(8), awkward_rows(8)[::-1])


def test_an_element_does_not_depend_on_its_place() -> None:
    """The op works in blocks; a block's edge, and what stands beside an element, change no bit."""
    gate, up, dy = normals(1, 9, 5000), normals(2, 9, 5000), normals(3, 9, 5000)
    y, cache = swiglu_forward(gate, up)
    dgate, dup = swiglu_backward(dy, cache)
    part = (slice(2, 8), slice(1, 4001, 3))
    part_y, part_cache = swiglu_forward(gate[part], up[part])
    assert_same_bits(part_y, y[part])
    for got, want in zip(swiglu_backward(dy[part], part_cache), (dgate[part], dup[part]), strict=True):
        assert_same_bits(got, want)


def test_strides_do_not_matter() -> None:
    gate, up, dy = floats(1, 4, 6), floats(2, 4, 6), floats(3, 4, 6)
    y, cache = swiglu_forward(gate, up)
    strided_y, strided_cache = swiglu_forward(strided(gate), strided(up))
    assert_same_bits(strided_y, y)
    for got, want in zip(swiglu_backward(strided(dy), strided_cache), swiglu_backward(dy, cache), strict=True):
        assert_same_bits(got, want)


def test_no_elements() -> None:
    empty = np.zeros((0, 3), np.float32)
    y, cache = swiglu_forward(empty, empty)
    assert y.shape == swiglu_backward(empty, cache)[0].shape == (0, 3)


def test_close_to_float64() -> None:
    gate, up, dy = normals(1, 4, 500, scale=4), normals(2, 4, 500), normals(3, 4, 500)
    a, b, d = (x.astype(np.float64) for x in (gate, up, dy))
    sigmoid = 1 / (1 + np.exp(-a))
    y, cache = swiglu_forward(gate, up)
    dgate, dup = swiglu_backward(dy, cache)
    assert relative_error(y, a * sigmoid * b) < 3e-7
    assert relative_error(dup, a * sigmoid * d) < 3e-7
    assert relative_error(dgate, d * b * sigmoid * (1 + a * (1 - sigmoid))) < 3e-7
