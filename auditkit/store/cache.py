"""The content-addressed cache: `<cache>/blake3/ab/<digest>`, and names that remember which digest an address had.

Nothing here relies on locks, which are no-ops on some network file systems. Each process writes files of its own, under
names no other uses, and gives them their final name with one atomic rename in the same folder. A final name says only
what the contents should be: whoever reads checks, so a file damaged by a crash or a bad disk costs a fetch, no more.
"""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from auditkit.errors import Unsupported
from auditkit.formats.digest import Digest, content_digest
from auditkit.store.disk import writing
from auditkit.store.files import digest_of
from auditkit.store.limits import StoreLimits
from auditkit.store.owner import unique_suffix

VARIABLE = "AUDITKIT_CACHE"
PART = ".part"
PROBE_BYTES = 1 << 16  # more than a file system keeps beside a file's name


def default_dir() -> Path:
    """$AUDITKIT_CACHE, else the user's cache folder by the custom of the system; Unsupported if there is none."""
    chosen = os.environ.get(VARIABLE, "")
    refused = Unsupported("there is no home folder to keep a cache in", hint=f"set {VARIABLE} to a folder")
    try:
        path = Path(os.path.expanduser(chosen) if chosen else platformdirs.user_cache_dir("auditkit", appauthor=False))
    except RuntimeError:  # no HOME and no account entry
        raise refused from None
    if str(path).startswith("~"):  # the same, and it would become a folder of that name here
        raise refused
    return path


@dataclass(frozen=True)
class Cache:
    """A cache folder, which need not exist; nothing is created before the first write."""

    folder: Path
    limits: StoreLimits

    @classmethod
    def at(cls, folder: Path | str | None, limits: StoreLimits) -> Cache:
        """The cache in `folder`, or in the default one."""
        chosen = Path(folder) if folder is not None else default_dir()
        return cls(_long(Path(os.path.abspath(chosen))), limits)

    def object(self, digest: Digest) -> Path:
        """The final name of the object with this digest, there or not."""
        return self.folder / "blake3" / digest[:2] / digest

    def check_writable(self) -> None:
        """Write some bytes where files would lie, and remove them; Unsupported, with the reason, where that fails.

        Where there is no cache yet, the folder that it would be made in is asked, so that looking makes none.
        """
        for folder in dict.fromkeys(_nearest(self.folder / name) for name in ("blake3", "names")):
            probe = folder / f".probe.{unique_suffix()}{PART}"
            with writing(self.folder if self.folder.is_relative_to(folder) else folder):
                try:
                    probe.write_bytes(os.urandom(PROBE_BYTES))  # random, for zeros take no room on some disks
                finally:
                    probe.unlink(missing_ok=True)

    def has(self, digest: Digest, size: int | None = None) -> bool:
        """Whether an object of this digest (and `size` in bytes) is there; its contents are checked when it is read."""
        try:
            found = self.object(digest).stat()
        except OSError:
            return False
        return stat.S_ISREG(found.st_mode) and (size is None or found.st_size == size)

    def new_part(self, digest: Digest) -> Path:
        """A name beside the final one that no other process uses; its folder exists afterwards."""
        final = self.object(digest)
        with writing(final):
            final.parent.mkdir(parents=True, exist_ok=True)
        return final.with_name(f"{digest}.{unique_suffix()}{PART}")

    def leftovers(self, digest: Digest) -> list[Path]:
        """Partial files of this object that any process left, or is writing, the longest first."""
        folder = self.object(digest).parent
        try:
            sizes = [(p.stat().st_size, p) for p in folder.glob(f"{digest}.*{PART}")]
        except OSError:
            return []  # one vanished while we looked, or the folder cannot be read: start from 0
        return [p for _, p in sorted(sizes, key=lambda pair: (-pair[0], pair[1]))]

    def commit(self, part: Path, digest: Digest) -> Path:
        """Give a finished, closed and checked part its final name; FileNotFoundError if someone removed the part."""
        final = self.object(digest)
        try:
            # No fsync: a file that a power cut damaged fails its digest at the next read and is fetched again.
            _replace(part, final)
        except PermissionError:
            # Windows: another process has the final name open. It holds the same bytes if they check.
            if digest_of(final, self.limits.chunk_bytes) != digest:
                raise
            part.unlink(missing_ok=True)
        return final

    def put(self, data: bytes, digest: Digest) -> None:
        """Keep `data`, whose digest was checked; Unsupported when the disk refuses."""
        part = self.new_part(digest)
        with writing(part):
            try:
                part.write_bytes(data)
                _replace(part, self.object(digest))
            except OSError:
                part.unlink(missing_ok=True)
                raise

    def read(self, digest: Digest, limit: int) -> bytes | None:
        """The bytes of an object, checked; None if it is not there, larger than `limit` bytes, or damaged."""
        data = _small(self.object(digest), limit)
        return data if data is not None and content_digest(data) == digest else None

    def remember(self, key: str, digest: Digest) -> None:
        """Note that the thing called `key` (an address, a range) had this digest."""
        name = self._name(key)
        with writing(name):
            name.parent.mkdir(parents=True, exist_ok=True)
            part = name.with_name(f"{name.name}.{unique_suffix()}{PART}")
            part.write_bytes(f"{digest}\n".encode("ascii"))
            _replace(part, name)

    def recall(self, key: str) -> Digest | None:
        """The digest noted for `key`, if any."""
        text = _small(self._name(key), 65)
        if text is None:
            return None
        digest = text[:-1].decode("ascii", "replace")
        whole = len(text) == 65 and text.endswith(b"\n") and set(digest) <= set("0123456789abcdef")
        return digest if whole else None

    def _name(self, key: str) -> Path:
        hashed = content_digest(key.encode("utf-8", "surrogateescape"))
        return self.folder / "names" / hashed[:2] / hashed


def _nearest(path: Path) -> Path:
    """The path, or what there is of it from the root on; a link that leads nowhere is there."""
    return next((place for place in (path, *path.parents) if os.path.lexists(place)), path)


def _small(path: Path, limit: int) -> bytes | None:
    """The bytes of a regular file of at most `limit` bytes; None for anything else that lies at `path`.

    Not to wait for a pipe's writer, nor to read a device without end: opened without blocking, then looked at.
    """
    try:
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        number = os.open(path, flags)
        try:
            status = os.fstat(number)
            if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                return None
            with open(number, "rb", closefd=False) as file:
                data = file.read(limit + 1)
        finally:
            os.close(number)
    except OSError:
        return None
    return data if len(data) <= limit else None


def _replace(part: Path, final: Path) -> None:
    """Rename over whatever has the final name: a folder there is moved aside first, for a file cannot replace it."""
    try:
        os.replace(part, final)
    except OSError:
        if not final.is_dir() or final.is_symlink():
            raise
        # Not removed: nothing of ours makes folders here, so what is in it may be somebody's.
        os.replace(final, final.with_name(f"{final.name}.{unique_suffix()}.aside"))
        os.replace(part, final)


def _long(path: Path) -> Path:
    r"""On Windows, `path` with the \\?\ prefix that lifts the limit of 260 characters; elsewhere as it is."""
    if sys.platform != "win32" or str(path).startswith("\\\\"):
        return path
    return Path("\\\\?\\" + str(path))
