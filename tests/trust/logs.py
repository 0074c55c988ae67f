"""Logs for tests: entries, folders, and fetchers that count, lie and lack."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from auditkit.errors import BadArtifact, Unavailable
from auditkit.formats.checkpoint import Checkpoint
from auditkit.formats.merkle import leaf_hash, tree_root
from auditkit.formats.note import NoteKey
from auditkit.trust.keys import PrivateKey
from auditkit.trust.log_reader import LogReader
from auditkit.trust.log_writer import LogWriter
from auditkit.trust.notes import note_key

ORIGIN = "log.example/one"
PRIVATE = PrivateKey(bytes(range(32)))
OTHER = PrivateKey(bytes(range(1, 33)))
KEY: NoteKey = note_key(ORIGIN, PRIVATE.public)


def entries(count: int, *, fork_at: int | None = None) -> list[bytes]:
    """`count` different entries; from `fork_at` on, others."""
    other = count if fork_at is None else fork_at
    return [b"%d%s" % (i, b" of another history" if i >= other else b"") for i in range(count)]


def write(folder: Path, made: Iterable[bytes], *, private: PrivateKey = PRIVATE, origin: str = ORIGIN) -> Checkpoint:
    """Append entries to the log in a folder, which may be new."""
    return LogWriter(folder, origin, private).append(made)


def root_of(made: list[bytes]) -> bytes:
    """The root over entries, by the definition."""
    return tree_root([leaf_hash(entry) for entry in made])


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


class Place:
    """A fetcher over a folder's files as they are now; they may be changed, and `asked` lists what was fetched."""

    def __init__(self, folder: Path) -> None:
        self.files = files(folder)
        self.asked: list[str] = []

    def __call__(self, path: str, limit: int) -> bytes:
        """The bytes of a file."""
        self.asked.append(path)
        if path not in self.files:
            raise Unavailable(f"{path}: not here")
        if len(self.files[path]) > limit:
            raise BadArtifact(f"{path}: more than {limit} bytes")
        return self.files[path]

    def change(self, path: str, edit: Callable[[bytes], bytes]) -> None:
        """Serve other bytes for a file."""
        self.files[path] = edit(self.files[path])


def reader(folder: Path, key: NoteKey = KEY) -> LogReader:
    """A reader of the log in a folder."""
    return LogReader(Place(folder), key)


def flip(at: int) -> Callable[[bytes], bytes]:
    """An edit of one bit."""

    def edit(data: bytes) -> bytes:
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    return edit
