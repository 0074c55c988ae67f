"""RMSNorm, SwiGLU, cross-entropy and the terms of exact sums in C against the reference, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.native.ops import NativeOps
from auditkit.numerics import reference
from auditkit.numerics.nonfinite import NonFinite
from tests.ops.cases import BOUNDARY_SIZES, F32, NOT_FINITE, SMALLEST, awkward_rows, floats, frozen, normals
from tests.same_bits import assert_same_bits

EPS = np.float32(1e-5)
SIZES = pytest.mark.parametrize("size", [*BOUNDARY_SIZES, 257, 1000])


def same(got: Any, want: Any) -> None:
    """All arrays of two results have the same words, but for the payload of a NaN."""
    for one, other in zip(got, want, strict=True):
        if one.dtype == np.float32:
            one, other = (np.where(np.isnan(x), np.float32(np.nan), x) for x in (one, other))
        assert_same_bits(one, other)


@SIZES
def test_rms_norm(native: NativeOps, size: int) -> None:
    rows, weight = frozen(np.concatenate([awkward_rows(size), normals(1, 5, size)]), normals(2, size))
    y, cache = native.rms_norm_forward(rows, weight, EPS)
    want, kept = reference.rms_norm_forward(rows, weight, EPS)
    same((y, cache.xhat, cache.rstd), (want, kept.xhat, kept.rstd))
    (dy,) = frozen(floats(3, len(rows), size, low=-30, high=-2))
    sound = reference.rms_norm_forward(normals(4, len(rows), size), weight, EPS)[1]
    same(native.rms_norm_backward(dy, weight, sound), reference.rms_norm_backward(dy, weight, sound))
    for dys, residual in (([dy], rows), ([dy, dy[::-1]], None), ([dy, dy[::-1], dy], rows)):
        got = native.rms_norm_backward_add(dys, weight, sound, residual)
        same(got, reference.rms_norm_backward_add(dys, weight, sound, residual))


def test_weight_gradients_near_their_range(native: NativeOps) -> None:
    """Terms that may add up to 2^62 are the reference's to judge; one that is too large has no result."""
    x, weight = np.ones((40, 8), np.float32), np.ones(8, np.float32)
    cache = reference.rms_norm_forward(x, weight, EPS)[1]
    for size, sign in ((2.0, -1), (40.0, -1), (3.0, 1)):
        dy = np.full((40, 8), size, np.float32)
        dy[::2] *= sign
        if size * 40 * (sign == 1) < 64:
            same(native.rms_norm_backward(dy, weight, cache), reference.rms_norm_backward(dy, weight, cache))
        else:
            with pytest.raises(NonFinite):
                native.rms_norm_backward(dy, weight, cache)
    for value in (*NOT_FINITE, np.float32(65)):
        with pytest.raises(NonFinite):
            native.rms_norm_backward(np.full((40, 8), value, np.float32), weight, cache)


@SIZES
def test_swiglu(native: NativeOps, size: int) -> None:
    gate = np.concatenate([awkward_rows(size), normals(1, 3, size, scale=30), floats(2, 2, size, low=-40, high=8)])
    gate[0, 0], gate[1, -1] = np.inf, -np.inf
    gate, up, dy = frozen(gate, normals(3, *gate.shape), normals(4, *gate.shape))
    y, cache = native.swiglu_forward(gate, up)
    want, kept = reference.swiglu_forward(gate, up)
    same((y, cache.sigmoid), (want, kept.sigmoid))
    same(native.swiglu_backward(dy, cache), reference.swiglu_backward(dy, kept))


def _words(step: int) -> F32:
    """Every so many of all patterns that are a size, as numbers below zero: what softmax asks exp for."""
    words = np.arange(0, 0x7F800001, step, dtype=np.uint32) | np.uint32(1 << 31)
    return words.view(np.float32)


def test_exp_by_softmax(native: NativeOps) -> None:
    """A row whose maximum is 0 becomes e^x of its elements: 1 in 997 of all negative numbers, -inf among them."""
    row = np.append(_words(997)[1:], [np.float32(0), np.float32(-np.inf), -SMALLEST])[None].astype(np.float32)
    got, want = row.copy(), row.copy()
    targets = np.zeros(1, np.int64)
    a = native.cross_entropy_rows(got, targets, np.float32(0), 1)
    b = reference.cross_entropy_rows(want, targets, np.float32(0), 1)
    same(a[1:], b[1:])
    assert int(a[0]) == int(b[0])


@SIZES
@pytest.mark.parametrize("z_loss", [0.0, 1e-4])
def test_cross_entropy(native: NativeOps, size: int, z_loss: float) -> None:
    logits = np.concatenate([normals(1, 6, size, scale=5), floats(2, 3, size, low=-140, high=6), np.zeros((1, size))])
    logits = logits.astype(np.float32)
    logits[4, 0] = -np.inf if size > 1 else 0
    targets = np.random.default_rng(3).integers(0, size, len(logits)).astype(np.uint16)
    targets[4] = size - 1
    for name in ("cross_entropy", "cross_entropy_rows"):
        got = getattr(native, name)(logits.copy(), targets, np.float32(z_loss), 77)
        want = getattr(reference, name)(logits.copy(), targets, np.float32(z_loss), 77)
        assert int(got[0]) == int(want[0])
        same(got[1:], want[1:])


@pytest.mark.parametrize("value", [np.float32(np.inf), np.float32(np.nan)])
def test_logits_without_a_loss(native: NativeOps, value: np.float32) -> None:
    for place in (0, 9, 10):
        logits = normals(1, 3, 11)
        logits[1, place] = value
        with pytest.raises(NonFinite):
            native.cross_entropy(logits, np.zeros(3, np.int64), np.float32(0), 3)


@SIZES
@pytest.mark.parametrize("unit", [30, 32, 56])
def test_to_fixed(native: NativeOps, size: int, unit: int) -> None:
    x = np.concatenate([floats(1, size, low=-149, high=4), floats(2, size, low=-unit - 2, high=-unit + 3)])
    x = np.concatenate([x, np.array([0.0, -0.0, 63.999996, -63.999996], np.float32)])
    assert_same_bits(native.to_fixed(x, unit), reference.to_fixed(x, unit))
    assert_same_bits(native.to_fixed(x[::2], unit), reference.to_fixed(x[::2], unit))
    for value in (*NOT_FINITE, np.float32(2.0 ** (62 - unit)), np.float32(-(2.0 ** (62 - unit)))):
        with pytest.raises(NonFinite):
            native.to_fixed(np.append(x, value), unit)


def test_add_terms(native: NativeOps) -> None:
    terms = [floats(1, 40, 30, low=-149, high=4), np.arange(-9, 9, dtype=np.int64), floats(2, 1, low=-57, high=3)]
    totals = [np.full(term.shape, -(1 << 50), np.int64) for term in terms]
    for given in ([], totals):
        got, digests = native.add_terms(given, terms, 56)
        want, expected = reference.add_terms(given, terms, 56)
        assert digests == expected
        for mine, other in zip(got, want, strict=True):
            assert_same_bits(mine, other)
    with pytest.raises(NonFinite):
        native.add_terms([], [np.array([np.inf], np.float32)], 56)


@SIZES
@pytest.mark.parametrize(("low", "high"), [(-149, 15), (-40, -2), (-2, 15), (-20, 1)])
def test_squares(native: NativeOps, size: int, low: int, high: int) -> None:
    """On both sides of 1, above which a sum is kept in halves, and up to just below 2^32."""
    grads = [floats(1, size, low=low, high=high), normals(2, size), np.zeros((2, 3), np.float32)]
    assert native.squares(grads) == reference.squares(grads)


@pytest.mark.parametrize("value", [*NOT_FINITE, np.float32(65536), np.float32(-1e30)])
def test_squares_without_a_norm(native: NativeOps, value: np.float32) -> None:
    for place in (0, 7, 8, 9):
        grad = normals(1, 10)
        grad[place] = value
        for ops in (reference, native):
            with pytest.raises(NonFinite):
                ops.squares([grad])


def test_many_large_squares(native: NativeOps) -> None:
    grad = np.full(300_001, 65_535.9, np.float32)
    assert native.squares([grad]) == reference.squares([grad])
