"""metrics.jsonl: what is whole is kept, and nothing in it can stop a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.metrics import cut_metrics, read_metrics

LINES = [b'{"step":%d,"loss":1.5,"lr":0.1}\n' % step for step in range(4)]


def test_only_whole_lines_are_read() -> None:
    torn = [b"\xff\n", b"[]\n", b'{"step":"1","loss":1,"lr":1}\n', b"\n", LINES[1][:-1]]
    assert [row["step"] for _, row in read_metrics(LINES[0] + b"".join(torn))] == [0]


def test_later_steps_are_cut_without_writing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"".join(LINES))
    assert cut_metrics(path, 3) == len(b"".join(LINES[:3]))
    assert path.read_bytes() == b"".join(LINES)
    assert capsys.readouterr().err == ""


def test_a_damaged_line_is_dropped_with_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "m"
    path.write_bytes(LINES[0] + b"x" + LINES[1] + LINES[2])
    assert cut_metrics(path, 3) == path.stat().st_size
    assert path.read_bytes() == LINES[0] + LINES[2]
    assert "figures of 1 steps are missing" in capsys.readouterr().err
