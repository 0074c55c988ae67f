"""Rows and columns of what attention gives (cuda/quantise_heads.cuh) against `merge_heads` and the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels import layout, operands, product
from auditkit.kernels import quantise as fixed
from auditkit.kernels.operands import merge_heads_both, merge_heads_keep
from auditkit.numerics.layout import merge_heads, split_heads
from tests.kernels.test_exact_dot import data
from tests.kernels.test_quantise import BITS, check
from tests.kernels.variants import Run, runs
from tests.same_bits import assert_same_bits

# (B, H, T, D): one element; no quads; a quad a head; heads across a tile and a strip; sequences across a tile.
SHAPES = [
    (1, 1, 1, 1),
    (2, 3, 5, 3),
    (1, 2, 7, 4),
    (3, 1, 64, 64),
    (2, 5, 33, 12),
    (5, 3, 13, 20),
    (1, 3, 65, 128),
    (2, 2, 200, 66),
    (33, 4, 2, 8),
]


def heads_of(kind: str, shape: tuple[int, ...], seed: int) -> Any:
    """(B, H, T, D) whose merged rows are those of `data`."""
    batch, heads, tokens, dim = shape
    return split_heads(data(kind, (batch * tokens, heads * dim), seed), batch, heads)


def check_heads(run: Run, x: Any, bits: int) -> None:
    """Rows and columns of x (B, H, T, D) are those of the merged matrix."""
    merged = merge_heads(x)
    rows, columns = fixed.quantise_heads(run.device, run.status, run.up(x), bits)
    check(run, rows, merged[None], bits)
    check(run, columns, np.ascontiguousarray(merged.T)[None], bits)
    if bits == 14:
        check(run, fixed.quantise_head_rows(run.device, run.status, run.up(x)), merged[None], bits)
    assert run.bits() == 0


@BITS
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device: Any, shape: tuple[int, ...], bits: int) -> None:
    with device.use():
        check_heads(Run(device), heads_of("normal", shape, 1), bits)


@pytest.mark.parametrize("kind", ["exponents", "subnormal", "largest", "zeros", "ties"])
def test_kinds(device: Any, kind: str) -> None:
    with device.use():
        check_heads(Run(device), heads_of(kind, (2, 3, 70, 28), 2), 14)


@pytest.mark.parametrize("size", [0, 3])
def test_none_at_all(device: Any, size: int) -> None:
    """No sequences, and no tokens."""
    shape = (0, 2, size, 8) if size else (2, 2, 0, 8)
    with device.use():
        check_heads(Run(device), np.zeros(shape, np.float32), 14)


def test_an_address_that_is_no_quads(device: Any) -> None:
    """A view that begins in the middle of sixteen bytes, as no array of a step does."""
    x = heads_of("normal", (1, 2, 9, 8), 3)
    with device.use():
        run = Run(device)
        held = run.up(np.concatenate([np.zeros(1, np.float32), x.reshape(-1)]))[1:].reshape(x.shape)
        rows, columns = fixed.quantise_heads(device, run.status, held, 14)
        check(run, rows, merge_heads(x)[None], 14)
        check(run, columns, np.ascontiguousarray(merge_heads(x).T)[None], 14)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_is_not_finite_sets_the_status(device: Any, value: float) -> None:
    x = heads_of("normal", (2, 2, 40, 16), 4)
    x[1, 1, 39, 15] = value
    with device.use():
        run = Run(device)
        fixed.quantise_heads(device, run.status, run.up(x), 14)
        assert run.bits() == 1


@pytest.mark.parametrize("bits", [14, 21, 24])
@pytest.mark.parametrize("most", [operands._MOST_ROWS, 1], ids=["heads", "too many rows"])  # noqa: SLF001
def test_the_ops_are_their_parts(device: Any, bits: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products with what the ops make have the words of those with what their parts make."""
    monkeypatch.setattr(operands, "_MOST_ROWS", most)
    x, other = heads_of("normal", (2, 3, 40, 12), 5), data("normal", (5, 36), 6)
    with device.use():
        run = Run(device)
        status, held = run.status, run.up(x)
        merged = layout.merge_heads(device, held)
        y = product.quantise(device, status, run.up(other), bits)
        z = product.quantise(device, status, run.up(data("normal", (4, 80), 7)), bits)
        rows, kept = merge_heads_keep(device, status, held, bits)
        both = merge_heads_both(device, status, held, bits)
        want_rows, want_columns = product.quantise_both(device, status, merged, bits)
        columns = product.kept_columns(device, status, kept, bits)
        for made, want, by in (
            (rows, want_rows, y),
            (both[0], want_rows, y),
            (columns, want_columns, z),
            (both[1], want_columns, z),
        ):
            assert_same_bits(run.down(product.dot(device, made, by)), run.down(product.dot(device, want, by)))


def test_whatever_memory_holds_and_in_whatever_order(device: Any) -> None:
    x = heads_of("normal", (2, 3, 50, 24), 8)
    for run in runs(device):
        check_heads(run, x, 14)
