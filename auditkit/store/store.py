"""The store: every byte that the verifier reads comes through here, and is checked before it is handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

from auditkit.errors import BadArtifact, Unavailable, Unsupported, UsageError
from auditkit.formats.digest import Digest, content_digest
from auditkit.formats.run import GROWING
from auditkit.store.cache import Cache
from auditkit.store.failures import Failures
from auditkit.store.fetch import Check, Fetcher, Object, require_content
from auditkit.store.files import read_range
from auditkit.store.gc import Swept, sweep
from auditkit.store.http import Http
from auditkit.store.limits import STORE_LIMITS, StoreLimits
from auditkit.store.local import Kept, Local
from auditkit.store.loose import Fetch, Loose, T
from auditkit.store.manifest import fetch_manifest, recall_manifest
from auditkit.store.progress import Clock, Progress, Silent, SystemClock
from auditkit.store.source import Folder, Remote, Source, parse_remote
from auditkit.store.transfer import Piece, Transfer


class Store:
    """The files of one run: from its folder, from the cache, or from its places on the network, in this order.

    Nothing is opened, and no cache folder is needed, before something is asked for; with `offline` no socket ever is.
    May be used by several threads. Close it, or use it as a context.
    """

    def __init__(
        self,
        source: Source,
        *,
        cache_dir: Path | str | None = None,
        offline: bool = False,
        limits: StoreLimits = STORE_LIMITS,
        progress: Progress | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.source, self.offline, self.limits = source, offline, limits
        self._progress: Progress = progress or Silent()
        self._clock: Clock = clock or SystemClock()
        self._cache_dir = cache_dir
        self._cache: Cache | None = None
        self._http = Http(limits)
        self._transfer = Transfer(self._http, limits, self._progress, self._clock)
        self._mirrors: tuple[Remote, ...] = ()
        folders = [b for b in source.bases if isinstance(b, Folder)]
        self._local = Local(folders, lambda: self.cache, self._progress, limits)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; the store can still be used and opens new ones."""
        self._http.close()

    @property
    def cache(self) -> Cache:
        """The cache, found at the first use; Unsupported when the system has no place for one."""
        if self._cache is None:
            self._cache = Cache.at(self._cache_dir, self.limits)
        return self._cache

    def use_mirrors(self, urls: Iterable[str]) -> None:
        """Try these http(s) addresses, as the manifest has them, after the run's own place; BadArtifact for others."""
        known = {b.url for b in self.source.bases if isinstance(b, Remote)}
        home = self.source.home.url if isinstance(self.source.home, Remote) else ""
        mirrors = (_mirror(url if url.endswith("/") else url + "/", home) for url in urls)
        self._mirrors = tuple({m.url: m for m in mirrors if m.url not in known}.values())

    def manifest(self) -> bytes:
        """The bytes of run.json, nothing checked but their number; offline, as they were when last fetched."""
        home, name = self.source.home, self.source.manifest
        if isinstance(home, Folder):
            return self._local.manifest(home.path / name)
        if self.offline:
            return recall_manifest(self.cache, home, name)
        return fetch_manifest(self._transfer, self.cache, self._progress, home, name)

    def file(self, path: str, size: int, digest: Digest) -> Path:
        """A local file with these contents: the run's own in place, else the cached one, fetched if need be.

        One of formats.run.GROWING has them as its first bytes: in the run's folder more may follow.

        The digest was checked just now, or earlier by this store if the file has not changed since. BadArtifact: the
        bytes are wrong wherever there are any; Unavailable: they cannot be had; Unsupported: the disk refuses.
        """
        wanted, failures = Object(path, size, digest), Failures(path, self._progress)
        found = self._local.file(wanted, failures)
        if found is not None:
            return found
        places = self._places()
        # A damaged cache entry stays until the rename replaces it: until then it does no harm, for readers check.
        if places and self._fetcher().whole(wanted, places, failures):
            final = self.cache.object(digest)
            self._local.mark(final, digest)
            return final
        raise failures.error(*self._absent())

    def read(self, path: str, size: int, digest: Digest) -> bytes:
        """The contents of a file, as `file`; the bytes handed out are the very ones that were checked."""
        found = self.file(path, size, digest)
        data = read_range(found, 0, size)
        try:
            require_content(data, digest)
        except BadArtifact as error:
            raise Unavailable(f"{found} changed while it was read: {error.message}") from None
        return data

    def range(
        self,
        path: str,
        offset: int,
        length: int,
        *,
        size: int,
        digest: Digest | None = None,
        file_digest: Digest | None = None,
        check: Check | None = None,
    ) -> bytes:
        """`length` bytes from `offset` on of the file `path` of `size` bytes, without fetching the rest of it.

        `digest`: BLAKE3 of the range. `check` is given the bytes and raises BadArtifact when they are wrong, so that
        the next place is tried. With `digest`, or with `check` and `file_digest` (BLAKE3 of the whole file), the range
        is kept in the cache. With neither `digest` nor `check` the bytes are as the place gave them. Errors as `file`.
        """
        if offset < 0 or length < 0 or offset + length > size:
            raise BadArtifact(f"{path}: range {offset:,}+{length:,} leads out of its {size:,} bytes")
        if length > self.limits.range_bytes:
            raise Unsupported(f"{path}: a range of {length:,} bytes is above the limit of {self.limits.range_bytes:,}")

        judge = _judge(digest, check)
        piece, kept = Piece(offset, length, size, path in GROWING), _kept(offset, length, digest, file_digest)
        failures = Failures(path, self._progress)
        found = self._local.range(path, piece, kept, judge, failures)
        if found is not None:
            return found
        places = self._places()
        fetched = self._fetcher().range(path, piece, judge, places, failures) if places else None
        if fetched is None:
            raise failures.error(*self._absent())
        if digest or check:
            self._keep(fetched, kept)
        return fetched

    def loose(self, what: str, read: Callable[[Fetch], T]) -> T:
        """What `read` makes of small files that no manifest lists, called `what` in messages.

        `read` is given a way to fetch files of one place, `fetch(path, limit) -> bytes`, and raises BadArtifact,
        Untrusted or Unavailable for what it does not accept: then it is called with the next place, so that a mirror
        with other bytes is no verdict while another place is right. What was accepted is kept for use with `offline`.
        Raises, when all places failed, Unavailable if one of them may still have the right files, else Untrusted or
        BadArtifact.
        """
        folders = [b for b in self.source.bases if isinstance(b, Folder)]
        home = self.source.home.show(self.source.manifest)
        loose = Loose(folders, self._places(), self._transfer, lambda: self.cache, self._progress, home)
        return loose.read(what, read, offline=self.offline, absent=self._absent())

    def is_cached(self, path: str, digest: Digest, size: int | None = None) -> bool:
        """Whether the file is here, in the run's folder or the cache; its contents are checked only when it is read."""
        return self._local.has(path, digest, size)

    def is_range_cached(
        self, path: str, offset: int, length: int, *, size: int, file_digest: Digest, digest: Digest | None = None
    ) -> bool:
        """Whether `range` would need no network, contents not looked at."""
        piece = Piece(offset, length, size, path in GROWING)
        return self._local.has_range(path, piece, _kept(offset, length, digest, file_digest))

    def bytes_needed(self, files: Iterable[tuple[str, int, Digest]]) -> int:
        """Bytes to fetch for these (path, size in bytes, digest); the same contents count once."""
        missing = {digest: size for path, size, digest in files if not self.is_cached(path, digest, size)}
        return sum(missing.values())

    def gc(self) -> Swept:
        """Remove what killed processes left in the cache; see gc.sweep."""
        return sweep(self.cache, self._clock)

    def _places(self) -> list[Remote]:
        if self.offline:
            return []
        return [*(b for b in self.source.bases if isinstance(b, Remote)), *self._mirrors]

    def _fetcher(self) -> Fetcher:
        return Fetcher(self._transfer, self.cache, self._progress, self._clock)

    def _absent(self) -> tuple[str, str]:
        if self.offline:
            return "not here, and offline", "run the same command once without --offline"
        return (
            "not in the run's folder, and the run names no other place",
            "--artifacts names a folder or URL that has it",
        )

    def _keep(self, data: bytes, kept: Kept) -> None:
        """Put a checked range into the cache; a disk that refuses is no reason to fail, for the bytes are at hand."""
        digest = kept.digest or content_digest(data)
        try:
            if kept.digest or kept.key:
                self.cache.put(data, digest)
            if kept.key and not kept.digest:
                self.cache.remember(kept.key, digest)
        except Unsupported as error:
            self._progress.note(f"not kept for later: {error.message}")


def _mirror(url: str, home: str) -> Remote:
    try:
        return replace(parse_remote(url)[0], named_by=home)
    except UsageError as error:
        # the publisher wrote it, not the user
        raise BadArtifact(f"mirror: {error.message}") from None


def _judge(digest: Digest | None, check: Check | None) -> Check:
    def judge(data: bytes) -> None:
        if digest is not None:
            require_content(data, digest)
        if check is not None:
            check(data)

    return judge


def _kept(offset: int, length: int, digest: Digest | None, file_digest: Digest | None) -> Kept:
    return Kept(digest, file_digest, f"range\n{file_digest}\n{offset}\n{length}" if file_digest else "")
