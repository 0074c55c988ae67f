"""Fetch a whole object into the cache, or a range into memory, from the first place that has the right bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from auditkit.errors import AuditkitError, BadArtifact, Unavailable
from auditkit.formats.digest import Digest, content_digest
from auditkit.formats.run import GROWING
from auditkit.store.cache import Cache
from auditkit.store.failures import Failures
from auditkit.store.part import Part, Vanished
from auditkit.store.progress import Clock, Progress
from auditkit.store.source import Remote
from auditkit.store.transfer import Piece, Seen, Sink, Transfer

Check = Callable[[bytes], object]
_VANISHED = 3  # times that someone may clean our part away before it looks like more than bad luck


@dataclass(frozen=True)
class Object:
    """A file as a manifest names it."""

    path: str
    size: int  # bytes
    digest: Digest

    @property
    def grows(self) -> bool:
        """Whether more bytes may follow, of a run that is still being published."""
        return self.path in GROWING


class Memory:
    """A sink (transfer.Sink) in memory."""

    def __init__(self) -> None:
        self.have, self.resumed = 0, False
        self.data = bytearray()

    def write(self, data: bytes) -> None:
        """Append."""
        self.data += data
        self.have = len(self.data)

    def restart(self) -> None:
        """Forget everything."""
        self.data.clear()
        self.have, self.resumed = 0, False


@dataclass(frozen=True)
class Fetcher:
    """Fetches from remote places, in their order, with the digest as the judge."""

    transfer: Transfer
    cache: Cache
    progress: Progress
    clock: Clock

    def whole(self, wanted: Object, places: Sequence[Remote], failures: Failures) -> bool:
        """Bring `wanted` into the cache under its final name; False when every place failed, added to `failures`."""
        for _ in range(_VANISHED):
            with Part(self.cache, wanted.digest, wanted.size, self.clock) as part:
                self.progress.start(wanted.path, wanted.size)
                try:
                    self.progress.advance(part.have)
                    if not self._fill(part, wanted, places, failures):
                        return False
                    part.commit()
                    return True
                except Vanished:
                    self.progress.note(f"{wanted.path}: someone removed the partial file; fetching again")
                finally:
                    self.progress.finish()
        failures.add(Unavailable(f"{self.cache.folder}: partial files are removed while they are written"))
        return False

    def range(
        self, path: str, piece: Piece, check: Check, places: Sequence[Remote], failures: Failures
    ) -> bytes | None:
        """The bytes of `piece` for which `check` raises no BadArtifact; None when every place failed."""
        memory = Memory()
        self.progress.start(path, piece.length)
        try:
            good = self._try(path, piece, memory, lambda: check(bytes(memory.data)), places, failures)
        finally:
            self.progress.finish()
        return bytes(memory.data) if good else None

    def _fill(self, part: Part, wanted: Object, places: Sequence[Remote], failures: Failures) -> bool:
        if part.have == wanted.size and part.digest() == wanted.digest:
            return True  # an empty object, or a leftover that was complete
        piece = Piece(0, wanted.size, wanted.size, wanted.grows)
        return self._try(
            wanted.path, piece, part, lambda: require_digest(part.digest(), wanted.digest), places, failures
        )

    def _try(
        self,
        path: str,
        piece: Piece,
        sink: Sink,
        check: Callable[[], object],
        places: Sequence[Remote],
        failures: Failures,
    ) -> bool:
        for place in places:
            failures.next_place()
            try:
                self._from(place, path, piece, sink, check)
                return True
            except Unavailable as error:
                failures.add(error)
            except BadArtifact as error:
                failures.add(error)
                self._forget(sink)
        return False

    def _from(self, place: Remote, path: str, piece: Piece, sink: Sink, check: Callable[[], object]) -> None:
        """Fill the sink from one place; a wrong digest counts against it only if all bytes are its own.

        Put together from a leftover, another place or another moment, they say little: once more, from 0.
        """
        for again in (False, True):
            seen = self.transfer.run(place, path, piece, sink)
            try:
                check()
                return
            except BadArtifact as error:
                if again or not sink.resumed:
                    raise _blame(seen, place.show(path), error) from None
            self.progress.note(f"{place.show(path)}: the resumed bytes are wrong; starting again from 0")
            self._forget(sink)

    def _forget(self, sink: Sink) -> None:
        self.progress.advance(-sink.have)
        sink.restart()


def require_digest(found: Digest, wanted: Digest) -> None:
    """BadArtifact with both digests in full when they differ."""
    if found != wanted:
        raise BadArtifact(f"digest {found}, but {wanted} was declared")


def require_content(data: bytes, wanted: Digest) -> None:
    """BadArtifact when the BLAKE3 of `data` is not `wanted`."""
    require_digest(content_digest(data), wanted)


def _blame(seen: Seen, shown: str, error: BadArtifact) -> AuditkitError:
    wrong = seen.wrong(f"{shown}: {error.message}")
    wrong.hint = wrong.hint or error.hint
    return wrong
