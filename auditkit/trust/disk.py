"""Files of a log, or of what was seen of one: whole under their names, flushed, written by one process at a time."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from auditkit.errors import Unavailable
from auditkit.store.disk import reason, unwritable
from auditkit.store.owner import unique_suffix
from auditkit.trust import key_files

_HINT = "choose a folder that can be written, or make room"


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into Unsupported that names `path`, the reason and the free space."""
    try:
        yield
    except OSError as error:
        refused = unwritable(path, reason(error))
        refused.hint = _HINT
        raise refused from error


def read(path: Path, limit: int) -> bytes | None:
    """A whole file of at most `limit` bytes, or None if there is none; of a file that is replaced, the old or the new.

    Unavailable: it cannot be read, or is no regular file. BadArtifact: it is larger.
    """
    try:
        return key_files.read(path, limit)
    except Unavailable as error:
        if isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
            return None
        raise


def write(path: Path, data: bytes, *, draft: str = "") -> None:
    """Put a file in place at once and flushed to the disk; its folder must be there. Unsupported: the disk refuses.

    `draft` is the name it has before, by default one that no other process uses.
    """
    made = path.with_name(draft or f".tmp-{unique_suffix()}")
    with writing(path):
        try:
            with made.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(made, path)
        except BaseException:
            with contextlib.suppress(OSError):
                made.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def sync(paths: Iterable[Path], top: Path) -> None:
    """Flush files, and the names of all of them below the folder `top`, to the disk itself."""
    folders = {top}
    for path in paths:
        with writing(path):
            descriptor = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0))
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        folders.update(parent for parent in path.parents if parent.is_relative_to(top))
    for folder in sorted(folders):
        with writing(folder):
            _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return  # no such call there, and names are journalled
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
