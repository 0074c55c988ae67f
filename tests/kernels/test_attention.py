"""cuda/attention.cu against the reference, word for word, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels import attention as kernels
from auditkit.numerics import attention as reference
from tests.same_bits import assert_same_bits

# (B, H, G, T, D, window)
SHAPES = [
    (1, 1, 1, 1, 2, 0),
    (2, 4, 2, 7, 8, 0),
    (1, 2, 1, 33, 16, 0),
    (1, 2, 2, 64, 4, 5),
    (1, 3, 1, 65, 6, 1),
    (1, 1, 1, 130, 10, 64),
]


def inputs(shape: tuple[int, ...], kind: str, seed: int) -> tuple[Any, Any, Any, Any]:
    """q, k, v and dout of one kind of difficulty."""
    batch, heads, groups, tokens, dim, _ = shape
    rng = np.random.default_rng(seed)
    q, dout = (rng.standard_normal((batch, heads, tokens, dim)).astype(np.float32) for _ in range(2))
    k, v = (rng.standard_normal((batch, groups, tokens, dim)).astype(np.float32) for _ in range(2))
    if kind == "peaked":
        q *= np.float32(30)
    if kind == "exponents":
        scale = np.float32(2.0) ** rng.integers(-70, 20, (batch, groups, tokens, 1)).astype(np.float32)
        v, k = v * scale, k * np.minimum(scale, 1)
        dout *= np.float32(2.0) ** rng.integers(-90, 1, (batch, heads, tokens, 1)).astype(np.float32)
    if kind == "zeros":
        for array in (q, k, v, dout):
            array[rng.random(array.shape[:3]) < 0.4] = 0
    return q, k, v, dout


def check(device: Any, shape: tuple[int, ...], kind: str, bits: int) -> None:
    q, k, v, dout = inputs(shape, kind, 1)
    window = shape[5]
    expected, cache = reference.attention_forward(q, k, v, window=window, bits=bits)
    with device.use():
        status = device.zeros((1,), np.uint32)
        up = [device.upload(array) for array in (q, k, v)]
        out, held = kernels.attention_forward(device, status, *up, window=window, bits=bits)
        assert_same_bits(device.download(out), expected)
        found = kernels.attention_backward(device, status, device.upload(dout), held)
        for got, want in zip(found, reference.attention_backward(dout, cache), strict=True):
            assert_same_bits(device.download(got), want)
        assert device.download(status)[0] == 0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device: Any, shape: tuple[int, ...]) -> None:
    check(device, shape, "normal", 14)


@pytest.mark.parametrize("kind", ["normal", "peaked", "exponents", "zeros"])
@pytest.mark.parametrize("bits", [14, 21])
def test_kinds(device: Any, kind: str, bits: int) -> None:
    check(device, (1, 4, 2, 21, 8, 0), kind, bits)
    check(device, (1, 2, 1, 21, 8, 6), kind, bits)


def test_a_score_of_minus_infinity_has_no_weight(device: Any) -> None:
    """A score that overflows downwards counts nothing; one that overflows upwards ends the step."""
    q, k, v, _ = inputs((1, 1, 1, 4, 2, 0), "normal", 2)
    q[...], k[...], k[0, 0, 1] = 1e20, 1e-20, -1e20
    expected, _ = reference.attention_forward(q, k, v, window=0, bits=14)
    assert np.isfinite(expected).all()
    with device.use():
        status = device.zeros((1,), np.uint32)
        out, _ = kernels.attention_forward(device, status, *map(device.upload, (q, k, v)), window=0, bits=14)
        assert_same_bits(device.download(out), expected)
        assert device.download(status)[0] == 0
        kernels.attention_forward(device, status, *map(device.upload, (q, -k, v)), window=0, bits=14)
        assert device.download(status)[0] == 1
