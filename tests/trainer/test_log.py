"""The appended files: cut to a step, and refused when they are too short for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from auditkit.errors import BadArtifact
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.record import RecordRow
from trainer.log import Lengths, RunLog, read_rows

ROW = RecordRow(*("a" * 64, "b" * 64, "c" * 64, "d" * 64), 1, 2, 3)
LEAF = MicroBatchLeaf(5, "e" * 64)
PUBLISHED = ["records.bin", "leaves.bin", "stream.idx", "stream.bin"]
NAMES = [*PUBLISHED, "checks.bin", "metrics.jsonl"]


def two(step: int) -> int:
    """The leaves before a step of the tiny run."""
    return 2 * step


def _files(work: Path) -> dict[str, bytes]:
    return {name: (work / name).read_bytes() for name in NAMES}


@pytest.mark.parametrize("step", [0, 1, 13, 23, 24])
def test_reopening_cuts_every_file_to_the_step(step: int, finished: Path, finished_once: Path) -> None:
    for name in NAMES:
        with (finished / name).open("ab") as file:
            file.write(b"torn")
    with RunLog.reopen(finished, step, two):
        pass
    whole, cut = _files(finished_once), _files(finished)
    assert all(whole[name].startswith(cut[name]) for name in NAMES)
    assert (len(cut["records.bin"]), len(cut["leaves.bin"])) == (16 + 140 * step, 16 + 80 * step)
    assert (len(cut["stream.idx"]), cut["metrics.jsonl"].count(b"\n")) == (16 + 48 * step, step)
    assert len(read_rows(finished, step)) == step
    assert cut == whole or step < 24


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_file_too_short_for_the_step_is_named_and_nothing_is_cut(name: str, finished: Path) -> None:
    data = (finished / name).read_bytes()
    (finished / name).write_bytes(data[:-1])
    before = _files(finished)
    with pytest.raises(BadArtifact, match="stream index" if name == "stream.idx" else rf"{name}: .* 24 steps fill"):
        RunLog.reopen(finished, 24, two)
    assert _files(finished) == before


def test_lengths_at_an_earlier_step_need_no_later_one(finished: Path) -> None:
    lengths = Lengths.at(finished, 5, two).files
    for name in PUBLISHED:
        data = (finished / name).read_bytes()
        (finished / name).write_bytes(data[: lengths[name]])
    assert Lengths.at(finished, 5, two).files == lengths
    with pytest.raises(BadArtifact, match="5 whole records, 6 are needed"):
        read_rows(finished, 6)


def test_others_can_read_along_once_a_second(tmp_path: Path) -> None:
    """Appending costs no system call but once a second; closing hands over the rest."""
    now = [0.0]
    with RunLog.create(tmp_path, clock=lambda: now[0]) as log:
        for step, moment in enumerate((0.1, 0.9, 1.0, 1.5)):
            now[0] = moment
            log.append(ROW, (LEAF,), np.full((1, 2), step, np.uint16), {"step": step})
            found = (tmp_path / "metrics.jsonl").read_bytes().count(b"\n")
            assert found == (0 if moment < 1.0 else 3)
    assert (tmp_path / "metrics.jsonl").read_bytes().count(b"\n") == 4
    assert len(read_rows(tmp_path, 4)) == 4


def test_a_state_waits_for_all_that_was_appended(tmp_path: Path) -> None:
    with RunLog.create(tmp_path, clock=lambda: 0.0) as log:
        log.append(ROW, (LEAF,), np.zeros((1, 2), np.uint16), {"step": 0})
        log.sync()
        assert len(read_rows(tmp_path, 1)) == 1
        assert Lengths.at(tmp_path, 1, lambda step: step).files["leaves.bin"] == 16 + 40
