"""Ranks with GPUs: the records of one processor. Needs a CUDA card, CuPy and a torch that has CUDA; on such a machine

python -m pytest -q tests/trainer/parallel/test_gpu.py -rs
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.golden.make_training import RECIPES
from tests.trainer.parallel.conftest import Zygote
from tests.trainer.parallel.gloo_ranks import texts
from tests.trainer.parallel.states import CUT, on_one_device, with_batch

pytestmark = [pytest.mark.gpu, pytest.mark.optional("CI has no GPU; the emulator and Gloo run the same code in parts")]

FOLDED = RECIPES["tied head, gradients folded in groups of two, twice"]
JOBS = [
    (RECIPES["tied head, grouped heads, window, QK-norm, z-loss, clip, cosine"], 20, 1 << 22),
    (RECIPES["untied head, no window, wsd, fx21 body and fx14 head"], 3, 1),
    (CUT, 20, 40_000),
    (with_batch(CUT, 5, 1, (2,)), 5, 1),
    (FOLDED, 100, 1),
    (with_batch(FOLDED, 16), 100, 1),
]


def cards() -> int:
    """How many CUDA cards torch and CuPy can use here. Skips the test for none."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "cupy")):
        pytest.skip("torch or CuPy is not installed")
    from auditkit.kernels.device import device_count

    count = device_count()
    if count == 0:
        pytest.skip("no CUDA device")
    return count


def cards_for_nccl() -> int:
    """The same where torch was built with CUDA."""
    count = cards()
    import torch

    if not (torch.cuda.is_available() and torch.distributed.is_nccl_available()):
        pytest.skip("this torch has no CUDA or no NCCL")
    return count


@pytest.fixture(scope="module")
def truth() -> list[Any]:
    """What one processor records in each job."""
    cards()
    return [texts(on_one_device(recipe, steps)) for recipe, steps, _ in JOBS]


def check(zygote: Zygote, folder: Path, truth: Sequence[Any], size: int, *options: str) -> None:
    """Ranks that train every job, each on the card of its number, record what one processor does."""
    jobs = [
        {"recipe": recipe.encode().decode("ascii"), "steps": steps, "bucket": bucket} for recipe, steps, bucket in JOBS
    ]
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="ascii")
    ranks = zygote.start(size, str(folder), *options, call="tests.trainer.parallel.gloo_ranks:train_on_cards")
    assert ranks.wait(400) == [0] * size, [ranks.said(rank) for rank in range(size)]
    for number, want in enumerate(truth):
        for rank in range(size):
            found = json.loads((folder / f"job-{number}-rank-{rank}.json").read_text(encoding="ascii"))
            assert found == want, (number, rank)


def test_nccl_with_one_rank(zygote: Zygote, truth: list[Any], tmp_path: Path) -> None:
    cards_for_nccl()
    check(zygote, tmp_path, truth, 1, "cuda", "nccl")


@pytest.mark.parametrize("size", [2, 3, 4])
def test_several_ranks_share_cards_over_gloo(zygote: Zygote, truth: list[Any], tmp_path: Path, size: int) -> None:
    check(zygote, tmp_path, truth, size, "cuda", "gloo")


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_several_cards_over_nccl(zygote: Zygote, truth: list[Any], tmp_path: Path, size: int) -> None:
    if (count := cards_for_nccl()) < size:
        pytest.skip(f"{count} CUDA devices here, NCCL needs one for each of {size} ranks")
    check(zygote, tmp_path, truth, size, "cuda", "nccl")


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
def test_collectives(zygote: Zygote, backend: str) -> None:
    size = min(cards_for_nccl(), 8) if backend == "nccl" else min(3, 3 * cards())
    ranks = zygote.start(size, "cuda", backend, call="tests.trainer.parallel.gloo_ranks:call_everything")
    assert ranks.wait(120) == [0] * size, [ranks.said(rank) for rank in range(size)]


def test_more_ranks_than_cards_are_refused_with_what_helps(zygote: Zygote) -> None:
    size = cards() + 1
    ranks = zygote.start(size, "cuda", "nccl", call="tests.trainer.parallel.gloo_ranks:call_everything")
    assert ranks.wait(120) == [2] * size
    told = "".join(ranks.said(rank) for rank in range(size))
    assert f"{size} ranks on {size - 1} GPUs: NCCL needs one for each" in told
    assert "hint: --backend gloo lets ranks share a GPU" in told


def test_a_killed_rank_ends_the_others(zygote: Zygote, tmp_path: Path) -> None:
    """With NCCL where there are two cards, else over Gloo: nobody hangs in a collective or a wait for the device."""
    import signal
    import time

    size = 2
    backend = "nccl" if cards() >= size and cards_for_nccl() >= size else "gloo"
    jobs = [{"recipe": with_batch(CUT, 4).encode().decode("ascii"), "steps": 100_000, "bucket": 1}]
    (tmp_path / "jobs.json").write_text(json.dumps(jobs), encoding="ascii")
    ranks = zygote.start(size, str(tmp_path), "cuda", backend, call="tests.trainer.parallel.gloo_ranks:train_on_cards")
    until = time.monotonic() + 120
    while "began" not in ranks.said(1, "out"):
        assert None in ranks.codes() and time.monotonic() < until, ranks.said(1)
        time.sleep(0.05)
    time.sleep(3)
    ranks.signal(1, signal.SIGKILL)
    assert ranks.wait(60, but=1) == [5]
    assert ranks.said(0).startswith("error: rank 1 gave no sign of life for ")
