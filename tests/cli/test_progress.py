"""Progress: lines now and then where nothing can be redrawn, bars on a terminal, numbers for people."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from auditkit.cli.progress import LineProgress, duration, size
from tests.cli.conftest import environment


def test_lines_come_every_ten_seconds_with_the_time_left() -> None:
    times = iter([0.0, 4.0, 10.0, 11.0, 20.0])
    said: list[str] = []
    progress = LineProgress(clock=lambda: next(times), tell=said.append)
    progress.start("replay", 8, "micro-batches")
    for _ in range(4):
        progress.advance(1)
    progress.finish()
    assert said == [
        "replay: 2 of 8 micro-batches, 30 s left",
        "replay: 4 of 8 micro-batches, 20 s left",
    ]


def test_quick_tasks_say_nothing_and_notes_are_lines() -> None:
    said: list[str] = []
    progress = LineProgress(clock=lambda: 0.0, tell=said.append)
    progress.start("fetch", 100)
    progress.advance(100)
    progress.note("a mirror\x1b[31m is slow")
    assert said == ["a mirror\\x1b[31m is slow"]


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1 kB"), (1234567, "1.23 MB"), (999_900, "1 MB"), (2 * 10**15, "2 PB")],
)
def test_sizes(amount: int, text: str) -> None:
    assert size(amount) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.99, "10.0 s"), (12.2, "12 s"), (60, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.skipif(os.name != "posix", reason="needs a pseudo-terminal")
@pytest.mark.optional("Windows has no pseudo-terminals in Python's library")
@pytest.mark.parametrize(("extra", "escapes"), [({"TERM": "xterm"}, True), ({"TERM": "dumb"}, False)])
def test_the_bar_shows_on_a_terminal_only(tmp_path: Path, honest: Path, extra: dict[str, str], escapes: bool) -> None:
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "auditkit", "verify", "--run", str(honest), "--steps", "0:8", "--json"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=environment(tmp_path, extra),
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # Linux reports the closed end so
            break
        if not piece:
            break
        said += piece
    out, _ = process.communicate(timeout=120)
    os.close(ours)
    assert process.returncode == 0
    assert out.count(b"\n") == 1
    assert b"\x1b" not in out
    assert (b"\x1b[" in said) is escapes
    assert (b"replay" in said) is escapes
    assert (b"micro-batches" in said) is escapes
