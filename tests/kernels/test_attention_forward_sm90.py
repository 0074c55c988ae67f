"""cuda/attention_forward_sm90.cu against the reference, word for word, and against the chunks of cuda/attention.cu."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.kernels import attention as kernels
from auditkit.kernels import attention_forward_sm90 as fused
from auditkit.kernels import attention_pipe as pipe
from auditkit.kernels.attention_chunks import Sizes
from auditkit.kernels.source import source_folder
from auditkit.numerics import attention as reference
from tests.kernels.emulator import EmulatedDevice, EmulationError
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.kernels.test_attention import inputs
from tests.same_bits import assert_same_bits

# (B, H, G, T, D, window): one, around a tile of columns, of rows with R = 2, 3, 4; several units of a block
SHAPES = [
    (1, 1, 1, 1, 128, 0),
    (1, 1, 1, 63, 128, 0),
    (1, 1, 1, 64, 128, 1),
    (1, 2, 1, 65, 128, 0),
    (1, 4, 2, 127, 128, 64),
    (2, 3, 1, 130, 128, 65),
    (1, 1, 1, 260, 128, 129),
]
KINDS = ["normal", "peaked", "exponents", "subnormal", "zeros"]


def forward(device: Any, q: Any, k: Any, v: Any, window: int, *, chunks: bool = False) -> tuple[tuple[Any, ...], int]:
    """Output, row maxima and row sums, and the status."""
    with device.use():
        status = device.zeros((1,), np.uint32)
        up = (device.upload(np.ascontiguousarray(x)) for x in (q, k, v))
        out, held = kernels.attention_forward(device, status, *up, window=window, bits=14, chunks=chunks)
        return tuple(map(device.download, (out, held.row_max, held.row_sum))), int(device.download(status)[0])


def check(device: Any, q: Any, k: Any, v: Any, window: int) -> None:
    """The reference's bits, with no complaint."""
    if device.architecture != "90":
        pytest.skip("only for sm_90")
    out, cache = reference.attention_forward(q, k, v, window=window, bits=14)
    (found, row_max, row_sum), status = forward(device, q, k, v, window)
    assert_same_bits(found, out)
    zero = np.float32(0)  # of scores of both zeros either may be the largest; e is 1 for both
    assert_same_bits(row_max.reshape(cache.row_max.shape) + zero, cache.row_max + zero)
    assert_same_bits(row_sum.reshape(cache.row_sum.shape), cache.row_sum)
    assert status == 0


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(device: Any, shape: tuple[int, ...]) -> None:
    q, k, v, _ = inputs(shape, "normal", 1)
    check(device, q, k, v, shape[5])


@pytest.mark.parametrize("kind", KINDS)
def test_kinds(device: Any, kind: str) -> None:
    """Of the last, most exponents are out of the quick way's reach."""
    for shape in ((1, 4, 2, 70, 128, 0), (1, 1, 1, 150, 128, 80)):
        q, k, v, _ = inputs(shape, kind, 2)
        check(device, q, k, v, shape[5])


@pytest.mark.parametrize("reach", [1.0, 1e4, 1e-30])
def test_scores_of_every_size(device: Any, reach: float) -> None:
    """All e are 1 or nearly so, or all but one are 0, or the exponents need the other rounding."""
    q, k, v, _ = inputs((1, 2, 1, 140, 128, 0), "normal", 3)
    check(device, q * np.float32(reach), k * np.float32(reach), v, 0)


def test_equal_rows_have_dots_beyond_32_bits(device: Any) -> None:
    """Integers of 8192 everywhere: q k = 2^33, also with one sign and with some that are smaller."""
    q, k, v, _ = inputs((1, 2, 1, 140, 128, 0), "normal", 4)
    ones = np.ones_like(k)
    check(device, np.ones_like(q), ones, np.ones_like(v), 0)
    check(device, -np.ones_like(q) * np.float32(0.25), ones * np.sign(k), v, 50)
    ones[0, 0, ::3] = k[0, 0, ::3]
    check(device, np.sign(q) + np.float32(0.5), ones, v, 0)


def test_some_rows_need_the_other_rounding(device: Any) -> None:
    """One row of queries, one key, one value out of the quick way's reach, in tiles of others."""
    for which in range(3):
        given = list(inputs((1, 1, 1, 200, 128, 0), "normal", 5)[:3])
        given[which][0, 0, 70] *= np.float32(2.0**-60)
        check(device, *given, 0)
        given[which][0, 0, 100] = 0
        check(device, *given, 0)


def test_infinite_scores(device: Any) -> None:
    """A score that overflows downwards has the weight 0; one that overflows upwards ends the step."""
    q, k, v, _ = inputs((1, 1, 1, 70, 128, 0), "normal", 6)
    q[...], k[...], k[0, 0, 1] = 1e20, 1e-20, -1e20
    check(device, q, k, v, 0)
    assert forward(device, q, -k, v, 0)[1] == 1


@pytest.mark.parametrize("which", range(3))
def test_what_is_not_finite_sets_the_status(device: Any, which: int) -> None:
    given = list(inputs((1, 2, 1, 70, 128, 0), "normal", 7)[:3])
    given[which][0, 0, 66, 3] = np.nan
    assert forward(device, *given, 0)[1] == 1


def test_the_backward_pass_takes_its_cache(device: Any) -> None:
    q, k, v, dout = inputs((1, 2, 1, 70, 128, 40), "normal", 8)
    _, cache = reference.attention_forward(q, k, v, window=40, bits=14)
    with device.use():
        status = device.zeros((1,), np.uint32)
        _, held = kernels.attention_forward(device, status, *map(device.upload, (q, k, v)), window=40, bits=14)
        found = kernels.attention_backward(device, status, device.upload(dout), held)
        for got, want in zip(found, reference.attention_backward(dout, cache), strict=True):
            assert_same_bits(device.download(got), want)


BEFORE_SUMS = "mbarrier_wait(ring + P::TOTAL_EMPTY, ~round & 1);"


def change(source: Path, old: str, new: str) -> None:
    """Change a copied source everywhere."""
    text = source.read_text(encoding="utf-8")
    assert old in text
    source.write_text(text.replace(old, new), encoding="utf-8")


class TestEmulated:
    """In whatever order threads, copies and blocks run, and whatever fresh memory holds."""

    pytestmark = EMULATOR_MARKS

    @pytest.mark.parametrize("seed", range(5))
    @pytest.mark.parametrize("multiprocessors", [1, 3])
    def test_orders(self, seed: int, multiprocessors: int) -> None:
        device = EmulatedDevice(seed=seed, poison=0x3C if seed % 2 else 0xFF)
        device.multiprocessors = multiprocessors
        q, k, v, _ = inputs((1, 4, 2, 150, 128, 0), "zeros" if seed == 4 else "normal", seed)
        check(device, q, k, v, 100 if seed % 2 else 0)

    @pytest.mark.parametrize("seed", range(3))
    def test_pairs_of_blocks(self, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two blocks that share the columns, which the shipped kernels do not: the bits stay."""
        sources = shutil.copytree(source_folder(), tmp_path / "cuda")
        change(sources / "attention_forward_sm90.cu", "ATTENTION_CLUSTER 1", "ATTENTION_CLUSTER 2")
        for name in ("SCAN", "SUM"):
            monkeypatch.setattr(fused, name, replace(getattr(fused, name), cluster=2))
        device = EmulatedDevice(seed=seed, sources=sources)
        device.multiprocessors = 4
        for shape in ((1, 3, 1, 150, 128, 0), (2, 1, 1, 70, 128, 30)):
            q, k, v, _ = inputs(shape, "normal", seed)
            check(device, q, k, v, shape[5])

    @pytest.mark.parametrize(
        ("headers", "line"),
        [
            (["loaders"], "            cp_async_wait<0>();\n"),
            (["loaders", "sm90"], "            block_meet(1 + scorer, WARPGROUP + 32);\n"),
            (["sm90"], "            mbarrier_wait(ring + P::TOTAL_EMPTY, ~round & 1);\n"),
        ],
    )
    def test_an_order_that_is_missing_is_found(self, headers: list[str], line: str, tmp_path: Path) -> None:
        """Without one of the lines that order records of columns and sums of rows."""
        sources = shutil.copytree(source_folder(), tmp_path / "cuda")
        for header in headers:
            change(sources / f"attention_{header}.cuh", line, "")
        q, k, v, _ = inputs((1, 3, 1, 150, 128, 0), "normal", 1)
        with pytest.raises((EmulationError, AssertionError)):
            for seed in range(8):
                device = EmulatedDevice(seed=seed, poison=0xFF, sources=sources)
                device.multiprocessors = 1
                check(device, q, k, v, 0)

    @pytest.mark.parametrize("waits", [True, False])
    def test_sums_of_rows_may_come_late(self, waits: bool, tmp_path: Path) -> None:
        """Scorers that are slow between their last weights and their sums; without the wait the sums are missed."""
        sources = shutil.copytree(source_folder(), tmp_path / "cuda")
        slow = "for (int i = 0; i < 3000; i++) __syncwarp();\n"
        change(sources / "attention_sm90.cuh", BEFORE_SUMS, slow + BEFORE_SUMS)
        if not waits:
            change(sources / "attention_sums.cuh", "mbarrier_wait(ring + P::TOTAL_FULL, round & 1);", "")
        q, k, v, _ = inputs((1, 3, 1, 70, 128, 0), "normal", 1)
        device = EmulatedDevice(seed=1, sources=sources)
        device.multiprocessors = 1
        with nullcontext() if waits else pytest.raises(AssertionError):
            check(device, q, k, v, 0)

    @pytest.mark.parametrize(
        ("architecture", "dim", "bits", "chunks"),
        [
            ("90", 128, 14, False),
            ("90", 128, 14, True),
            ("80", 128, 14, False),
            ("90", 64, 14, False),
            ("90", 128, 21, False),
        ],
    )
    def test_the_choice(self, architecture: str, dim: int, bits: int, chunks: bool) -> None:
        """sm_90, 128 elements, 14 bits, unless chunks are asked for."""
        device: Any = EmulatedDevice(architecture=architecture)
        q, k, v, _ = inputs((1, 1, 1, 3, dim, 0), "normal", 7)
        up = map(device.upload, (q, k, v))
        status = device.zeros((1,), np.uint32)
        kernels.attention_forward(device, status, *up, window=0, bits=bits, chunks=chunks)
        chosen = (architecture, dim, bits, chunks) == ("90", 128, 14, False)
        found = {kernel for _, kernel in device.launches}
        assert ("attention_forward_sums" in found, f"attention_softmax_{bits}" in found) == (chosen, not chosen)

    def test_so_many_keys_that_no_sum_leaves_32_bits(self) -> None:
        device: Any = EmulatedDevice()
        assert pipe.fits(device, Sizes(1, 1, pipe.MOST_KEYS, 0), 128, 14)
        assert not pipe.fits(device, Sizes(1, 1, pipe.MOST_KEYS + 1, 0), 128, 14)
        weights = np.arange(8193)
        high, low = weights >> 7, weights & 127
        assert int(np.max(high + low)) * 127 * pipe.MOST_KEYS < 1 << 31

    def test_chunks_and_fused_kernels_agree(self) -> None:
        q, k, v, _ = inputs((1, 2, 1, 90, 128, 0), "peaked", 9)
        found = [forward(EmulatedDevice(), q, k, v, 0, chunks=chunks)[0] for chunks in (False, True)]
        for x, y in zip(*found, strict=True):
            assert_same_bits(x, y)
