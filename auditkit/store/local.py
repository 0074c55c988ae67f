"""What needs no network: the folders of the run, read in place, and the cache. All of it is checked when it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from auditkit.errors import BadArtifact, Unavailable
from auditkit.formats.digest import Digest
from auditkit.formats.limits import LIMITS
from auditkit.formats.run import GROWING
from auditkit.store.cache import Cache
from auditkit.store.disk import reading
from auditkit.store.failures import Failures
from auditkit.store.fetch import Check, Object, require_digest
from auditkit.store.files import digest_of, read_range, regular_size, require_size
from auditkit.store.limits import StoreLimits
from auditkit.store.progress import Progress
from auditkit.store.source import Folder
from auditkit.store.transfer import Piece


@dataclass(frozen=True)
class Kept:
    """How a range may be known to the cache: its own digest, that of its file, and the name it was kept under."""

    digest: Digest | None
    file_digest: Digest | None
    key: str


class Local:
    """Folders first, then the cache; `cache` is called only when no folder has what is wanted."""

    def __init__(
        self, folders: Sequence[Folder], cache: Callable[[], Cache], progress: Progress, limits: StoreLimits
    ) -> None:
        self._folders, self._cache, self._progress, self._limits = folders, cache, progress, limits
        self._checked: dict[tuple[Path, Digest], tuple[int, int, int]] = {}

    def file(self, wanted: Object, failures: Failures) -> Path | None:
        """A checked file, or None; a folder's file that is wrong is added to `failures`."""
        for folder in self._folders:
            place = folder.file(wanted.path)
            try:
                if require_size(place, wanted.size, grows=wanted.grows):
                    self.require(place, wanted)
                    return place
            except (BadArtifact, Unavailable) as error:
                failures.add(error)
        return self._cached_file(wanted, failures)

    def range(self, path: str, piece: Piece, kept: Kept, judge: Check, failures: Failures) -> bytes | None:
        """A range for which `judge` raises nothing, or None; a folder's range that is wrong is added to `failures`."""
        for folder in self._folders:
            place = folder.file(path)
            try:
                if require_size(place, piece.total, grows=piece.grows):
                    return _judged(place, piece, judge)
            except (BadArtifact, Unavailable) as error:
                failures.add(error)
        return self._cached_range(path, piece, kept, judge, failures)

    def manifest(self, place: Path) -> bytes:
        """The bytes of a run.json; Unavailable if it cannot be read, BadArtifact if it is too large."""
        size = regular_size(place)
        if size is None:
            raise Unavailable(f"there is no {place}")
        if size > LIMITS.manifest_bytes:
            raise BadArtifact(f"{place}: more than {LIMITS.manifest_bytes:,} bytes")
        with reading(place):
            return place.read_bytes()

    def has(self, path: str, digest: Digest, size: int | None) -> bool:
        """Whether a folder or the cache has a file of this path or digest, and `size`; contents are not looked at."""
        for folder in self._folders:
            try:
                found = folder.file(path).stat().st_size
            except OSError:
                continue
            if size is None or found == size or (path in GROWING and found > size):
                return True
        return self._cache().has(digest, size)

    def has_range(self, path: str, piece: Piece, kept: Kept) -> bool:
        """Whether `range` would find something to judge."""
        if self.has(path, kept.file_digest or "", piece.total):
            return True
        digest = kept.digest or self._cache().recall(kept.key)
        return digest is not None and self._cache().has(digest, piece.length)

    def mark(self, place: Path, digest: Digest) -> None:
        """Note that `place` was just seen to hold `digest`."""
        with reading(place):
            self._checked[place, digest] = _identity(place)

    def require(self, place: Path, wanted: Object) -> None:
        """BadArtifact when the file has another digest; one that did not change since its check is not read again."""
        with reading(place):
            before = _identity(place)
            if self._checked.get((place, wanted.digest)) == before:
                return
            self._progress.start(f"checking {wanted.path}", wanted.size)
            try:
                found = digest_of(place, self._limits.chunk_bytes, self._progress.advance, limit=wanted.size)
            finally:
                self._progress.finish()
        try:
            require_digest(found, wanted.digest)
        except BadArtifact as error:
            raise BadArtifact(f"{place}: {error.message}") from None
        self._checked[place, wanted.digest] = before

    def _cached_file(self, wanted: Object, failures: Failures) -> Path | None:
        place = self._cache().object(wanted.digest)
        try:
            if require_size(place, wanted.size):
                self.require(place, wanted)
                return place
        except (BadArtifact, Unavailable) as error:
            self._damaged(wanted.path, error, failures)
        return None

    def _cached_range(self, path: str, piece: Piece, kept: Kept, judge: Check, failures: Failures) -> bytes | None:
        cache = self._cache()
        if kept.file_digest and cache.has(kept.file_digest, piece.total):
            try:
                return _judged(cache.object(kept.file_digest), piece, judge)
            except (BadArtifact, Unavailable) as error:
                self._damaged(path, error, failures)
        digest = kept.digest or (cache.recall(kept.key) if kept.key else None)
        data = cache.read(digest, piece.length) if digest else None
        if data is None or len(data) != piece.length:
            return None
        try:
            judge(data)
        except BadArtifact as error:
            self._damaged(path, error, failures)
            return None
        return data

    def _damaged(self, path: str, error: BadArtifact | Unavailable, failures: Failures) -> None:
        # Never a failure of the publisher: a bad disk here says nothing about what was published.
        failures.damaged = True
        self._progress.note(f"{path}: the cached copy is damaged and not used ({error.message})")


def _judged(place: Path, piece: Piece, judge: Check) -> bytes:
    data = read_range(place, piece.first, piece.length)
    try:
        judge(data)
    except BadArtifact as error:
        where = f"{place}: bytes {piece.first:,} to {piece.first + piece.length:,}"
        raise BadArtifact(f"{where}: {error.message}", hint=error.hint) from None
    return data


def _identity(place: Path) -> tuple[int, int, int]:
    status = place.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino
