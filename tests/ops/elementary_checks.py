"""What every elementwise binary32 op must hold, called by the test of each op."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pytest
from blake3 import blake3

from auditkit.numerics.arrays import F32
from auditkit.numerics.elementwise import BLOCK, U32
from auditkit.numerics.philox import philox
from tests.same_bits import assert_same_bits

VECTORS = Path(__file__).resolve().parent.parent / "vectors"


class Elementwise(Protocol):
    """An op that takes an array and, if wanted, the array to write to."""

    def __call__(self, x: Any, out: Any = None) -> F32: ...


def load(op: str) -> dict[str, Any]:
    """The committed vectors of an op."""
    loaded: dict[str, Any] = json.loads((VECTORS / f"{op}.json").read_text(encoding="ascii"))
    return loaded


def f32(words: list[int] | U32) -> F32:
    """Float32 values with these bit patterns."""
    return np.asarray(words, np.uint32).view(np.float32)


def random_patterns(count: int, stream: int) -> F32:
    """Float32 values of all bit patterns, the same on every machine."""
    return philox(20, stream, 0, count // 4).reshape(-1).view(np.float32)


def check_vectors(op: Elementwise, name: str) -> None:
    """Every committed case, and the digest over the sweep of all exponents."""
    vector = load(name)
    inputs, outputs = (f32([int(case[i], 16) for case in vector["cases"]]) for i in (0, 1))
    assert_same_bits(op(inputs), outputs)
    sweep = vector["sweep"]
    first, stride = int(sweep["first"], 16), int(sweep["stride"], 16)
    words = (np.arange(sweep["count"], dtype=np.uint64) * np.uint64(stride) + np.uint64(first)).astype(np.uint32)
    assert blake3(op(words.view(np.float32)).astype("<f4").tobytes()).hexdigest() == sweep["digest"]


def check_shapes(op: Elementwise) -> None:
    """Strides, sizes around a block, no elements, no dimensions: the same bits as one element at a time in a row."""
    x = random_patterns(6 * 1024, 1).reshape(6, 32, 32)
    whole = op(x)
    assert_same_bits(op(x[::2, ::-1, 3::5]), np.ascontiguousarray(whole[::2, ::-1, 3::5]))
    assert_same_bits(op(np.asfortranarray(x)), whole)
    assert_same_bits(op(x[0, 0, 0:0]), np.empty(0, np.float32))
    assert_same_bits(op(np.empty((3, 0, 2), np.float32)), np.empty((3, 0, 2), np.float32))
    flat = x.reshape(-1)
    for i in range(0, flat.size, 97):
        assert_same_bits(op(np.array(flat[i])), np.array(whole.reshape(-1)[i]))
    long = random_patterns(2 * BLOCK + 8, 2)
    for size in (BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 3):
        assert_same_bits(op(long[:size]), op(long)[:size])


def check_out(op: Elementwise) -> None:
    """`out` may be x, a strided array, or overlap x; without it x does not change."""
    x = random_patterns(BLOCK + 4096, 3)
    before, want = x.copy(), op(x)
    assert_same_bits(x, before)
    target = np.empty_like(x)
    assert op(x, out=target) is target
    assert_same_bits(target, want)
    strided = np.zeros(2 * x.size, np.float32)
    op(x, out=strided[::2])
    assert_same_bits(strided[::2].copy(), want)
    assert not strided[1::2].any()
    shifted = np.concatenate([np.zeros(1, np.float32), x])
    op(shifted[1:], out=shifted[:-1])
    assert_same_bits(shifted[:-1], want)
    reversed_view = x.copy()
    op(reversed_view, out=reversed_view[::-1])
    assert_same_bits(reversed_view[::-1].copy(), want)
    inside = x.copy()
    assert op(inside, out=inside) is inside
    assert_same_bits(inside, want)


def check_refusals(op: Elementwise) -> None:
    """Another dtype or shape is a caller's mistake, never a silent cast."""
    with pytest.raises(TypeError):
        op(np.zeros(3, np.float64))
    with pytest.raises(TypeError):
        op(np.zeros(3, np.float32), out=np.zeros(3, np.float64))
    with pytest.raises(ValueError, match="shape"):
        op(np.zeros(3, np.float32), out=np.zeros((3, 1), np.float32))


def check_threads(op: Elementwise) -> None:
    """Two threads at once, on blocks of every kind, give the bits of one."""
    pieces = [random_patterns(3 * BLOCK, stream) for stream in range(4, 12)]
    alone = [op(x) for x in pieces]
    with ThreadPoolExecutor(2) as pool:
        for got, want in zip(pool.map(op, pieces), alone, strict=True):
            assert_same_bits(got, want)


def check_floating_point_traps(op: Elementwise) -> None:
    """A caller that made NumPy raise on overflow, underflow or NaN gets results all the same."""
    x = random_patterns(4096, 13)
    want = op(x)
    with np.errstate(all="raise"):
        assert_same_bits(op(x), want)


CHECKS: tuple[Callable[[Elementwise], None], ...] = (
    check_shapes,
    check_out,
    check_refusals,
    check_threads,
    check_floating_point_traps,
)
