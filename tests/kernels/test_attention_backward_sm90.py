"""cuda/attention_backward_sm90.cu against the reference, word for word; on the emulator and on a card of sm_90."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.kernels import attention as kernels
from auditkit.kernels import attention_backward_sm90 as fused
from auditkit.kernels.source import source_folder
from auditkit.numerics import attention as reference
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.kernels.test_attention import inputs
from tests.same_bits import assert_same_bits

pytestmark = EMULATOR_MARKS
SUMS = {f"attention_backward_{name}" for name in ("scan", "query", "share", "slope")}


def check(device: Any, shape: tuple[int, ...], given: tuple[Any, ...], bad: int = 0, *, restored: bool = False) -> None:
    """dq, dk and dv of q, k, v and dout have the reference's words. bad: the status that is expected. restored: what
    the backward pass reads was in main memory since the forward pass.
    """
    q, k, v, dout = given
    window = shape[5]
    expected, cache = reference.attention_forward(q, k, v, window=window, bits=14)
    with device.use():
        status = device.zeros((1,), np.uint32)
        up = [device.upload(array) for array in (q, k, v)]
        out, held = kernels.attention_forward(device, status, *up, window=window, bits=14)
        assert_same_bits(device.download(out), expected)
        if restored:
            heads = [device.upload(device.download(array)) for array in kernels.attention_heads(held)]
            kept = held.out, held.row_max, held.row_sum
            out, held = kernels.attention_restored(heads, kept, q.shape, k.shape[1], window=window, bits=14)
        found = kernels.attention_backward(device, status, device.upload(dout), held)
        assert device.download(status)[0] == bad
        if not bad:
            for got, want in zip(found, reference.attention_backward(dout, cache), strict=True):
                assert_same_bits(device.download(got), want)


# (B, H, G, T, D, window)
SHAPES = [
    (1, 1, 1, 1, 128, 0),
    (1, 2, 1, 33, 128, 0),
    (1, 1, 1, 63, 128, 0),
    (1, 1, 1, 64, 128, 5),
    (1, 2, 2, 65, 128, 1),
    (1, 4, 1, 127, 128, 0),
    (1, 3, 1, 130, 128, 64),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    device: Any = EmulatedDevice()
    check(device, shape, inputs(shape, "normal", 1))
    names = {kernel for op, kernel in device.launches if op == fused.SOURCE}
    prepare = {"attention_backward_keys", "attention_backward_queries", "attention_backward_tops"}
    assert names - prepare == SUMS and names > prepare


@pytest.mark.parametrize("shape", [SHAPES[3], SHAPES[5], (2, 4, 2, 70, 128, 0)], ids=str)
def test_operands_that_were_in_main_memory(shape: tuple[int, ...]) -> None:
    check(EmulatedDevice(), shape, inputs(shape, "normal", 8), restored=True)


@pytest.mark.parametrize("kind", ["normal", "peaked", "exponents", "subnormal", "zeros"])
def test_kinds(kind: str) -> None:
    device: Any = EmulatedDevice()
    shape = (1, 2, 1, 70, 128, 0)
    check(device, shape, inputs(shape, kind, 2))


def powers(rng: np.random.Generator, shape: tuple[int, ...], low: int, high: int) -> Any:
    """2^n for each row, low <= n <= high."""
    return (np.float32(2) ** rng.integers(low, high + 1, (*shape[:3], 1)).astype(np.float32)).astype(np.float32)


def hostile(kind: str, shape: tuple[int, ...]) -> tuple[Any, Any, Any, Any]:
    """q, k, v and dout which the short forms must refuse, or take with care; tiles away from the diagonal are whole."""
    q, k, v, dout = (np.array(x) for x in inputs(shape, "normal", 5))
    rng = np.random.default_rng(6)
    some = rng.random((*q.shape[:3], 1)) < 0.1
    if kind == "equal":  # integers of the largest norm: dots beyond int32
        for x in (q, k, v, dout):
            x[...] = 0.75
    if kind == "a few aligned":
        q[...] = np.where(some, np.float32(1), q)
        k[0, 0, 3], k[0, 0, 70], v[0, 0, 5], dout[0, 0, 130] = 1, -1, 1, -1
    if kind == "far below":  # weights from one down to less than any number
        q *= np.float32(60)
    if kind == "one above":  # all weights of all other keys are tiny, and with them the bounds of these
        k[:, :, 1:] *= np.float32(2**-6)
        k[:, :, 0] = q[:, :1, 150] * np.float32(8)
        q *= np.float32(2)
    if kind == "large gradients":  # beyond binary32 when lifted
        dout, v = dout * powers(rng, dout.shape, 30, 45), v * np.float32(2**20)
    if kind == "small gradients":
        dout, v = dout * powers(rng, dout.shape, -48, -30), v * powers(rng, v.shape, -40, -20)
    if kind == "tiny gradients":  # dS is subnormal
        dout, v = dout * powers(rng, dout.shape, -47, -40), v * powers(rng, v.shape, -47, -40)
        q, k = q * np.float32(2**-30), k * np.float32(2**30)
    if kind == "cancelled":  # dP - D is far below both
        v[...] = v[:, :, :1] + v * np.float32(2**-20)
    if kind == "keys of all sizes":
        k, q = k * powers(rng, k.shape, -45, 3), q * powers(rng, q.shape, -20, 2)
    if kind == "no gradient":
        dout[...] = np.where(rng.random(some.shape) < 0.7, np.float32(0), dout)
        dout[:, :, 64:130] = 0
    if kind == "zeros anywhere":
        for x in (q, k, v, dout):
            x[rng.random(x.shape[:3]) < 0.2] = 0
    if kind == "one wild row":
        q[0, 0, 150] *= np.float32(2.0**-70)
        dout[0, 0, 140] *= np.float32(2.0**-120)
        k[0, 0, 9] *= np.float32(2.0**-100)
        v[0, 0, 20] *= np.float32(2.0**60)
    return q, k, v, dout


HOSTILE = [
    "equal", "a few aligned", "far below", "one above", "large gradients", "small gradients", "tiny gradients",
    "cancelled", "keys of all sizes", "no gradient", "zeros anywhere", "one wild row",
]  # fmt: skip


def one_takes_all(depth: float, gradient: int, first: int, others: int, keys: int) -> tuple[Any, Any, Any, Any]:
    """All queries see the first key, and e is e^-depth or so for all others. dP and D of the first are the same number,
    so that bounds are made of the others alone. All powers of two: of dO, of the first v, of others, of k over q.
    """
    rng, shape = np.random.default_rng(8), (1, 1, 200, 128)
    peak = np.float32(np.sqrt(depth / np.sqrt(128)))
    q = peak + rng.standard_normal(shape).astype(np.float32) * np.float32(0.1)
    k = rng.standard_normal(shape).astype(np.float32) * np.float32(0.05)
    k[:, :, 0] = peak
    q[..., 127], k[..., 127] = 15, 0  # so that the integers of a row are not all large, and dots fit int32
    dout, v = (rng.choice(np.array([-1, 1], np.float32), shape) for _ in range(2))
    dout[..., :64] = 0
    dout *= np.float32(2.0**gradient)
    v[:, :, 0] *= np.float32(2.0**first)
    v[:, :, 1:] *= np.float32(2.0**others)
    return q * np.float32(2.0**-keys), k * np.float32(2.0**keys), v, dout


# What the limits of the short forms are for, where only one of them stands in the way: dP large; D large; weights of
# large keys, of large queries, whose dS is subnormal. Then both large, and what is too small for any bound.
LIMITS = [
    (88, 12, -48, 12, 0),
    (88, 6, 18, -45, 0),
    (46, -31, -31, -31, 22),
    (46, -31, -31, -31, -22),
    (88, 12, 12, 12, 0),
    (100, 20, 20, 20, 0),
]


@pytest.mark.parametrize(("depth", "gradient", "first", "others", "keys"), LIMITS)
def test_bounds_of_what_is_nearly_nothing(depth: float, gradient: int, first: int, others: int, keys: int) -> None:
    check(EmulatedDevice(), (1, 1, 1, 200, 128, 0), one_takes_all(depth, gradient, first, others, keys))


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_the_short_forms_do_not_take(kind: str) -> None:
    device: Any = EmulatedDevice()
    shape = (1, 1, 1, 200, 128, 0)
    check(device, shape, hostile(kind, shape))


@pytest.mark.parametrize(("seed", "poison"), [(1, 0xFF), (2, 0x3C)])
@pytest.mark.parametrize("shape", [(2, 2, 1, 100, 128, 0), (1, 4, 2, 90, 128, 33)], ids=str)
def test_whatever_memory_holds_and_in_whatever_order(shape: tuple[int, ...], seed: int, poison: int) -> None:
    check(EmulatedDevice(seed=seed, poison=poison), shape, inputs(shape, "normal", 3))


@pytest.mark.parametrize("seed", range(3))
def test_pairs_of_blocks(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks that share the columns, whether or not the shipped kernels do: the bits stay."""
    sources = shutil.copytree(source_folder(), tmp_path / "cuda")
    header = sources / "attention_backward_records.cuh"
    text = header.read_text(encoding="utf-8")
    assert "ATTENTION_CLUSTER 1" in text
    header.write_text(text.replace("ATTENTION_CLUSTER 1", "ATTENTION_CLUSTER 2"), encoding="utf-8")
    for name in ("SCAN", "QUERY", "SHARE", "SLOPE"):
        monkeypatch.setattr(fused, name, replace(getattr(fused, name), cluster=2))
    device = EmulatedDevice(seed=seed, sources=sources)
    device.multiprocessors = 4
    for shape in ((1, 3, 1, 150, 128, 0), (2, 1, 1, 70, 128, 30)):
        check(device, shape, inputs(shape, "normal", seed))


def test_a_window_with_whole_tiles() -> None:
    shape = (1, 1, 1, 260, 128, 200)
    check(EmulatedDevice(), shape, inputs(shape, "normal", 4))


@pytest.mark.parametrize("where", [(0, 0, 0, 3), (0, 0, 100, 3), (0, 0, 129, 127)])
@pytest.mark.parametrize("value", [np.inf, np.nan, 3e38])
def test_a_gradient_that_is_not_finite_sets_the_status(where: tuple[int, ...], value: float) -> None:
    """Given as such, or made: 3e38 times values of 2 and more."""
    shape = (1, 1, 1, 130, 128, 0)
    q, k, v, dout = inputs(shape, "normal", 7)
    dout[where] = value
    v *= np.float32(4)
    with np.errstate(all="ignore"):
        check(EmulatedDevice(), shape, (q, k, v, dout), bad=1)
