"""What a disk may do to the files of a cache or of a run: damage them, refuse, break in the middle of a read."""

from __future__ import annotations

import errno
import io
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

KINDS = ("flipped before", "flipped during", "truncated", "emptied", "removed", "EIO", "short read", "ENOSPC", "EROFS")
_ALL_WRITES = ("ENOSPC", "EROFS")


def files(folder: Path) -> list[Path]:
    """The files of a folder that hold something."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)


def flip(path: Path, chance: random.Random) -> None:
    """Turn one bit of a file; its length and its time of change stay."""
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def damage(kind: str, folder: Path, chance: random.Random) -> None:
    """What was done to one file before the program starts."""
    path = chance.choice(files(folder))
    if kind == "flipped before":
        flip(path, chance)
    elif kind == "removed":
        path.unlink()
    else:
        length = 0 if kind == "emptied" else chance.randrange(path.stat().st_size)
        path.write_bytes(path.read_bytes()[:length])


class _Broken(io.FileIO):
    """A file that ends in EIO, or too early, after some reads."""

    def __init__(self, path: Path, chance: random.Random, short: bool) -> None:
        super().__init__(path)
        self._left, self._short = chance.randrange(3), short

    def _fails(self) -> bool:
        self._left -= 1
        if self._left >= 0:
            return False
        if not self._short:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return True

    def readinto(self, buffer: Any) -> int:  # type: ignore[override]
        return 0 if self._fails() else super().readinto(buffer) or 0

    def read(self, size: int | None = -1) -> bytes:  # type: ignore[override]
        return b"" if self._fails() else super().read(-1 if size is None else size) or b""


@contextmanager
def failing(kind: str, folder: Path, chance: random.Random, openings: int) -> Iterator[None]:
    """The block meets one fault of the disk below `folder`, at one of so many openings of a file; or no write works."""
    opened, written = Path.open, Path.write_bytes
    state = {"left": chance.randrange(openings)}

    def due(path: Path) -> bool:
        if not path.is_relative_to(folder):
            return False
        state["left"] -= 1
        return state["left"] == -1

    def refused(path: Path) -> OSError:
        number = errno.ENOSPC if kind == "ENOSPC" else errno.EROFS
        return OSError(number, os.strerror(number), str(path))

    def open_(path: Path, mode: str = "r", *arguments: Any, **named: Any) -> Any:
        if kind in _ALL_WRITES:
            if mode[0] in "wxa" or "+" in mode:
                if path.is_relative_to(folder):
                    raise refused(path)
        elif mode.startswith("r") and path.is_file() and due(path):
            if kind == "flipped during":
                flip(path, chance)
            elif "b" in mode:
                return _Broken(path, chance, kind == "short read")
        return opened(path, mode, *arguments, **named)

    def write_bytes(path: Path, data: bytes) -> int:
        if kind in _ALL_WRITES and path.is_relative_to(folder):
            raise refused(path)
        return written(path, data)

    setattr(Path, "open", open_)  # noqa: B010 - a method of the standard library, put back below
    setattr(Path, "write_bytes", write_bytes)  # noqa: B010
    try:
        yield
    finally:
        setattr(Path, "open", opened)  # noqa: B010
        setattr(Path, "write_bytes", written)  # noqa: B010
