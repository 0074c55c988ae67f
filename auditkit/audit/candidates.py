"""Where attestations lie: files and folders on this machine and the entries of a log, cut into batches.

Of a folder and those below the files `*.json` (one envelope) and `*.jsonl` (one a line) are read, and public keys in
`*.pem`; an auditor's private key, which often lies beside what it signed, is passed over. `*.svr.json` are Simple
Verification Results: they lie beside attestations and carry nothing that counts.
Links are not followed. Nothing but keys is opened while the batches are made.
"""

from __future__ import annotations

import functools
import itertools
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from auditkit.errors import AuditkitError, BadArtifact, Unavailable, UsageError
from auditkit.formats.limits import LIMITS
from auditkit.store.disk import reason
from auditkit.trust.log_reader import LogReader

SUMMARY = ".svr.json"
FOLDER_DEPTH = 32
CANDIDATES = 16_000_000  # files
BATCH_FILES = 1024
BATCH_BYTES = 4 * 1024 * 1024  # of a file with one envelope a line
BATCH_ENTRIES = 2048  # of a log, a multiple of the entries in a bundle
TYPICAL_BYTES = 2048  # an envelope, for estimates
_PRIVATE = b"-----BEGIN PRIVATE KEY-----"


@dataclass(frozen=True)
class Contents:
    """What was read of a batch: envelopes, where each was found (asked for only if it is refused), and what failed."""

    envelopes: list[bytes]
    where: Callable[[int], str]
    failed: list[tuple[str, AuditkitError]]


@dataclass(frozen=True)
class FileBatch:
    """Files of one folder with one envelope each; `names` are joined by NUL, which no file name holds."""

    folder: str
    names: str

    @property
    def count(self) -> int:
        """How many attestations, about."""
        return self.names.count("\0") + 1

    def read(self) -> Contents:
        """Read the files."""
        places: list[str] = []
        envelopes: list[bytes] = []
        failed: list[tuple[str, AuditkitError]] = []
        for name in self.names.split("\0"):
            path = os.path.join(self.folder, name)
            try:
                envelopes.append(_read(path).removesuffix(b"\n"))
                places.append(path)
            except AuditkitError as error:
                failed.append((path, error))
            except OSError as error:
                failed.append((path, Unavailable(f"cannot be read: {reason(error)}")))
        return Contents(envelopes, places.__getitem__, failed)


@dataclass(frozen=True)
class LineBatch:
    """The lines of a file that begin at bytes `first` to `stop` - 1."""

    path: str
    first: int
    stop: int

    @property
    def count(self) -> int:
        """How many attestations, about."""
        return max(1, (self.stop - self.first) // TYPICAL_BYTES)

    def read(self) -> Contents:
        """Read the lines, empty ones left out; a line is named by the byte that it begins at."""
        try:
            with open(self.path, "rb") as file:
                begin, data = self._lines(file)
        except OSError as error:
            return Contents([], str, [(self.path, Unavailable(f"cannot be read: {reason(error)}"))])
        lines = data.removesuffix(b"\n").split(b"\n")
        longest = LIMITS.envelope_bytes

        @functools.cache  # only a line that is refused needs its place
        def begins() -> list[int]:
            return list(itertools.accumulate((len(line) + 1 for line in lines), initial=begin))

        def where(index: int) -> str:
            return f"{self.path}, byte {begins()[kept[index]]:,}"

        kept: Sequence[int] = range(len(lines))
        if all(lines) and max(map(len, lines)) <= longest:
            return Contents(lines, where, [])
        kept = [index for index, line in enumerate(lines) if line and len(line) <= longest]
        long = BadArtifact(f"a line of more than {longest:,} bytes")
        places = [begins()[index] for index, line in enumerate(lines) if len(line) > longest]
        failed: list[tuple[str, AuditkitError]] = [(f"{self.path}, byte {at:,}", long) for at in places]
        return Contents([lines[index] for index in kept], where, failed)

    def _lines(self, file: BinaryIO) -> tuple[int, bytes]:
        """Where the first line of the batch begins, and all its lines; of a long last line only the begin."""
        # The line that the byte before belongs to is the batch's before.
        before = 1 if self.first else 0
        file.seek(self.first - before)
        data = file.read(self.stop - self.first + before)
        skipped = data.find(b"\n") + 1 if before else 0
        if before and not skipped:
            return self.stop, b""
        if data.endswith(b"\n"):
            return self.first - before + skipped, data[skipped:]
        return self.first - before + skipped, data[skipped:] + file.readline(LIMITS.envelope_bytes + 1)


@dataclass(frozen=True)
class EntryBatch:
    """Entries of a log, already under its signed root; `first` is the index of the first."""

    place: str
    first: int
    entries: tuple[bytes, ...]

    @property
    def count(self) -> int:
        """How many."""
        return len(self.entries)

    def read(self) -> Contents:
        """The entries."""
        return Contents(list(self.entries), lambda index: f"{self.place}, entry {self.first + index}", [])


Batch = FileBatch | LineBatch | EntryBatch


@dataclass
class Found:
    """What lies in some places of this machine: batches, files of public keys, and how many files were passed over."""

    batches: list[FileBatch | LineBatch] = field(default_factory=list)
    keys: list[Path] = field(default_factory=list)
    summaries: int = 0  # *.svr.json
    others: int = 0  # files of other kinds, links, devices
    logs: list[Path] = field(default_factory=list)  # below a folder: a log is read only if it is named itself
    seen: int = 0  # entries of folders

    @property
    def count(self) -> int:
        """How many attestations, about."""
        return sum(batch.count for batch in self.batches)


def is_log(path: Path) -> bool:
    """Whether a folder holds a log (C2SP tlog-tiles)."""
    return (path / "checkpoint").is_file() and (path / "tile").is_dir()


def find(paths: Iterable[Path]) -> Found:
    """The candidates below some files and folders. Unavailable: no such path; UsageError: too many or too deep."""
    found = Found()
    for path in paths:
        if path.is_dir():
            _folder(found, path, 0)
        elif path.is_file():
            _file(found, path)
        else:
            raise Unavailable(f"there is no file or folder {path}")
    return found


def log_batches(reader: LogReader, place: str, size: int) -> Iterator[EntryBatch]:
    """The first `size` entries of a log; each batch through a reader of its own, so that memory stays small."""
    for first in range(0, size, BATCH_ENTRIES):
        stop = min(first + BATCH_ENTRIES, size)
        yield EntryBatch(place, first, tuple(reader.at(reader.note).entries(first, stop)))


def _folder(found: Found, folder: Path, depth: int) -> None:
    if depth > FOLDER_DEPTH:
        raise UsageError(f"{folder}: folders lie more than {FOLDER_DEPTH} deep")
    if depth and is_log(folder):
        found.logs.append(folder)
        return
    try:
        with os.scandir(folder) as entries:
            kinds = sorted((e.name, e.is_dir(follow_symlinks=False), e.is_file(follow_symlinks=False)) for e in entries)
    except OSError as error:
        raise Unavailable(f"cannot read {folder}: {reason(error)}") from error
    found.seen += len(kinds)
    if found.seen > CANDIDATES:
        raise UsageError(f"{folder}: more than {CANDIDATES:,} files", hint="join envelopes in *.jsonl, one a line")
    single = [name for name, _, is_file in kinds if is_file and name.endswith(".json") and not name.endswith(SUMMARY)]
    for first in range(0, len(single), BATCH_FILES):
        found.batches.append(FileBatch(str(folder), "\0".join(single[first : first + BATCH_FILES])))
    for name, is_dir, is_file in kinds:
        if is_dir:
            _folder(found, folder / name, depth + 1)
        elif is_file and name.endswith(".jsonl"):
            _lines(found, folder / name)
        elif is_file and name.endswith(".pem") and not _is_private(folder / name):
            found.keys.append(folder / name)
        elif is_file and name.endswith(SUMMARY):
            found.summaries += 1
        elif not (is_file and name.endswith(".json")):
            found.others += 1


def _is_private(path: Path) -> bool:
    """Whether a file is plainly a private key; what cannot be read is left to whoever reads keys, and says why."""
    try:
        return _read(str(path)).lstrip().startswith(_PRIVATE)
    except (OSError, AuditkitError):
        return False


def _file(found: Found, path: Path) -> None:
    """A file that was named itself: lines by its name, a key by its name or its first bytes, else one envelope."""
    if path.suffix == ".jsonl":
        _lines(found, path)
        return
    try:
        with path.open("rb") as file:
            is_key = path.suffix == ".pem" or file.read(11) == b"-----BEGIN "
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {reason(error)}") from error
    if is_key:
        found.keys.append(path)
    else:
        found.batches.append(FileBatch(str(path.parent), path.name))


def _lines(found: Found, path: Path) -> None:
    try:
        size = path.stat().st_size
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {reason(error)}") from error
    for first in range(0, size, BATCH_BYTES):
        found.batches.append(LineBatch(str(path), first, min(first + BATCH_BYTES, size)))


def _read(path: str) -> bytes:
    """The bytes of a small regular file; OSError, Unavailable for another kind of file, BadArtifact for a larger one.

    Without buffers and objects, and never waiting for the writer of a pipe: a run may have a million of these.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise Unavailable("not a regular file")
        if status.st_size > LIMITS.envelope_bytes + 1:
            raise BadArtifact(f"{status.st_size:,} bytes, at most {LIMITS.envelope_bytes:,} are allowed")
        data = os.read(descriptor, LIMITS.envelope_bytes + 2)
        while len(data) < status.st_size and (more := os.read(descriptor, LIMITS.envelope_bytes + 2)):
            data += more
        return data
    finally:
        os.close(descriptor)
