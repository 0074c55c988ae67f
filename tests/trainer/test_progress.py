"""Progress goes to stderr, as lines where there is no terminal."""

from __future__ import annotations

import pytest
from rich.progress import Progress

from trainer.progress import progress


def test_without_a_terminal_the_last_line_is_always_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("working", 3) as report:
        for done in (1, 2, 3):
            report(done, f"part {done}")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "working 3/3 part 3\n")


def test_lines_come_as_time_passes(capsys: pytest.CaptureFixture[str]) -> None:
    moments = iter([0.0, 1.0, 16.0, 17.0, 32.0])
    with progress("working", 9, clock=lambda: next(moments)) as report:
        for done in (1, 2, 3, 4):
            report(done, "")
    assert capsys.readouterr().err == "working 2/9\nworking 4/9\n"


def test_on_a_terminal_there_is_a_bar(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress("working", 2, done=1) as report:
        report(2, "part 2")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "2/2" in captured.err
    assert "part 2" in captured.err


def test_a_bar_is_not_drawn_more_often_than_anyone_can_see(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    drawn: list[int] = []
    before = Progress.update
    monkeypatch.setattr(
        Progress, "update", lambda bar, task, **more: (drawn.append(more["completed"]), before(bar, task, **more))
    )
    moments = iter([0.0, 0.05, 0.11, 0.12, 0.13])
    with progress("working", 5, clock=lambda: next(moments)) as report:
        for done in range(1, 6):
            report(done, "")
    assert drawn == [1, 3, 5]
    assert "5/5" in capsys.readouterr().err
