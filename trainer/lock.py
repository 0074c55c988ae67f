"""One trainer in one work folder at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from auditkit.errors import Unavailable, UsageError
from trainer.disk import explain

LOCK_NAME = ".lock"


@contextlib.contextmanager
def hold(work: Path) -> Iterator[None]:
    """Hold a work folder; raises `UsageError` at once if another process does.

    The operating system drops the lock with its process, so a `kill -9` leaves nothing to clean up.
    """
    if not work.is_dir():
        raise Unavailable(f"{work}: no such folder")
    lock = FileLock(work / LOCK_NAME, timeout=0)
    try:
        lock.acquire()
    except Timeout as error:
        raise UsageError(
            f"{work}: another trainer is at work in this folder", hint="wait for it, or stop it and then resume"
        ) from error
    except OSError as error:
        raise explain(error, work / LOCK_NAME) from error
    try:
        yield
    finally:
        lock.release()
