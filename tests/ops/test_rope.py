"""Rotary position embedding: the table, the rotation and its transpose."""

from __future__ import annotations

import numpy as np
import pytest

from auditkit.numerics.rope import RopeTable, rope_backward, rope_forward, rope_table
from tests.ops.cases import awkward_rows, floats, frozen, normals, relative_error, strided
from tests.ops.oracle import layers
from tests.same_bits import assert_same_bits


@pytest.mark.parametrize("theta", [1.0, 10_000.0, 500_000.0, 1e12])
@pytest.mark.parametrize(("tokens", "width"), [(1, 2), (2, 4), (7, 6), (9, 16)])
def test_table_equals_the_oracle(tokens: int, width: int, theta: float) -> None:
    table = rope_table(tokens, width, theta)
    c, s = layers.rope_angles(tokens, width, theta)
    assert_same_bits(table.cos, c)
    assert_same_bits(table.sin, s)


def test_a_longer_table_begins_with_the_shorter_one() -> None:
    short, long = rope_table(5, 8, 10_000.0), rope_table(50, 8, 10_000.0)
    assert_same_bits(long.cos[:5], short.cos)
    assert_same_bits(long.sin[:5], short.sin)


@pytest.mark.parametrize("theta", [10_000.0, 500_000.0])
def test_table_is_close_to_float64_far_out(theta: float) -> None:
    table = rope_table(8192, 64, theta)
    angle = np.arange(8192)[:, None] * theta ** -(np.arange(32) / 32.0)
    assert float(np.abs(table.cos - np.cos(angle)).max()) < 3.1e-8  # half an ulp below 1, and the angle's own error
    assert float(np.abs(table.sin - np.sin(angle)).max()) < 3.1e-8


@pytest.mark.parametrize(("tokens", "width"), [(1, 2), (3, 4), (9, 8), (16, 6)])
def test_equals_the_oracle(tokens: int, width: int) -> None:
    (x,) = frozen(floats(tokens, tokens, width, low=-30, high=30))
    table = rope_table(tokens, width, 10_000.0)
    assert_same_bits(rope_forward(x, table), layers.rope(x, 10_000.0))
    assert_same_bits(rope_backward(x, table), layers.rope(x, 10_000.0, backward=True))


def test_equals_the_oracle_on_awkward_rows() -> None:
    (x,) = frozen(awkward_rows(6))
    table = rope_table(9, 6, 10_000.0)
    assert_same_bits(rope_forward(x, table), layers.rope(x, 10_000.0))
    assert_same_bits(rope_backward(x, table), layers.rope(x, 10_000.0, backward=True))


def test_leading_axes_and_strides_do_not_matter() -> None:
    x = floats(1, 2, 3, 5, 8)
    table = rope_table(5, 8, 10_000.0)
    for op, backward in ((rope_forward, False), (rope_backward, True)):
        got = op(x, table)
        assert_same_bits(op(strided(x), table), got)
        assert_same_bits(got[1, 2], layers.rope(x[1, 2], 10_000.0, backward=backward))


def test_position_zero_is_left_as_it_is() -> None:
    x = floats(1, 1, 8)
    assert_same_bits(rope_forward(x, rope_table(1, 8, 10_000.0)), x)


def test_close_to_float64() -> None:
    x = normals(1, 40, 16)
    table = rope_table(40, 16, 10_000.0)
    wide = RopeTable(table.cos.astype(np.float64), table.sin.astype(np.float64))
    low, high = x[:, :8].astype(np.float64), x[:, 8:].astype(np.float64)
    forward = np.concatenate([low * wide.cos - high * wide.sin, high * wide.cos + low * wide.sin], axis=1)
    assert relative_error(rope_forward(x, table), forward) < 1e-7
    assert relative_error(rope_backward(rope_forward(x, table), table), x.astype(np.float64)) < 2e-7
