"""Disk failures in words: what could not be written where, and how much room is left there."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from auditkit.errors import Unavailable, Unsupported

_WORDS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the quota of the disk is used up",
    errno.EFBIG: "the file is larger than this system allows",
    errno.EROFS: "the file system is read-only",
    errno.EACCES: "writing is not allowed",
    errno.EPERM: "writing is not allowed",
    errno.ENAMETOOLONG: "the path is too long for this system",
    errno.ENOTDIR: "part of the path is a file",
    errno.EEXIST: "part of the path is a file",
}
_HINT = "choose another cache folder with AUDITKIT_CACHE, or make room"


def free_bytes(path: Path) -> int | None:
    """Free bytes on the file system of `path` or of its nearest folder that exists; None if that cannot be told."""
    for place in (path, *path.parents):
        try:
            return shutil.disk_usage(place).free
        except OSError:
            continue
    return None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into Unsupported that names `path`, the reason and the free space."""
    try:
        yield
    except OSError as error:
        raise unwritable(path, reason(error)) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into Unavailable that names `path` and the reason."""
    try:
        yield
    except OSError as error:
        raise Unavailable(f"cannot read {path}: {reason(error)}") from error


def unwritable(path: Path, why: str) -> Unsupported:
    """The error for a `path` that cannot be written."""
    free = free_bytes(path)
    room = "free space unknown" if free is None else f"{free:,} bytes free"
    return Unsupported(f"cannot write {path}: {why} ({room})", hint=_HINT)


def need_room(path: Path, needed: int, spare: int) -> None:
    """Unsupported when fewer than `needed` + `spare` bytes are free at `path`, before any of them is written."""
    free = free_bytes(path)
    if free is not None and needed and free < needed + spare:
        raise unwritable(path, f"{needed:,} more bytes are needed")


def reason(error: OSError) -> str:
    """Why the system refused, lower case, without the path."""
    words = _WORDS.get(error.errno or 0)
    return words or (error.strerror or str(error)).lower().rstrip(".")
