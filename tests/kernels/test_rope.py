"""cuda/rope.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels.rope import rope_backward, rope_forward, rope_heads, rope_table
from auditkit.numerics import rope as reference
from auditkit.numerics.layout import merge_heads
from tests.kernels.variants import runs
from tests.ops.cases import awkward_rows, floats
from tests.same_bits import assert_same_bits

SIZES = ((1, 1, 1, 2), (2, 3, 5, 6), (1, 2, 7, 8), (3, 1, 4, 16), (2, 2, 33, 24), (0, 2, 3, 8), (2, 1, 0, 8))


def check(device: Any, x: Any) -> None:
    tokens, dim = x.shape[-2:]
    table = reference.rope_table(tokens, dim, 10000.0)
    forward, backward = reference.rope_forward(x, table), reference.rope_backward(x, table)
    for run in runs(device):
        on_table, on_x = rope_table(run.device, tokens, dim, 10000.0), run.up(x)
        assert_same_bits(run.down(on_table.cos), table.cos)
        assert_same_bits(run.down(on_table.sin), table.sin)
        for block in (32, 64, 256):
            assert_same_bits(run.down(rope_forward(run.device, on_x, on_table, block=block)), forward)
            assert_same_bits(run.down(rope_backward(run.device, on_x, on_table, block=block)), backward)
            if x.size:
                batch, heads = x.shape[:2]
                made = rope_heads(run.device, run.up(merge_heads(x)), batch, heads, on_table, block=block)
                assert_same_bits(run.down(made), forward)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_sizes(device: Any, size: tuple[int, ...]) -> None:
    check(device, floats(sum(size), *size))


@pytest.mark.parametrize("dim", [6, 16])
def test_awkward_values(device: Any, dim: int) -> None:
    check(device, awkward_rows(dim).reshape(1, 3, 3, dim))


def test_a_table_of_another_length_is_refused(device: Any) -> None:
    with device.use():
        table = rope_table(device, 5, 8, 10000.0)
        with pytest.raises(ValueError, match="the table is for"):
            rope_forward(device, device.upload(np.zeros((1, 1, 4, 8), np.float32)), table)
        for heads in (1, 3):  # four tokens; no whole heads
            with pytest.raises(ValueError, match="the table is for|does not fall"):
                rope_heads(device, device.upload(np.zeros((4, 8), np.float32)), 1, heads, table)
