"""A run that skips steps under torchrun: the files of one process, and one end for all when too many are skipped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.trainer import tiny
from tests.trainer.parallel.conftest import FORKS, Zygote
from tests.trainer.parallel.test_run import errors, resume, start
from tests.trainer.test_skips import WILD, kinds, longest, skipping_once, write

pytestmark = FORKS

__all__ = ["kinds", "skipping_once"]  # fixtures


@pytest.fixture
def wild(prepared_once: Path, tmp_path: Path) -> Path:
    """A prepared folder with a recipe that skips."""
    return write(Path(shutil.copytree(prepared_once, tmp_path / "work")), WILD)


@pytest.mark.parametrize("size", [2, 3])
def test_ranks_write_the_files_of_one_process(zygote: Zygote, wild: Path, skipping_once: Path, size: int) -> None:
    ranks = start(zygote, wild, size)
    assert ranks.wait() == [0] * size, errors(ranks)
    tiny.assert_same_run(wild, skipping_once)
    assert "step 0 is skipped: " in ranks.said(0)
    assert all(ranks.said(rank) == "" for rank in range(1, size))


def test_too_many_on_end_stop_all_ranks(zygote: Zygote, wild: Path, skipping_once: Path, kinds: list[str]) -> None:
    most, last = longest(kinds)
    ranks = start(zygote, wild, 2, "--max-skips", str(most))
    assert ranks.wait() == [2, 2]
    (error,) = errors(ranks)
    assert f"{most} steps on end were skipped, the last of them step {last}: " in error
    ranks = resume(zygote, wild, 3, "--max-skips", str(most + 1))
    assert ranks.wait() == [0] * 3, errors(ranks)
    tiny.assert_same_run(wild, skipping_once)
