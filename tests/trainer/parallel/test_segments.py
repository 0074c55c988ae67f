"""Ranks train a run in segments to the files of one process, also where they have to go through several of them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.trainer import segmented
from tests.trainer.parallel.conftest import FORKS, Zygote
from tests.trainer.parallel.test_run import QUICK, errors

pytestmark = FORKS


def on_ranks(zygote: Zygote, size: int, command: list[str]) -> None:
    """Run a command on ranks, and see all of them end well."""
    ranks = zygote.start(size, *command, before={rank: QUICK for rank in range(size)})
    assert ranks.wait() == [0] * size, errors(ranks)


@pytest.mark.parametrize("number", [2, 4, 6])
def test_ranks_go_on_with_what_was_declared(zygote: Zygote, along: list[Path], tmp_path: Path, number: int) -> None:
    work = segmented.copy(along, number, tmp_path)
    on_ranks(zygote, 2, segmented.commands(work)[number])
    segmented.assert_same_run(work, along[number + 1] / "work")


@pytest.mark.parametrize(("size", "removed"), [(2, 1), (3, 8)])
def test_ranks_go_through_several_segments(
    zygote: Zygote, along: list[Path], tmp_path: Path, size: int, removed: int
) -> None:
    """The states from which later segments begin are lost: each segment is trained by its own recipe again."""
    work = segmented.copy(along, 7, tmp_path)
    for step in segmented.KEPT:
        if step >= removed:
            shutil.rmtree(work / "states" / f"{step:08d}")
    on_ranks(zygote, size, ["resume", str(work)])
    segmented.assert_same_run(work, along[7] / "work")


def test_a_whole_run_on_changing_numbers_of_ranks(zygote: Zygote, along: list[Path], tmp_path: Path) -> None:
    work = segmented.copy(along, 0, tmp_path)
    for number, command in enumerate(segmented.commands(work)):
        if command[0] == "change":
            segmented.run(work, number, number + 1)  # nothing is computed: no ranks are needed
        else:
            on_ranks(zygote, 1 + number % 3, command)
    segmented.assert_same_run(work, along[7] / "work")
