"""The files of a source, in the order that the corpus has: one file, or all that a folder holds at any depth."""

from __future__ import annotations

import os
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from auditkit.errors import BadArtifact, Unavailable, UsageError
from auditkit.formats import fields
from trainer.disk import explain

TEXT, LINES, PARQUET = ".txt", ".jsonl", ".parquet"
PACKED = ".zst"

_NAME_CHARACTERS = 180  # of a file's name: a document's has room for a row beside it


@dataclass(frozen=True)
class Input:
    """One file: its name for people, its kind (a suffix), whether it is zstd-compressed, and its bytes on the disk."""

    name: str
    path: Path
    kind: str
    packed: bool
    size: int


@dataclass(frozen=True)
class Inputs:
    """The files of one source in order; `ignored` counts the others, those that begin with a dot left aside."""

    files: tuple[Input, ...]
    ignored: int

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(file.size for file in self.files)


def find(path: Path, source: str) -> Inputs:
    """The files of a source: `path` itself, or those below it by the UTF-8 bytes of their NFC names.

    Raises Unavailable if there is nothing, UsageError if no file can be read as documents, BadArtifact naming one that
    has such a name and is no file, a name that is no text, or two names that are one.
    """
    if path.is_dir():
        found = [(child.relative_to(path).as_posix(), child) for child in _walk(path)]
    elif path.exists() or path.is_symlink():
        found = [(path.name, path)]
    else:
        raise Unavailable(f"source {source}: there is no {path}")
    files = [_input(name, child) for name, child in found if _kind(child) is not None]
    if not files:
        kinds = f"{TEXT}, {LINES} or {PARQUET} file, compressed or not ({PACKED})"
        raise UsageError(f"source {source}: no {kinds}, in {path}")
    files.sort(key=lambda file: file.name.encode("utf-8"))
    for one, other in zip(files, files[1:], strict=False):
        if one.name == other.name:
            raise BadArtifact(f"{str(one.path)!r} and {str(other.path)!r} are one name in Unicode form NFC")
    return Inputs(tuple(files), len(found) - len(files))


def _walk(folder: Path) -> Iterator[Path]:
    """Files below a folder, links to folders not followed; what begins with a dot is not looked at."""

    def fail(error: OSError) -> None:
        raise explain(error, folder) from error

    for parent, folders, names in os.walk(folder, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(parent, name) for name in names if not name.startswith("."))


def _kind(path: Path) -> tuple[str, bool] | None:
    packed = path.suffix == PACKED
    kind = Path(path.stem).suffix if packed else path.suffix
    return (kind, packed) if kind in (TEXT, LINES, PARQUET) else None


def _input(name: str, path: Path) -> Input:
    shape = _kind(path)
    assert shape is not None
    if not path.is_file():
        what = "a link that leads to no file" if path.is_symlink() else "not a regular file"
        raise BadArtifact(f"{path}: {what}", hint="put the file there, or leave the name out")
    try:
        name = fields.check_text(unicodedata.normalize("NFC", name), f"{str(path)!r}: name", _NAME_CHARACTERS)
    except BadArtifact as error:
        error.hint = "documents are called by the names of their files: rename it"
        raise
    return Input(name, path, *shape, path.stat().st_size)
