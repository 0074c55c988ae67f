"""normal: vectors, any slice equals the whole, the written order of words, a normal distribution, bounded memory."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from blake3 import blake3

from auditkit.errors import UsageError
from auditkit.numerics.cos import cos
from auditkit.numerics.log import log
from auditkit.numerics.normal import normal, normal_slice, stream_of
from auditkit.numerics.philox import philox
from auditkit.numerics.sin import sin
from tests.ops.elementary_checks import f32, load
from tests.same_bits import assert_same_bits


def test_vectors() -> None:
    vector = load("normal")
    for seed, name, stream, start, std, words in vector["cases"]:
        assert stream_of(name) == int(stream, 16)
        got = normal_slice(seed, name, start, start + len(words), f32([int(std, 16)])[0])
        assert_same_bits(got, f32([int(w, 16) for w in words]))
    million = normal(0, "embedding", (1 << 20,), 1.0)
    assert blake3(million.astype("<f4").tobytes()).hexdigest() == vector["digest"]


def test_written_order_of_words() -> None:
    """Section 6.7 element by element, with the ops sin and cos themselves."""
    std = np.float32(0.02)
    got = normal(5, "tensor", (9, 7), std).reshape(-1)
    words = philox(5, stream_of("tensor"), 0, 16).reshape(-1)
    scale = np.float32(2.0**-24)
    for i in range(got.size):
        x, y = words[i & ~1] >> 8, words[i | 1] >> 8
        radius = np.sqrt(np.float32(-2) * log(np.array([np.float32(x + 1) * scale])))
        turned = np.array([np.float32(y) * scale * f32([0x40C90FDB])[0]])
        assert_same_bits(got[i : i + 1], (radius * (sin(turned) if i % 2 else cos(turned))) * std)


SLICES = [(0, 0), (0, 1), (1, 2), (3, 9), (4, 8), (5, 70_001), (32_767, 32_770), (70_000, 70_001)]


@pytest.mark.parametrize(("start", "stop"), SLICES)
def test_a_slice_equals_the_whole(start: int, stop: int) -> None:
    whole = normal(1, "a", (70_001,), 0.5)
    assert_same_bits(normal_slice(1, "a", start, stop, 0.5), whole[start:stop])


def test_the_shape_only_folds_the_elements() -> None:
    whole = normal(1, "a", (24,), 0.5)
    assert_same_bits(normal(1, "a", (2, 3, 4), 0.5), whole.reshape(2, 3, 4))
    assert_same_bits(normal(1, "a", (23,), 0.5), whole[:23])
    assert_same_bits(normal(1, "a", (), 0.5), whole[0].reshape(()))
    assert normal(1, "a", (3, 0), 0.5).shape == (3, 0)


def test_seed_name_and_std_matter() -> None:
    base = normal(1, "a", (64,), 1.0)
    assert not (base == normal(2, "a", (64,), 1.0)).any()
    assert not (base == normal(1, "b", (64,), 1.0)).any()
    assert_same_bits(normal(1, "a", (64,), 0.25), base * np.float32(0.25))
    assert_same_bits(normal(1, "a", (64,), 0.1), base * np.float32(0.1))  # std is rounded to binary32 first


def test_distribution() -> None:
    """Mean, variance, fourth moment and tails of a million numbers, within five standard errors."""
    z = normal(3, "distribution", (1 << 20,), 1.0).astype(np.float64)
    error = 1 / math.sqrt(z.size)
    assert abs(z.mean()) < 5 * error
    assert abs((z**2).mean() - 1) < 5 * math.sqrt(2) * error
    assert abs((z**4).mean() - 3) < 5 * math.sqrt(96) * error
    assert abs((z[0::2] * z[1::2]).mean()) < 5 * error  # the two numbers of a pair
    for bound in (1.0, 2.0, 3.0):
        share = math.erfc(bound / math.sqrt(2))
        assert abs((np.abs(z) > bound).mean() - share) < 5 * math.sqrt(share) * error
    assert np.abs(z).max() <= math.sqrt(2 * 24 * math.log(2)) + 1e-5


def test_memory_is_bounded() -> None:
    tracemalloc.start()
    try:
        values = normal(0, "large", (1 << 21,), 1.0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < values.nbytes + (16 << 20)


def test_a_seed_that_does_not_fit_is_refused() -> None:
    with pytest.raises(UsageError, match="seed -1"):
        normal(-1, "a", (4,), 1.0)
