"""Writes that survive a `kill -9` and a power cut: a name appears only when all bytes behind it are on the disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from auditkit.errors import AuditkitError, Unavailable, Unsupported

TEMPORARY = ".tmp-"
"""What the names of unfinished files and folders begin with; whatever bears it may be deleted."""

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG} if hasattr(errno, "EDQUOT") else {errno.ENOSPC, errno.EFBIG}


def explain(error: OSError, path: Path | None = None, *, then: str = "resume") -> AuditkitError:
    """What the user is told of a system error: `Unsupported` for a full or read-only disk, else `Unavailable`."""
    where = str(path if path is not None else error.filename or "the work folder")
    reason = (error.strerror or str(error)).lower()
    if error.errno in _FULL:
        return Unsupported(f"{where}: {reason}", hint=f"{_free(where)} bytes are free there; make room, then {then}")
    if error.errno == errno.EROFS:
        return Unsupported(f"{where}: {reason}", hint="choose a folder that can be written")
    return Unavailable(f"{where}: {reason}")


def _free(where: str) -> str:
    path = Path(where)
    while not path.exists() and path != path.parent:
        path = path.parent
    try:
        return str(shutil.disk_usage(path).free)
    except OSError:
        return "unknown"


def read_bytes(path: Path) -> bytes:
    """The bytes of a file; raises `Unavailable` with its path."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise explain(error, path) from error


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a system error of the block into the error that names `path` and says what would help."""
    try:
        yield
    except OSError as error:
        raise explain(error, path) from error


def sync_file(file: BinaryIO) -> None:
    """Flush a file to the disk itself."""
    file.flush()
    os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to the disk; Windows has no such call and journals names itself."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write that gets its name `path` only once it is complete and on the disk."""
    temporary = path.parent / f"{TEMPORARY}{path.name}-{os.getpid()}"
    try:
        with writing(path):
            with temporary.open("wb") as file:
                yield file
                sync_file(file)
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_folder(path.parent)


def write_atomic(path: Path, data: bytes) -> None:
    """Write a whole file under its name at once."""
    with atomic_file(path) as file:
        file.write(data)


def link_or_copy(source: Path, target: Path) -> None:
    """Give a file that nobody changes a second name, or a copy where the file system has no links; OSError."""
    with contextlib.suppress(OSError):
        os.link(source, target)
        return
    with source.open("rb") as reader, target.open("xb") as writer:
        shutil.copyfileobj(reader, writer, 1 << 20)
        sync_file(writer)


def remove_temporaries(folder: Path) -> None:
    """Delete what a killed process left unfinished in a folder; call only while holding the folder's lock."""
    for entry in folder.glob(f"{TEMPORARY}*"):
        remove(entry)


def remove(path: Path) -> None:
    """Delete a file or a folder; a folder first loses its name, so that no half-deleted one looks complete."""
    if not path.is_dir():
        path.unlink(missing_ok=True)
        return
    doomed = path
    if not path.name.startswith(TEMPORARY):
        doomed = path.with_name(f"{TEMPORARY}gone-{path.name}-{os.getpid()}")
        os.replace(path, doomed)
    shutil.rmtree(doomed)
