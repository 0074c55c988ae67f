"""A short part of the proof for several GPUs (`nccl_matrix.py`), over Gloo, so that it keeps running."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainer.parallel import nccl_matrix, soak
from tests.trainer.parallel.conftest import FORKS, Zygote
from tests.trainer.parallel.gloo_ranks import texts
from tests.trainer.parallel.states import on_one_device

pytestmark = FORKS

ASKED = nccl_matrix.Asked("cpu", "gloo", ranks=2, size="bundled", sequences=8, elements=(1000,), seed=1)


@pytest.fixture
def bench(zygote: Zygote, tmp_path: Path) -> soak.Bench:
    """A folder of its own."""
    return soak.Bench(zygote, tmp_path, lambda line: None, ASKED.alone(), ASKED.together)


def test_a_network_adds_and_trains_as_a_cpu(bench: soak.Bench) -> None:
    assert list(nccl_matrix.network(bench, ASKED)) == ["as gloo chooses: sums as NumPy's, 4 trainings as on a CPU"]


def test_what_differs_is_told(bench: soak.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, steps, bucket = nccl_matrix.JOBS[-1]
    monkeypatch.setattr(nccl_matrix, "JOBS", [(recipe, 2, bucket)])
    started = nccl_matrix.on_network(bench, ASKED, bench.folder / "jobs", {})
    want = json.loads(json.dumps(texts(on_one_device(recipe, 2))))
    want[1][0] = want[0][0]
    with pytest.raises(AssertionError, match="rank 0 has other records in training 0"):
        nccl_matrix.outcome(started, bench.folder / "jobs", [want], may_refuse=False)


def test_no_setting_turns_multicast_on() -> None:
    assert not any("NVLS" in f"{key}={value}" for setting, _ in nccl_matrix.NETWORKS for key, value in setting.items())
