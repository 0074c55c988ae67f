"""Attention in C against the reference, word for word."""

from __future__ import annotations

import numpy as np
import pytest

from auditkit.native import attention as native_attention
from auditkit.native.attention import NativeAttentionCache
from auditkit.native.ops import NativeOps
from auditkit.numerics import reference
from auditkit.numerics.nonfinite import NonFinite
from tests.ops.cases import F32, floats, frozen, normals
from tests.same_bits import assert_same_bits

SHAPES = [(1, 1, 1, 1, 1), (2, 3, 1, 5, 8), (1, 2, 2, 63, 7), (2, 2, 2, 64, 16), (1, 1, 3, 65, 33), (1, 2, 4, 130, 32)]


def check(ops: NativeOps, q: F32, k: F32, v: F32, dout: F32, window: int) -> None:
    """Output and gradients are the reference's."""
    q, k, v, dout = frozen(q, k, v, dout)
    out, cache = ops.attention_forward(q, k, v, window=window, bits=14)
    want, kept = reference.attention_forward(q, k, v, window=window, bits=14)
    assert_same_bits(out, want)
    assert isinstance(cache, NativeAttentionCache)
    again = ops.attention_again(q, k, v, (cache.out, cache.row_max, cache.row_sum), window=window, bits=14)
    assert_same_bits(again[0], want)
    wanted = reference.attention_backward(dout, kept)
    for found in (cache, again[1]):
        for got, right in zip(ops.attention_backward(dout, found), wanted, strict=True):
            assert_same_bits(got, right)


@pytest.mark.parametrize(("batch", "groups", "share", "tokens", "dim"), SHAPES)
@pytest.mark.parametrize("window", [0, 1, 3, 16, 65, 1000])
def test_shapes_and_windows(
    native: NativeOps, batch: int, groups: int, share: int, tokens: int, dim: int, window: int
) -> None:
    q, dout = (normals(n, batch, groups * share, tokens, dim) for n in (1, 2))
    k, v = (normals(n, batch, groups, tokens, dim) for n in (3, 4))
    check(native, q, k, v, dout, window)


@pytest.mark.parametrize("window", [0, 5])
@pytest.mark.parametrize("case", ["values", "gradients", "keys", "queries", "zeros", "subnormal gradients", "peaks"])
def test_rows_of_every_size(native: NativeOps, case: str, window: int) -> None:
    q, k = floats(1, 2, 4, 41, 9), floats(2, 2, 2, 41, 9)
    v, dout = floats(3, 2, 2, 41, 9), floats(4, 2, 4, 41, 9)
    if case == "values":
        v[0, 0] = floats(5, 41, 9, low=-149, high=-100)
        v[0, 1, ::3] = floats(6, 14, 9, low=60, high=80)
    if case == "gradients":
        dout[0, 1] = floats(7, 41, 9, low=-149, high=-80)
        dout[1, 2, ::2] = floats(8, 21, 9, low=20, high=60)
    if case == "keys":
        k[0, 0, ::2] = floats(9, 21, 9, low=-149, high=-110)
    if case == "queries":
        q[0, 0, ::2] = floats(10, 21, 9, low=-149, high=-110)
        q[1, 1] = floats(11, 41, 9, low=4, high=8)
    if case == "zeros":
        q[0, :2], k[0, 0, ::2], v[1, 1, ::2], dout[1, :, ::3], v[1, 0], dout[0, 3] = 0, 0, 0, -0.0, 0, 0
    if case == "subnormal gradients":
        dout[:] = floats(12, 2, 4, 41, 9, low=-149, high=-130)
    if case == "peaks":
        q *= 40
    check(native, q, k, v, dout, window)


def test_scores_that_overflow_have_no_result(native: NativeOps) -> None:
    q, k, v = (np.full((1, 1, 4, 8), value, np.float32) for value in (2e38, 2e38, 1.0))
    with pytest.raises(NonFinite):
        native.attention_forward(q, k, v, window=0, bits=14)


def test_gradients_that_overflow_have_no_result(native: NativeOps) -> None:
    q, k, dout = normals(1, 1, 1, 4, 8), normals(2, 1, 1, 4, 8), normals(3, 1, 1, 4, 8) * np.float32(1e30)
    v = normals(4, 1, 1, 4, 8) * np.float32(1e30)
    for ops in (reference, native):
        _, cache = ops.attention_forward(q, k, v, window=0, bits=14)
        with pytest.raises(NonFinite):
            ops.attention_backward(dout, cache)


def test_many_pairs_and_other_products_are_left_to_the_reference(
    native: NativeOps, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, k, v = (normals(n, 1, 2, 8, 4) for n in (1, 2, 3))
    for bits in (21, 24):
        _, cache = native.attention_forward(q, k, v, window=0, bits=bits)
        assert not isinstance(cache, NativeAttentionCache)
    monkeypatch.setattr(native_attention, "_MOST_PAIRS", 63)
    out, cache = native.attention_forward(q, k, v, window=0, bits=14)
    assert not isinstance(cache, NativeAttentionCache)
    assert_same_bits(out, reference.attention_forward(q, k, v, window=0, bits=14)[0])
    assert len(native.attention_backward(v, cache)) == 3
