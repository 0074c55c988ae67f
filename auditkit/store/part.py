"""A file in the making: a download writes to it, hashed as it comes, going on from what an earlier process left."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from auditkit.errors import Unsupported
from auditkit.formats.digest import Digest, Hasher
from auditkit.store.cache import Cache
from auditkit.store.disk import free_bytes, need_room, reason, unwritable, writing
from auditkit.store.files import chunks
from auditkit.store.owner import abandoned
from auditkit.store.progress import Clock


class Vanished(Exception):
    """Someone cleaned the part away before it got its final name."""


class Part:
    """The sink (transfer.Sink) of one object's download; a context that keeps what was received when it ends early."""

    def __init__(self, cache: Cache, digest: Digest, size: int, clock: Clock) -> None:
        self._cache, self._digest, self._size, self._clock = cache, digest, size, clock
        self.have, self.resumed = 0, False
        self._hasher = Hasher()
        # Servers' pieces are small; hashing and writing large ones costs half as much, and hashing uses all cores.
        self._pending = bytearray()
        self.path = cache.new_part(digest)
        with writing(self.path):
            self._file = self.path.open("xb", buffering=0)

    def __enter__(self) -> Part:
        try:
            self._adopt()
            need_room(self.path, self._size - self.have, self._cache.limits.spare_disk_bytes)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError, Unsupported):  # the disk is full: what did reach it is kept for the next try
            self._flush()
        self._file.close()
        if self.have == 0:
            _remove(self.path)

    def write(self, data: bytes | memoryview) -> None:
        """Append; Unsupported when the disk refuses."""
        self._pending += data
        self.have += len(data)
        if len(self._pending) >= self._cache.limits.chunk_bytes:
            self._flush()

    def restart(self) -> None:
        """Forget everything received so far."""
        self._pending.clear()
        with writing(self.path):
            self._file.seek(0)
            self._file.truncate(0)
        self._hasher = Hasher()
        self.have, self.resumed = 0, False

    def digest(self) -> Digest:
        """BLAKE3 of what was received."""
        self._flush()
        return self._hasher.hexdigest()

    def commit(self) -> Path:
        """Close the part and give it its final name; the digest was checked before. Vanished if it is gone."""
        self._flush()
        self._file.close()
        try:
            return self._cache.commit(self.path, self._digest)
        except FileNotFoundError as error:
            raise Vanished from error
        except OSError as error:
            raise unwritable(self._cache.object(self._digest), reason(error)) from error

    def _flush(self) -> None:
        data, self._pending = memoryview(self._pending), bytearray()  # a failed write must not be tried twice
        with writing(self.path):
            done = 0
            while done < len(data):
                done += self._file.write(data[done:])
        self._hasher.update(data)

    def _adopt(self) -> None:
        """Copy the longest leftover of this object that is not too long.

        Copied, never renamed: its owner may be alive, and two processes would write one file. The copy costs little,
        for the bytes must be read and hashed in any case.
        """
        found = [p for p in self._cache.leftovers(self._digest) if p != self.path]
        limits = self._cache.limits
        free = free_bytes(self.path)
        if free is None or free >= self._size + limits.spare_disk_bytes:
            for leftover in found:
                if self._copy(leftover):
                    break
        for leftover in found:
            if abandoned(leftover, now=self._clock.wall(), after_seconds=limits.leftover_seconds):
                _remove(leftover)

    def _copy(self, leftover: Path) -> bool:
        try:
            if not 0 < leftover.stat().st_size <= self._size:
                return False
            file = leftover.open("rb", buffering=0)
        except OSError:
            return False  # its owner finished it, or cleaned up
        try:
            with file:
                for chunk in chunks(file, self._cache.limits.chunk_bytes, self._size):
                    self.write(chunk)
        except OSError:
            self.restart()  # a bad disk under the leftover
        if self.have == self._size and self.digest() != self._digest:
            self.restart()
        self.resumed = self.have > 0
        return self.have > 0


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # on Windows: its owner is alive; elsewhere: not ours to remove
