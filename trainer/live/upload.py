"""Bring what is published to wherever auditors fetch it: a command of the user, run after each publication.

What was uploaded last is remembered in the work folder, so that the next list holds all that a failed upload, or a
killed process, has left out.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from auditkit.audit.signed_log import FOLDER
from auditkit.formats import canonical, tiles
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from auditkit.formats.run import STATE_INDEX, RunManifest
from auditkit.formats.state import StateIndex
from auditkit.formats.tiles import CHECKPOINT, HEIGHT, WIDTH
from trainer.disk import read_bytes, write_atomic
from trainer.live import guard
from trainer.publish import MANIFEST

FILE, LIST, SAID = "upload.json", "upload.list", "upload.log"
FORMAT = "auditkit/trainer-upload/v1"
GRACE = 5.0  # seconds that a command has to end when it is asked to
_LOOK = 0.1  # seconds between two looks at a command


@dataclass(frozen=True)
class Uploads:
    """Uploads of the run folder `out` by a command for the shell, which may take so many `seconds`."""

    work: Path
    out: Path
    command: str
    seconds: float

    @property
    def said(self) -> Path:
        """What the command has written when it last ran."""
        return self.work / SAID

    def pending(self) -> RunManifest | None:
        """The manifest in the folder, unless it is the one that was uploaded last."""
        if not (self.out / MANIFEST).is_file():
            return None
        found = read_bytes(self.out / MANIFEST)
        return None if found == self._uploaded() else RunManifest.parse(found)

    def run(self, manifest: RunManifest, stop: threading.Event) -> str:
        """Upload once; an empty text, or why it failed. Asked to `stop`, the command is ended."""
        before = self._uploaded()
        paths = changed(self.out, RunManifest.parse(before) if before else None, manifest)
        write_atomic(self.work / LIST, "".join(f"{path}\n" for path in paths).encode("ascii"))
        environment = {
            "AUDITKIT_FOLDER": str(self.out),
            "AUDITKIT_FILES": str((self.work / LIST).absolute()),
            "AUDITKIT_STEP": str(manifest.steps),
        }
        why = self._call(os.environ | environment, stop)
        if not why:
            self._remember(manifest)
        return why

    def _call(self, environment: dict[str, str], stop: threading.Event) -> str:
        with self.said.open("wb") as file:
            try:
                # The user has written the command for the shell; paths go to it in the environment.
                process = subprocess.Popen(
                    [sys.executable, "-I", guard.__file__, str(GRACE), self.command],
                    cwd=self.out,
                    env=environment,
                    stdin=subprocess.PIPE,  # closes when this process ends, and so ends the command
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                return f"the command cannot be started: {(error.strerror or str(error)).lower()}"
            late = self._wait(process, stop)
        if late:
            return late
        last = self.said.read_bytes()[-2000:].decode("utf-8", "replace").strip().splitlines()
        return f"ended with code {process.returncode}{f': {last[-1]}' if last else ''}" if process.returncode else ""

    def _wait(self, process: subprocess.Popen[bytes], stop: threading.Event) -> str:
        """Wait for the command; an empty text, or why it was ended."""
        until = time.monotonic() + self.seconds
        try:
            while process.poll() is None:
                if stop.is_set():
                    return "broken off"
                if time.monotonic() > until:
                    return f"took longer than {self.seconds:g} s"
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            if process.poll() is None:
                _end(process)
        return ""

    def _uploaded(self) -> bytes:
        """The manifest that was uploaded last with this command, b"" before there is one."""
        path = self.work / FILE
        if not path.is_file():
            return b""
        fields = Fields(canonical.loads(read_bytes(path), what=FILE, limit=4 * LIMITS.manifest_bytes), FILE)
        fields.choice("format", FORMAT)
        texts = [str(fields.raw(key)) for key in ("command", "out", "run")]
        fields.done()
        return texts[2].encode("utf-8") if texts[:2] == [self.command, str(self.out)] else b""

    def _remember(self, manifest: RunManifest) -> None:
        run = manifest.encode().decode("utf-8")
        value: dict[str, canonical.Value] = {
            "command": self.command,
            "format": FORMAT,
            "out": str(self.out),
            "run": run,
        }
        write_atomic(self.work / FILE, canonical.dumps(value, what=FILE))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait until the guard, whose stdin is closed, has ended a command and what it has started; or kill all of them."""
    try:
        process.wait(2 * GRACE)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(OSError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        process.wait()


def changed(out: Path, before: RunManifest | None, now: RunManifest) -> list[str]:
    """What was added to the run folder or changed since a manifest, in the order in which it must be uploaded.

    A file comes behind all that it leads to: the checkpoint of the log behind its tiles, run.json behind everything.
    """
    known = set(before.artifacts) if before else set()
    states = {state.step for state in before.states} if before else set()
    paths = [artifact.path for artifact in now.artifacts if artifact not in known]
    for state in now.states:
        if state.step not in states:
            index = StateIndex.parse(read_bytes(out / state.path / STATE_INDEX))
            paths += [f"{state.path}/{shard.path}" for shard in index.files]
    if now.publisher is not None:
        old = before.log.size if before and before.publisher == now.publisher else 0
        paths += [f"{FOLDER}/{path}" for path in _log_files(old, now.log.size)] + [f"{FOLDER}/{CHECKPOINT}"]
    return [*paths, MANIFEST]


def _log_files(old: int, new: int) -> Iterator[str]:
    """The files that a log of `new` entries has and one of `old` entries has not."""
    level = 0
    while new >> HEIGHT * level:
        have, end = old >> HEIGHT * level, new >> HEIGHT * level
        for index in range(have // WIDTH, -(-end // WIDTH)):
            width = min(WIDTH, end - index * WIDTH)
            if index * WIDTH + width > have:
                yield tiles.tile_path(level, index, width)
                if not level:
                    yield tiles.entries_path(index, width)
        level += 1
