"""A lock on a folder, for those who write there one at a time."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from auditkit.errors import Unavailable, Unsupported
from auditkit.store.disk import reason, unwritable
from auditkit.store.progress import Clock

_PAUSE_SECONDS = 0.05
_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS}


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Keep every other process that asks for it out of an existing folder.

    The system lets go when the process ends, however it ends, and nothing is left behind. Where the file system has no
    locks nobody is kept out. Unavailable: another process has it. Unsupported: the disk refuses.
    """
    try:
        descriptor = _lock(folder)
    except OSError as error:
        refused = unwritable(folder, reason(error))
        refused.hint = "choose a folder that can be written, or make room"
        raise refused from error
    if descriptor is None:
        raise Unavailable(f"{folder}: another process is writing there", hint="try again when it is done")
    try:
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def in_turn(folder: Path, seconds: float, clock: Clock, waits: Callable[[], None] = lambda: None) -> Iterator[str]:
    """As only_writer, after waiting for others; `waits` is told when that begins. Gives why the block runs without a
    lock, where it does: after so many seconds, or where the disk refuses; else "".
    """
    with contextlib.ExitStack() as held:
        yield _waited(held, folder, clock.now() + seconds, clock, waits)


def _waited(held: contextlib.ExitStack, folder: Path, until: float, clock: Clock, waits: Callable[[], None]) -> str:
    told = False
    while True:
        try:
            held.enter_context(only_writer(folder))
            return ""
        except Unsupported as error:
            return error.message
        except Unavailable as error:
            if clock.now() >= until:
                return error.message
        if not told:
            waits()
            told = True
        clock.sleep(_PAUSE_SECONDS)


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
