"""What a command does to the outside, as Python's audit hooks see it: files written, addresses reached, programs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_CHANGING = frozenset(
    "os.chflags os.chmod os.chown os.link os.mkdir os.remove os.removexattr os.rename os.rmdir os.setxattr os.symlink "
    "os.truncate os.utime shutil.chown shutil.copyfile shutil.move shutil.rmtree".split()
)
_RUNNING = frozenset(
    "os.exec os.fork os.posix_spawn os.spawn os.startfile os.system pickle.find_class subprocess.Popen".split()
)
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


@dataclass
class Seen:
    """What happened while it was watched; `reached` are addresses and names that were looked up, as "host:port"."""

    written: set[Path] = field(default_factory=set)
    reached: set[str] = field(default_factory=set)
    run: set[str] = field(default_factory=set)

    def outside(self, *allowed: Path) -> set[Path]:
        """What was written and lies in none of the folders."""
        roots = [Path(os.path.realpath(folder)) for folder in allowed]
        return {path for path in self.written if not any(path == root or root in path.parents for root in roots)}


_watching: list[Seen] = []


@contextmanager
def watched() -> Iterator[Seen]:
    """Watch this process for the block, all of its threads."""
    _install()
    seen = Seen()
    _watching.append(seen)
    try:
        yield seen
    finally:
        _watching.remove(seen)


def _install() -> None:
    if not getattr(sys, "_auditkit_watch", False):
        sys._auditkit_watch = True  # type: ignore[attr-defined]
        sys.addaudithook(_hook)


def _hook(event: str, args: tuple[object, ...]) -> None:
    if not _watching:
        return
    if event == "open":
        path, _, flags = args
        if isinstance(flags, int) and flags & _WRITING and not isinstance(path, int):
            _note(path)
    elif event in _CHANGING:
        for path in args[:2]:
            _note(path)
    elif event in ("socket.connect", "socket.sendto"):
        address = args[1]
        if isinstance(address, tuple):
            _each("reached", f"{address[0]}:{address[1]}")
    elif event == "socket.getaddrinfo":
        _each("reached", f"{args[0]}:{args[1] or ''}")
    elif event in _RUNNING:
        _each("run", f"{event} {args[0]!r}")


def _note(path: object) -> None:
    if isinstance(path, (str, bytes, os.PathLike)):
        text = os.fsdecode(path)
        if text not in (os.devnull, "") and not text.endswith(".pyc") and "__pycache__" not in text:
            # The folder is resolved, the last part is not: what is replaced is a link itself.
            parent, name = os.path.split(os.path.abspath(text))
            _each("written", Path(os.path.realpath(parent)) / name)


def _each(kind: str, what: object) -> None:
    for seen in _watching:
        getattr(seen, kind).add(what)
