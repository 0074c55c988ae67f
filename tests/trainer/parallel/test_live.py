"""A run of several ranks, published while it is trained: the run folder of one process."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import pytest

from tests.trainer import tiny
from tests.trainer.live import grown
from tests.trainer.parallel.conftest import FORKS, Zygote
from tests.trainer.parallel.test_run import FLUSH, LOSING, MANY_SHARDS, SLOW, errors, resume, start, wait_for_steps
from trainer import state_files

pytestmark = FORKS


@pytest.fixture
def alone(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What `publish` makes of the run of one process, with as many shards."""
    monkeypatch.setattr(state_files, "SHARD_BYTES", 20_000)
    folder = tmp_path / "alone"
    work = Path(shutil.copytree(prepared, folder / "work"))
    assert grown.train(work, folder) == 0
    return grown.published(work, folder)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_ranks_publish_what_one_process_publishes(
    zygote: Zygote, prepared: Path, alone: Path, tmp_path: Path, size: int
) -> None:
    ranks = start(zygote, prepared, size, *grown.options(tmp_path), before=MANY_SHARDS)
    assert ranks.wait() == [0] * size, errors(ranks)
    assert f"published {tiny.STEPS} steps" in ranks.said(0, "out")
    grown.assert_same(tmp_path / "out", grown.published(prepared, tmp_path))
    grown.assert_same(tmp_path / "out", alone)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_costs_nothing_that_was_published(
    zygote: Zygote, prepared: Path, alone: Path, tmp_path: Path, rank: int
) -> None:
    ranks = start(zygote, prepared, 3, *grown.options(tmp_path), before=LOSING + SLOW + FLUSH + MANY_SHARDS)
    wait_for_steps(ranks, prepared, 8 + rank)
    ranks.signal(rank, signal.SIGKILL)
    ranks.wait(but=rank)
    if (tmp_path / "out").exists():
        grown.assert_verifies(tmp_path / "out", tmp_path, seed=rank)
    goes_on = zygote.start(2, "resume", str(prepared), before={r: MANY_SHARDS for r in range(2)})
    assert goes_on.wait() == [0, 0], errors(goes_on)
    grown.assert_same(tmp_path / "out", alone)


def test_the_last_upload_is_awaited_by_one_rank_only(zygote: Zygote, prepared: Path, tmp_path: Path) -> None:
    """The others are not held up: their exit does not wait for what rank 0 has left to do."""
    waiting = f"until test -e {tmp_path / 'go'}; do sleep 0.05; done; touch {tmp_path / 'uploaded'}"
    ranks = start(zygote, prepared, 2, *grown.options(tmp_path, "--upload", waiting))
    ended = ranks.wait(but=0)
    assert ended == [0] and not (tmp_path / "uploaded").exists()
    (tmp_path / "go").touch()
    assert ranks.wait() == [0, 0], errors(ranks)
    assert (tmp_path / "uploaded").exists()
    assert resume(zygote, prepared, 2).wait() == [0, 0]
