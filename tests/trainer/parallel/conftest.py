"""Ranks as processes, forked from one that has imported torch."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.trainer import tiny

SECONDS = 120.0  # after which ranks that have not ended fail the test

# For tests whose ranks are processes. Elsewhere a process that has loaded torch must not be forked, and nothing of this
# differs between systems.
FORKS = [pytest.mark.skipif(sys.platform != "linux", reason="forks a process that has loaded torch")]
if sys.platform != "linux":
    FORKS.append(pytest.mark.optional("the jobs on Linux run these tests"))


@dataclass(frozen=True)
class Started:
    """Ranks that run: the process of each."""

    zygote: Zygote
    processes: list[int]
    folder: Path

    def said(self, rank: int, stream: str = "err") -> str:
        """What a rank has written so far; it makes its files itself, once it runs."""
        file = self.folder / f"{stream}.{rank}"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def signal(self, rank: int, number: int) -> None:
        """Send a signal to a rank."""
        os.kill(self.processes[rank], number)

    def codes(self) -> list[int | None]:
        """How each rank has ended, None while it runs."""
        found: list[int | None] = self.zygote.ask({"processes": self.processes})
        return found

    def wait(self, seconds: float = SECONDS, *, but: int | None = None) -> list[int]:
        """The exit codes of all ranks, or of all `but` one."""
        until = time.monotonic() + seconds
        while True:
            codes = self.codes()
            ended = [code for rank, code in enumerate(codes) if rank != but and code is not None]
            if len(ended) == len(codes) - (but is not None):
                return ended
            if time.monotonic() > until:
                told = [self.said(rank) for rank in range(len(codes))]
                for rank, code in enumerate(codes):
                    if code is None:
                        self.signal(rank, signal.SIGKILL)
                raise AssertionError(f"ranks did not end: {codes}, {told}")
            time.sleep(0.01)


class Zygote:
    """The process that forks."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._numbers = folder, itertools.count()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.trainer.parallel.zygote"],
            cwd=tiny.ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
            env=os.environ | {"OMP_NUM_THREADS": "1", "TORCH_CPP_LOG_LEVEL": "ERROR"},  # as torchrun and `trainer.run`
        )

    def ask(self, request: dict[str, Any]) -> Any:
        """Its answer to a request."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def start(self, size: int, *arguments: str, call: str = "", before: dict[int, str] | None = None) -> Started:
        """Ranks that run the trainer with these arguments, or call a function; `before`: Python to run first."""
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        request = {"size": size, "arguments": arguments, "folder": str(folder), "port": free_port()}
        request |= {"call": call} if call else {}
        return Started(self, self.ask(request | {"before": before or {}}), folder)

    def close(self) -> None:
        """End it, and what it has forked."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=SECONDS)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """The process that forks ranks, one for all tests."""
    pytest.importorskip("torch", reason="torch is not installed")
    made = Zygote(tmp_path_factory.mktemp("ranks"))
    yield made
    made.close()
