"""A registry as operators run it: `auditkit registry serve` in a process of its own, on a free port of 127.0.0.1."""

from __future__ import annotations

import http.client
import json
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests import forked
from tests.conftest import ROOT
from tests.registry.makers import key

RUN = "sotu-tiny"
START_SECONDS = 120.0


def write_policy(path: Path, auditors: Sequence[int] = (1, 2, 3, 4), threshold: int = 2) -> Path:
    """A policy with some of the makers' keys."""
    lines = ['format = "auditkit/policy/v1"', f"threshold = {threshold}"]
    for number in auditors:
        pem = key(number).public.pem().decode("ascii")
        lines += ["[[auditor]]", f'name = "auditor {number}"', f'key = """{pem}"""']
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@dataclass
class Server:
    """A running server; `told` is what it said on stderr so far."""

    process: forked.Process
    url: str = ""
    told: list[str] = field(default_factory=list)
    ready: threading.Event = field(default_factory=threading.Event)

    def listen(self) -> None:
        """Read stderr to its end."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            text = line.rstrip()
            self.told.append(text)
            if text.startswith("serving "):
                self.url = text.split()[1].rstrip("/")
                self.ready.set()
        self.ready.set()

    def stop(self) -> int:
        """SIGTERM; the exit code. Windows has no such signal: there it is ended, and 0 is said."""
        self.process.terminate()
        code = self.process.wait(60)
        return 0 if sys.platform == "win32" else code

    def kill(self) -> None:
        """SIGKILL: what a crash is."""
        self.process.kill()
        self.process.wait(60)


@contextmanager
def running(folder: Path, *options: str, policy: Path | None = None) -> Iterator[Server]:
    """A server over `folder` for the block; it is ended at the end, if it still runs."""
    policy = policy or write_policy(folder.parent / "policy.toml")
    words = ["registry", "serve", str(folder), "--run", RUN, "--policy", str(policy), "--port", "0", *options]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUTF8": "1"}
    process = forked.start(forked.AUDITKIT, words, env=environment, cwd=ROOT)
    server = Server(process)
    thread = threading.Thread(target=server.listen, daemon=True)
    thread.start()
    try:
        assert server.ready.wait(START_SECONDS), "the server did not start in time"
        assert server.url, "\n".join(server.told)
        yield server
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(60)
        thread.join(60)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()


class Connection:
    """One connection to a server, kept open."""

    def __init__(self, url: str, seconds: float = 60.0) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=seconds)

    def ask(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of an answer; OSError or HTTPException when there is none."""
        given = {"Content-Type": "application/json"} if body is not None else {}
        self._connection.request(method, path, body, {**given, **(headers or {})})
        answer = self._connection.getresponse()
        return answer.status, answer.read()

    def submit(self, envelope: bytes) -> tuple[int, dict[str, Any]]:
        """Hand one envelope over."""
        status, body = self.ask("POST", "/v1/attestations", envelope)
        return status, json.loads(body)

    def get(self, path: str) -> bytes:
        """The body of an answer 200."""
        status, body = self.ask("GET", path)
        assert status == 200, (status, body)
        return body

    def close(self) -> None:
        """Close it."""
        self._connection.close()
