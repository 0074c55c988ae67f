"""cuda/attention.cu against the reference, word for word, forward and backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels import attention as kernels
from auditkit.kernels import attention_chunks as chunks
from auditkit.numerics import attention as reference
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.same_bits import assert_same_bits

# (B, H, G, T, D, window)
SHAPES = [
    (1, 1, 1, 1, 2, 0),
    (2, 4, 2, 7, 8, 0),
    (1, 2, 1, 33, 16, 0),
    (1, 2, 2, 64, 4, 5),
    (1, 3, 1, 65, 6, 1),
    (1, 1, 1, 130, 10, 64),
    (1, 1, 1, 521, 4, 0),  # a row of several warps
    (1, 2, 1, 1100, 2, 0),
    (1, 2, 1, 5, 64, 0),  # rows beside, and of 65 to 128 elements, which a warp holds
    (1, 2, 1, 5, 65, 0),
    (2, 2, 1, 9, 100, 3),
    (1, 1, 1, 6, 127, 0),
    (1, 2, 2, 3, 128, 0),
    (1, 1, 1, 4, 129, 0),
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
    if kind == "subnormal":
        for array in (q, k, v, dout):
            array *= np.float32(2.0) ** rng.choice(np.array([-141, -100, -40, 0, 3], np.float32), (*array.shape[:3], 1))
    if kind == "zeros":
        for array in (q, k, v, dout):
            array[rng.random(array.shape[:3]) < 0.4] = 0
    return q, k, v, dout


def check(device: Any, shape: tuple[int, ...], kind: str, bits: int, *, again: str = "") -> None:
    """again: the backward pass has a cache that was made again from what is kept of it; "restored": of its inputs too,
    which were in main memory meanwhile.
    """
    q, k, v, dout = inputs(shape, kind, 1)
    window = shape[5]
    expected, cache = reference.attention_forward(q, k, v, window=window, bits=bits)
    with device.use():
        status = device.zeros((1,), np.uint32)
        up = [device.upload(array) for array in (q, k, v)]
        out, held = kernels.attention_forward(device, status, *up, window=window, bits=bits)
        kept = held.out, held.row_max, held.row_sum
        if again == "again":
            out, held = kernels.attention_again(device, status, *up, kept, window=window, bits=bits)
        elif again == "restored":
            heads = [device.upload(device.download(array)) for array in kernels.attention_heads(held)]
            del held
            out, held = kernels.attention_restored(heads, kept, q.shape, k.shape[1], window=window, bits=bits)
        assert_same_bits(device.download(out), expected)
        found = kernels.attention_backward(device, status, device.upload(dout), held)
        for got, want in zip(found, reference.attention_backward(dout, cache), strict=True):
            assert_same_bits(device.download(got), want)
        assert device.download(status)[0] == 0


@pytest.mark.parametrize("bits", [14, 21])
@pytest.mark.parametrize("shape", SHAPES[1:5], ids=str)
@pytest.mark.parametrize("again", ["again", "restored"])
def test_a_cache_that_is_made_again(device: Any, shape: tuple[int, ...], bits: int, again: str) -> None:
    check(device, shape, "normal", bits, again=again)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device: Any, shape: tuple[int, ...]) -> None:
    check(device, shape, "normal", 14)


@pytest.mark.parametrize(("dim", "floats"), [(64, 4 * 64), (65, 0), (128, 0), (129, 4 * 256)])
def test_rows_that_a_warp_holds_take_no_shared_memory(
    device: Any, dim: int, floats: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, launch = [], device.launch

    def noting(op: str, kernel: str, *where: Any, shared: int = 0) -> None:
        if kernel.startswith("attention_gradient_rows"):
            asked.append(shared)
        launch(op, kernel, *where, shared=shared)

    monkeypatch.setattr(device, "launch", noting)
    check(device, (1, 2, 1, 5, dim, 0), "normal", 14)
    assert asked == [4 * floats]


@pytest.mark.parametrize("kind", ["normal", "peaked", "exponents", "subnormal", "zeros"])
@pytest.mark.parametrize("bits", [14, 21])
def test_kinds(device: Any, kind: str, bits: int) -> None:
    check(device, (1, 4, 2, 21, 8, 0), kind, bits)
    check(device, (1, 2, 1, 21, 8, 6), kind, bits)
    check(device, (1, 2, 1, 9, 100, 0), kind, bits)


def check_infinite_scores(device: Any) -> None:
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


def test_a_score_of_minus_infinity_has_no_weight(device: Any) -> None:
    check_infinite_scores(device)


class TestSm100:
    pytestmark = EMULATOR_MARKS

    def test_a_score_of_minus_infinity_has_no_weight(self) -> None:
        """What is not finite is told where it is met, not at the end of a row."""
        check_infinite_scores(EmulatedDevice(architecture="100"))


def cut_small(monkeypatch: pytest.MonkeyPatch, scores: int) -> None:
    """Chunks of as few tokens as may be, and of at most so many scores where one group has not more."""
    for name in ("QUERY_ROWS", "KEY_ROWS"):
        monkeypatch.setattr(chunks, name, 1)
    monkeypatch.setattr(chunks, "MOST", scores)


# The last: groups two by two, some of them alone.
@pytest.mark.parametrize(
    ("shape", "kind", "bits", "scores"),
    [
        ((1, 4, 2, 300, 8, 0), "normal", 14, 1),
        ((1, 2, 1, 300, 6, 130), "exponents", 14, 1 << 30),
        ((1, 1, 1, 260, 4, 1), "zeros", 21, 1 << 30),
        ((1, 2, 2, 260, 4, 0), "subnormal", 21, 1),
        ((3, 3, 1, 256, 4, 100), "peaked", 14, 2 * 3 * 128 * 256),
    ],
    ids=str,
)
def test_chunks(
    device: Any, shape: tuple[int, ...], kind: str, bits: int, scores: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However the scores are cut, the bits are the reference's."""
    cut_small(monkeypatch, scores)
    check(device, shape, kind, bits)


@pytest.mark.parametrize("shape", [(1, 3, 1, 280, 4, 0), (1, 3, 1, 280, 4, 230)], ids=str)
def test_rows_longer_than_a_block_holds(device: Any, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 840 columns for a warp that holds 512."""
    monkeypatch.setattr(kernels, "_THREADS", dict.fromkeys(kernels._THREADS, 32))
    check(device, shape, "exponents", 14)


class TestEmulated:
    """Whatever fresh memory holds, in whatever order blocks and threads run."""

    pytestmark = EMULATOR_MARKS

    @pytest.mark.parametrize(("poison", "seed"), [(0xFF, 3), (0x3C, 4)])
    @pytest.mark.parametrize("architecture", ["80", "120"])
    def test_poison(self, architecture: str, poison: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
        cut_small(monkeypatch, 1)
        device = EmulatedDevice(architecture=architecture, poison=poison, seed=seed)
        check(device, (1, 2, 1, 131, 6, 0), "normal", 14)
        check(device, (1, 2, 2, 140, 4, 9), "zeros", 21)

    def test_launches_of_one_chunk(self) -> None:
        """Small models live on few launches."""
        device: Any = EmulatedDevice()
        q, k, v, dout = inputs((1, 2, 1, 20, 8, 0), "normal", 7)
        status = device.zeros((1,), np.uint32)
        _, held = kernels.attention_forward(device, status, *map(device.upload, (q, k, v)), window=0, bits=14)
        forward = len(device.launches)
        kernels.attention_backward(device, status, device.upload(dout), held)
        assert (forward, len(device.launches) - forward) == (8, 13)


@pytest.mark.parametrize("which", range(4))
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_what_is_not_finite_sets_the_status(device: Any, which: int, value: float) -> None:
    given = inputs((1, 4, 2, 70, 8, 0), "normal", 5)
    given[which][0, 1, 66, 3] = value
    with device.use():
        status = device.zeros((1,), np.uint32)
        q, k, v, dout = map(device.upload, given)
        _, held = kernels.attention_forward(device, status, q, k, v, window=0, bits=14)
        if which == 3:
            assert device.download(status)[0] == 0
            kernels.attention_backward(device, status, dout, held)
        assert device.download(status)[0] == 1


def test_a_gradient_that_overflows_sets_the_status(device: Any) -> None:
    q, k, v, dout = inputs((1, 1, 1, 5, 4, 0), "normal", 6)
    with device.use():
        status = device.zeros((1,), np.uint32)
        up = map(device.upload, (q, k, v * np.float32(1e30)))
        _, held = kernels.attention_forward(device, status, *up, window=0, bits=14)
        assert device.download(status)[0] == 0
        kernels.attention_backward(device, status, device.upload(dout * np.float32(1e30)), held)
        assert device.download(status)[0] == 1
