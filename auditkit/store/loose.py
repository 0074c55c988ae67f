"""Files of a run that its manifest does not list, such as those of its signed log: small, and judged by who reads them.

They are read from one place at a time, for together they must make sense: a checkpoint of one mirror and a tile of
another may belong to two moments of one log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from auditkit.errors import BadArtifact, Unavailable, Unsupported, Untrusted
from auditkit.formats.digest import content_digest
from auditkit.store.cache import Cache
from auditkit.store.failures import Failures
from auditkit.store.files import read_small
from auditkit.store.progress import Progress
from auditkit.store.source import Folder, Remote
from auditkit.store.transfer import Transfer

Fetch = Callable[[str, int], bytes]
"""A file by its path within the run, of at most so many bytes. Raises Unavailable, or BadArtifact if it has more."""

T = TypeVar("T")


class Absent(Unavailable):
    """there is no such file in the folder"""


class Loose:
    """The places of one run, in the order to try; `name` tells the cache which run it is."""

    def __init__(
        self,
        folders: Sequence[Folder],
        remotes: Sequence[Remote],
        transfer: Transfer,
        cache: Callable[[], Cache],
        progress: Progress,
        name: str,
    ) -> None:
        self._folders, self._remotes, self._transfer = folders, remotes, transfer
        self._cache, self._progress, self._name = cache, progress, name

    def read(self, what: str, read: Callable[[Fetch], T], *, offline: bool, absent: tuple[str, str]) -> T:
        """What `read` makes of the files of the first place for which it raises nothing; see Store.loose."""
        failures, missing = Failures(what, self._progress), [Unavailable(f"{what}: {absent[0]}", hint=absent[1])]
        for fetch, fetched in self._places(offline):
            failures.next_place()
            try:
                found = read(fetch)
            except Absent as error:
                missing.append(error)
            except (BadArtifact, Unavailable, Untrusted) as error:
                failures.add(error)
            else:
                self._keep(fetched)
                return found
        raise failures.error(*absent) if failures else missing[-1]

    def _places(self, offline: bool) -> Iterator[tuple[Fetch, dict[str, bytes]]]:
        """Each place's way to fetch, and where what comes over the network is noted."""
        for folder in self._folders:
            yield _from_folder(folder), {}
        if offline:
            yield self._from_cache, {}
            return
        for remote in self._remotes:
            fetched: dict[str, bytes] = {}
            yield self._from_remote(remote, fetched), fetched

    def _from_remote(self, remote: Remote, fetched: dict[str, bytes]) -> Fetch:
        def fetch(path: str, limit: int) -> bytes:
            fetched[path] = self._transfer.document(remote, path, limit)
            return fetched[path]

        return fetch

    def _from_cache(self, path: str, limit: int) -> bytes:
        digest = self._cache().recall(self._key(path))
        data = self._cache().read(digest, limit) if digest else None
        if data is None:
            raise Absent(f"{path}: not here, and offline", hint="run the same command once without --offline")
        return data

    def _keep(self, fetched: dict[str, bytes]) -> None:
        """Note what was accepted for use without a network; a disk that refuses is no reason to fail."""
        try:
            for path, data in fetched.items():
                digest = content_digest(data)
                if not self._cache().has(digest, len(data)):
                    self._cache().put(data, digest)
                if self._cache().recall(self._key(path)) != digest:
                    self._cache().remember(self._key(path), digest)
        except Unsupported as error:
            self._progress.note(f"not kept for offline use: {error.message}")

    def _key(self, path: str) -> str:
        return f"loose\n{self._name}\n{path}"


def _from_folder(folder: Folder) -> Fetch:
    def fetch(path: str, limit: int) -> bytes:
        place = folder.file(path)
        data = read_small(place, limit)
        if data is None:
            raise Absent(f"there is no {place}")
        return data

    return fetch
