"""Arrays that do not fit into memory, in files of the cache folder, each checked by its digest when it is read.

A folder belongs to one process. `commit` says which of its files go together, so that a process that was killed leaves
something to go on from: another one that does the same work takes the folder over. Nothing here is believed: an array
that comes back with other bits is `Damaged`, and whoever put it there makes it again.
"""

from __future__ import annotations

import os
import re
import shutil
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditkit.errors import BadArtifact, MachineFault
from auditkit.formats import canonical
from auditkit.formats.digest import Digest, content_digest
from auditkit.formats.fields import Fields
from auditkit.formats.tensors import DTYPES, dtype_name, little_endian
from auditkit.store.cache import PART
from auditkit.store.disk import need_room, writing
from auditkit.store.limits import MIB, STORE_LIMITS
from auditkit.store.owner import abandoned, unique_suffix
from auditkit.store.progress import SystemClock

FOLDER = "spill"
FORMAT = "auditkit/spill/v1"

_MANIFEST = "manifest"
_MANIFEST_BYTES = 64 * MIB
_FILE = re.compile(r"[0-9]{1,12}\.bin")
_MAX_AXES = 8


class Damaged(MachineFault):
    """a file that was written here came back with other bytes"""


@dataclass(frozen=True)
class _Array:
    dtype: str
    shape: tuple[int, ...]
    digest: Digest

    @property
    def nbytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * int(DTYPES[self.dtype].itemsize)


@dataclass(frozen=True)
class _Entry:
    file: str
    arrays: tuple[_Array, ...]


@dataclass
class _Owned:
    """What outlives the `Spill` itself: whether its folder is kept when nobody needs it any more."""

    folder: Path
    keep: bool = False

    def remove(self) -> None:
        if not self.keep:
            shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(eq=False)
class Spill:
    """Lists of arrays by key, in files. Unsupported where the disk refuses; its folder goes when the object does.

    A committed folder stays until `finish`, for whoever goes on.
    """

    folder: Path
    note: str = ""  # what was committed with the files
    _entries: dict[str, _Entry] = field(default_factory=dict)
    _committed: frozenset[str] = frozenset()
    _next: int = 0

    def __post_init__(self) -> None:
        with writing(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        self._owned = _Owned(self.folder, keep=bool(self.note))
        weakref.finalize(self, self._owned.remove)

    @classmethod
    def open(cls, cache: Path, key: Digest, *, need: int = 0, resume: bool = True) -> Spill:
        """A folder for work called `key`, with what an abandoned one of the same work has committed.

        need: bytes that will be written; Unsupported if the disk has no room for them.
        """
        root = cache / FOLDER
        sweep(cache, committed=False)
        own = root / f"{key}.{unique_suffix()}{PART}"
        found = _taken_over(root, key, own) if resume else None
        need_room(cache, need, STORE_LIMITS.spare_disk_bytes)
        return found or cls(own)

    def put(self, key: str, arrays: Sequence[NDArray[Any]]) -> None:
        """Write arrays under a key; the file they replace goes, at the next commit if it was committed. What cannot be
        written whole leaves nothing, and the key as it was.
        """
        name = f"{self._next}.bin"
        self._next += 1
        try:
            made = _written(self.folder / name, arrays)
        except BaseException:
            with suppress(OSError):
                (self.folder / name).unlink(missing_ok=True)
            raise
        self.drop(key)
        self._entries[key] = _Entry(name, made)

    def get(self, key: str) -> list[NDArray[Any]] | None:
        """The arrays of a key, checked; None if there are none. Damaged: they are not what was written."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        found = []
        path = self.folder / entry.file
        try:
            with path.open("rb", buffering=0) as file:
                for wanted in entry.arrays:
                    array = np.empty(wanted.shape, DTYPES[wanted.dtype])
                    if not _read(file, array) or content_digest(array) != wanted.digest:
                        raise Damaged(f"{path}: not the bytes that were written", hint="check this machine's disk")
                    found.append(array)
        except OSError as error:
            raise Damaged(f"{path} cannot be read again: {error.strerror}", hint="check this machine's disk") from error
        return found

    def expect(self, key: str) -> None:
        """Nothing is read ahead."""

    def drop(self, key: str) -> None:
        """Forget a key; its file goes unless it was committed."""
        entry = self._entries.pop(key, None)
        if entry is not None and entry.file not in self._committed:
            (self.folder / entry.file).unlink(missing_ok=True)

    def keys(self) -> list[str]:
        """All keys."""
        return list(self._entries)

    def commit(self, note: str) -> None:
        """Say that all files as they are now go together with `note`: what is left after a kill at any moment."""
        body = _encode(self._entries, note)
        part = self.folder / f"{_MANIFEST}.new"
        with writing(part):
            part.write_bytes(body + bytes.fromhex(content_digest(body)))
            os.replace(part, self.folder / _MANIFEST)
        self._owned.keep = True
        old, self._committed = self._committed, frozenset(entry.file for entry in self._entries.values())
        for name in old - self._committed:
            (self.folder / name).unlink(missing_ok=True)
        self.note = note

    def finish(self) -> None:
        """Nothing is to be gone on from any more: the folder goes with this object."""
        self._owned.keep = False
        (self.folder / _MANIFEST).unlink(missing_ok=True)
        self._committed = frozenset()


def sweep(cache: Path, *, committed: bool) -> tuple[int, int]:
    """Remove what killed processes left, with what they have committed or without; (files, bytes)."""
    files = freed = 0
    for folder in (cache / FOLDER).glob(f"*{PART}"):
        kept = (folder / _MANIFEST).exists() and not committed
        if kept or not abandoned(folder, now=SystemClock().wall(), after_seconds=STORE_LIMITS.leftover_seconds):
            continue
        with suppress(OSError):
            sizes = [path.stat().st_size for path in folder.iterdir()]
            shutil.rmtree(folder, ignore_errors=True)
            files, freed = files + len(sizes), freed + sum(sizes)
    return files, freed


def _written(path: Path, arrays: Sequence[NDArray[Any]]) -> tuple[_Array, ...]:
    made = []
    with writing(path), path.open("wb", buffering=0) as file:
        for array in arrays:
            raw = little_endian(array)
            made.append(_Array(dtype_name(array.dtype), tuple(array.shape), content_digest(raw)))
            _write(file, raw)
    return tuple(made)


def _write(file: Any, raw: NDArray[Any]) -> None:
    view = raw.reshape(-1).view(np.uint8).data
    while view:
        view = view[file.write(view) :]


def _read(file: Any, array: NDArray[Any]) -> bool:
    view = array.reshape(-1).view(np.uint8).data
    while view:
        n = file.readinto(view)
        if not n:
            return False
        view = view[n:]
    return True


def _encode(entries: dict[str, _Entry], note: str) -> bytes:
    files: list[canonical.Value] = [
        {
            "arrays": [{"digest": a.digest, "dtype": a.dtype, "shape": list(a.shape)} for a in entry.arrays],
            "file": entry.file,
            "key": key,
        }
        for key, entry in sorted(entries.items())
    ]
    return canonical.dumps({"files": files, "format": FORMAT, "note": note}, what="spill manifest")


def _parse(data: bytes) -> tuple[dict[str, _Entry], str]:
    """What was committed. BadArtifact: not a whole manifest."""
    body, digest = data[:-32], data[-32:]
    if len(data) < 32 or bytes.fromhex(content_digest(body)) != digest:
        raise BadArtifact("spill manifest: not the bytes that were written")
    fields = Fields(canonical.loads(body, what="spill manifest", limit=_MANIFEST_BYTES), "spill manifest")
    fields.choice("format", FORMAT)
    note, entries = fields.text("note", limit=_MANIFEST_BYTES), {}
    for file in fields.rows("files", 0, 1 << 24):
        entry = _Entry(file.text("file"), tuple(_array(found) for found in file.rows("arrays", 0, 1 << 10)))
        if _FILE.fullmatch(entry.file) is None:
            raise BadArtifact("spill manifest: a file of another name")
        entries[file.text("key")] = entry
        file.done()
    fields.done()
    return entries, note


def _array(fields: Fields) -> _Array:
    shape = tuple(size for size in fields.items("shape", 0, _MAX_AXES) if isinstance(size, int))
    found = _Array(fields.choice("dtype", *DTYPES), shape, fields.digest("digest"))
    fields.done()
    return found


def _taken_over(root: Path, key: Digest, own: Path) -> Spill | None:
    """What an abandoned folder of this work has committed, under a name of our own: the rename has one winner."""
    for path in sorted(root.glob(f"{key}.*{PART}")):
        if not abandoned(path, now=SystemClock().wall(), after_seconds=STORE_LIMITS.leftover_seconds):
            continue
        try:
            os.rename(path, own)
        except OSError:
            continue
        try:
            entries, note = _parse((own / _MANIFEST).read_bytes())
            sizes = {name: (own / name).stat().st_size for name in (entry.file for entry in entries.values())}
        except (OSError, BadArtifact):
            shutil.rmtree(own, ignore_errors=True)
            continue
        if any(sizes[entry.file] != sum(array.nbytes for array in entry.arrays) for entry in entries.values()):
            shutil.rmtree(own, ignore_errors=True)
            continue
        return _opened(own, entries, note)
    return None


def _opened(folder: Path, entries: dict[str, _Entry], note: str) -> Spill:
    """The folder without what was not committed."""
    files = frozenset(entry.file for entry in entries.values())
    for path in folder.iterdir():
        if path.name not in files and path.name != _MANIFEST:
            path.unlink(missing_ok=True)
    following = max((int(name.split(".")[0]) + 1 for name in files), default=0)
    return Spill(folder, note, entries, files, following)
