"""Run a Python command in a process of its own and measure its time and its peak memory."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Measured:
    """Exit code, both streams, wall-clock seconds, and peak resident memory in bytes (None where it is unknown)."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    peak_bytes: int | None


def python(*arguments: str, env: dict[str, str] | None = None) -> Measured:
    """Run this Python with some arguments in the project's folder."""
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        cwd=ROOT,
        env=os.environ | (env or {}),
    )
    texts = ["", ""]
    readers = [threading.Thread(target=_drain, args=(process, number, texts)) for number in (1, 2)]
    for reader in readers:
        reader.start()
    code, peak = _wait(process)
    seconds = time.perf_counter() - start
    for reader in readers:
        reader.join()
    return Measured(code, texts[0], texts[1], seconds, peak)


def _drain(process: subprocess.Popen[str], number: int, texts: list[str]) -> None:
    stream = process.stdout if number == 1 else process.stderr
    if stream is not None:
        with stream:
            texts[number - 1] = stream.read()


def _wait(process: subprocess.Popen[str]) -> tuple[int, int | None]:
    """Wait for the end; the peak comes from wait4, which Windows lacks."""
    if not hasattr(os, "wait4"):
        return process.wait(), None
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    # bytes on macOS, KiB elsewhere (getrusage(2))
    return process.returncode, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
