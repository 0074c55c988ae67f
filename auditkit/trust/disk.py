"""Files of a log, or of what was seen of one: whole under their names, flushed, written by one process at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from auditkit.errors import Unavailable
from auditkit.store.disk import reason, unwritable
from auditkit.store.owner import unique_suffix
from auditkit.trust import key_files

_HINT = "choose a folder that can be written, or make room"
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS}


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


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keep every other process that asks for it out of an existing folder; Unavailable while another has it.

    The system lets go when the process ends, however it ends, and nothing is left behind. Where the file system has no
    locks nobody is kept out.
    """
    with writing(folder):
        descriptor = _lock(folder)
    if descriptor is None:
        raise Unavailable(f"{folder}: another process is writing there", hint="try again when it is done")
    try:
        yield
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return  # no such call there, and names are journalled
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lock(folder: Path) -> int | None:
    """A descriptor that holds the lock, or None when somebody else has it."""
    if sys.platform == "win32":
        try:
            # The system removes it when it is closed; until then it cannot be made again.
            return os.open(folder / ".lock", os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_TEMPORARY)
        except (FileExistsError, PermissionError):
            return None
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            os.close(descriptor)
            raise
    return descriptor
