"""Read local files in pieces, check their digest, and read ranges of them in place."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from io import BufferedIOBase, RawIOBase
from pathlib import Path

from auditkit.errors import BadArtifact, Unavailable
from auditkit.formats.digest import Digest, Hasher
from auditkit.store.disk import reading


def chunks(file: RawIOBase | BufferedIOBase, chunk_bytes: int, limit: int | None = None) -> Iterator[memoryview]:
    """The bytes of an open file, at most `limit` of them, in pieces of one buffer that is used again and again."""
    buffer = memoryview(bytearray(chunk_bytes))
    left = limit
    while left is None or left > 0:
        n = file.readinto(buffer if left is None else buffer[: min(left, chunk_bytes)])
        if not n:
            return
        yield buffer[:n]
        left = None if left is None else left - n


def digest_of(
    path: Path, chunk_bytes: int, advance: Callable[[int], None] = lambda n: None, *, limit: int | None = None
) -> Digest:
    """BLAKE3 of a file, or of its first `limit` bytes, in hex; `advance` is told the bytes done; OSError if it cannot
    be read.
    """
    hasher = Hasher()
    with path.open("rb", buffering=0) as file:
        for chunk in chunks(file, chunk_bytes, limit):
            hasher.update(chunk)
            advance(len(chunk))
    return hasher.hexdigest()


def regular_size(path: Path) -> int | None:
    """The size of a regular file in bytes; None if there is nothing; Unavailable for a folder, a pipe or a device."""
    try:
        with reading(path):
            status = path.stat()
    except Unavailable as error:
        if isinstance(error.__cause__, (FileNotFoundError, NotADirectoryError)):
            return None
        raise
    if not stat.S_ISREG(status.st_mode):
        raise Unavailable(f"{path} is not a regular file")
    return status.st_size


def require_size(path: Path, size: int, *, grows: bool = False) -> bool:
    """Whether there is a file at `path`; BadArtifact when its size is not `size` bytes, or more where it `grows`."""
    found = regular_size(path)
    if found is not None and found != size and not (grows and found > size):
        raise BadArtifact(f"{path}: {found:,} bytes, but the manifest declares {size:,}")
    return found is not None


def read_small(path: Path, limit: int) -> bytes | None:
    """A whole regular file, None if there is none; opened once, so that one that is replaced comes in one piece.

    BadArtifact: it has more than `limit` bytes. Unavailable: it cannot be read, or is a folder, a pipe or a device.
    """
    flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    with reading(path):
        try:
            descriptor = os.open(path, flags)
        except (FileNotFoundError, NotADirectoryError):
            return None
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Unavailable(f"{path} is not a regular file")
            data = file.read(limit + 1)
    if len(data) > limit:
        raise BadArtifact(f"{path}: more than {limit:,} bytes")
    return data


def read_range(path: Path, offset: int, length: int) -> bytes:
    """`length` bytes of a file from `offset` on; BadArtifact if it ends before, Unavailable if it cannot be read."""
    with reading(path), path.open("rb", buffering=0) as file:
        file.seek(offset)
        data = bytearray(length)
        view, have = memoryview(data), 0
        while have < length:
            n = file.readinto(view[have:])
            if not n:
                raise BadArtifact(f"{path}: ends at byte {offset + have:,}, before the end of the range asked for")
            have += n
    return bytes(data)
