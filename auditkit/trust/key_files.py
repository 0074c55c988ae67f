"""Files of keys: a private one is its owner's alone from its first moment on, and none is ever overwritten."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from auditkit.errors import BadArtifact, Unavailable, Unsupported, Untrusted, UsageError
from auditkit.store.disk import reading, reason

_HAS_MODES = os.name != "nt"  # Windows has access lists, which st_mode does not show
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def read(path: Path, limit: int) -> bytes:
    """The bytes of a regular file of at most `limit` bytes; Unavailable, BadArtifact."""
    return read_with_mode(path, limit)[0]


def read_with_mode(path: Path, limit: int) -> tuple[bytes, int]:
    """As `read`, with the mode bits of the very file that was read."""
    with _opened(path) as descriptor:
        return _read(path, descriptor, limit), os.fstat(descriptor).st_mode


def require_private(path: Path, mode: int) -> None:
    """Untrusted when the mode bits give a file's group or others any access (not on Windows, which has none)."""
    if _HAS_MODES and mode & _OTHERS:
        raise Untrusted(
            f"{path}: others have access to this private key (mode {stat.S_IMODE(mode):04o})",
            hint=f"chmod 600 {path}; if somebody may have read it, make another key",
        )


def require_new(path: Path) -> None:
    """UsageError unless a file can be made under this name: before work whose result it is to hold."""
    if path == Path("-"):
        raise UsageError("a file is made, and '-' names none", hint="name a file")
    if os.path.lexists(path):
        raise _there(path)
    if not path.parent.is_dir():
        raise UsageError(f"there is no folder {path.parent}", hint="make it first")


def write_new(path: Path, data: bytes, *, mode: int) -> None:
    """Write a file that gets its name when it is complete, and never one that there is already.

    UsageError: something is at `path`, its folder is missing, or it is "-", by which people mean a stream. Unsupported:
    the disk refuses.
    """
    require_new(path)
    draft = path.with_name(f".tmp-{secrets.token_hex(8)}")
    try:
        _write(draft, data, mode)
        _name(draft, path)
    except FileExistsError:
        raise _there(path) from None
    except OSError as error:
        raise Unsupported(f"cannot write {path}: {reason(error)}") from error
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    """A descriptor of a regular file; never waits for the writer of a pipe."""
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    with reading(path):
        descriptor = os.open(path, flags)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Unavailable(f"{path} is not a regular file")
        yield descriptor
    finally:
        os.close(descriptor)


def _read(path: Path, descriptor: int, limit: int) -> bytes:
    with reading(path), open(descriptor, "rb", closefd=False) as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise BadArtifact(f"{path}: more than {limit} bytes")
    return data


def _write(path: Path, data: bytes, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags, mode)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _name(draft: Path, path: Path) -> None:
    """Give the complete file its name; FileExistsError if there is something by now, a broken link included."""
    if not _HAS_MODES:
        draft.rename(path)  # on Windows a rename never replaces
        return
    try:
        os.link(draft, path)
    except FileExistsError:
        raise
    except OSError:
        # No hard links here (FAT, some network shares): take the name, then put the complete file in its place.
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        draft.replace(path)


def _there(path: Path) -> UsageError:
    return UsageError(f"{path} exists and is never overwritten", hint="choose another name")
