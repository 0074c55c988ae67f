"""Bring one piece of a remote object into a sink: ranges, resume, retries; nothing the server says is taken on trust.

The digest, which the caller checks, decides in the end. Everything here is about not writing what cannot be right,
never writing more than was declared, and telling a wrong object from a bad line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from auditkit.errors import AuditkitError, BadArtifact, Unavailable
from auditkit.store.http import Again, Http, words
from auditkit.store.limits import StoreLimits
from auditkit.store.progress import Clock, Progress
from auditkit.store.source import Remote
from auditkit.store.waiting import Rate, Tries, retry_after

if TYPE_CHECKING:
    import httpx

# 501, 505 and 511 (a network that wants a login) do not pass by waiting.
PASSING = frozenset({408, 425, 429, *range(500, 600)}) - {501, 505, 511}
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)")


@dataclass(frozen=True)
class Piece:
    """Bytes `first` to `first` + `length` of an object of `total` bytes, all known beforehand.

    One that `grows` may have more bytes behind these by now, or a copy of it fewer.
    """

    first: int
    length: int
    total: int
    grows: bool = False

    @property
    def whole(self) -> bool:
        """Whether this is the whole object."""
        return self.length == self.total


class Sink(Protocol):
    """Where the bytes go. `have` bytes of the piece are there; `resumed`: they came in more than one answer."""

    have: int
    resumed: bool

    def write(self, data: bytes) -> None:
        """Append."""

    def restart(self) -> None:
        """Forget everything; `have` becomes 0."""


@dataclass
class Seen:
    """What the last answer said about itself, for the words of a later digest error."""

    kind: str = ""
    coding: str = ""

    def of(self, response: httpx.Response) -> None:
        """Take it from an answer."""
        self.kind = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        coding = response.headers.get("Content-Encoding", "").strip().lower()
        self.coding = "" if coding == "identity" else coding

    def wrong(self, message: str) -> AuditkitError:
        """The error for bytes that are not the object: Unavailable if the server coded them, else BadArtifact."""
        if self.coding:
            return Unavailable(
                f"{message} (the server applied Content-Encoding {self.coding} although identity was asked for)",
                hint="the server must send the files as they are stored",
            )
        html = self.kind in ("text/html", "application/xhtml+xml")
        hint = "the server sent a web page (a login or error page?) in place of the file" if html else ""
        return BadArtifact(message, hint=hint)


def _check_document(response: httpx.Response, shown: str) -> None:
    seen = Seen()
    seen.of(response)
    wrong = seen.wrong(f"{shown}: not the document asked for")
    if seen.coding or wrong.hint:
        raise wrong


class _Plain(Exception):
    """The server's handling of ranges cannot be used: ask once more for everything."""


class Transfer:
    """Fetches pieces through `http`; one at a time in a thread, any number of threads."""

    def __init__(self, http: Http, limits: StoreLimits, progress: Progress, clock: Clock) -> None:
        self._http, self._limits, self._progress, self._clock = http, limits, progress, clock

    def run(self, base: Remote, path: str, piece: Piece, sink: Sink) -> Seen:
        """Fill `sink` with `piece`, going on from what it has.

        Unavailable when the tries are used up or the server refuses (what was received stays in the sink); BadArtifact
        when the object there has another size.
        """
        tries, seen, plain = Tries(self._limits), Seen(), False
        while sink.have < piece.length:
            before = sink.have
            try:
                self._attempt(base, path, piece, sink, seen, plain)
            except _Plain:
                plain = True
            except Again as again:
                gained = sink.have - before
                self._wait(tries, again, gained=gained, answered=again.answered or gained > 0)
        return seen

    def document(self, base: Remote, path: str, limit: int) -> bytes:
        """A whole object of unknown size, at most `limit` bytes; its digest is not known, so the coding must be none.

        Unavailable when it cannot be had, BadArtifact when it is larger or a web page.
        """
        tries, shown = Tries(self._limits), base.show(path)
        while True:
            try:
                return self._read(base, path, shown, limit)
            except Again as again:
                self._wait(tries, again, gained=0, answered=again.answered)

    def _read(self, base: Remote, path: str, shown: str, limit: int) -> bytes:
        data = bytearray()
        with self._http.get(base.link(path), authorization=base.authorization, named_by=base.named_by) as response:
            if response.status_code != 200:
                raise self._refusal(response, shown)
            _check_document(response, shown)
            for chunk in self._chunks(response, shown, lambda: f"byte {len(data):,}"):
                data.extend(chunk)
                if len(data) > limit:
                    raise BadArtifact(f"{shown}: more than {limit:,} bytes")
        return bytes(data)

    def _wait(self, tries: Tries, again: Again, *, gained: int, answered: bool) -> None:
        seconds = tries.failed(gained=gained, answered=answered, asked=again.asked)
        if seconds is None:
            raise Unavailable(again.message)
        self._progress.note(f"{again.message}; trying again in {seconds:.3g} s")
        self._clock.sleep(seconds)

    def _attempt(self, base: Remote, path: str, piece: Piece, sink: Sink, seen: Seen, plain: bool) -> None:
        first, last = piece.first + sink.have, piece.first + piece.length - 1
        asked = None if plain or (first == 0 and piece.whole) else (first, last)
        shown = base.show(path)
        get = self._http.get
        with get(base.link(path), authorization=base.authorization, named_by=base.named_by, span=asked) as response:
            seen.of(response)
            if response.status_code == 206 and asked:
                _check_range(response, shown, piece, first, seen)
                sink.resumed = sink.resumed or sink.have > 0
                skip = 0
            elif response.status_code == 200:
                _check_length(response, shown, piece, seen)
                self._restart(sink)
                skip = piece.first
            elif response.status_code == 416 and asked:
                self._progress.note(f"{shown}: the server refused the range; asking for the whole file")
                raise _Plain
            else:
                raise self._refusal(response, shown)
            self._copy(response, shown, piece, sink, skip, seen)

    def _restart(self, sink: Sink) -> None:
        if sink.have:
            self._progress.advance(-sink.have)
            sink.restart()

    def _copy(self, response: httpx.Response, shown: str, piece: Piece, sink: Sink, skip: int, seen: Seen) -> None:
        for chunk in self._chunks(response, shown, lambda: f"byte {sink.have:,} of {piece.length:,}"):
            skip, chunk = max(0, skip - len(chunk)), chunk[skip:]
            room = piece.length - sink.have
            if len(chunk) > room and piece.whole and not piece.grows:
                raise seen.wrong(f"{shown}: longer than the {piece.total:,} bytes that the manifest declares")
            if chunk:
                sink.write(chunk[:room])
                self._progress.advance(min(len(chunk), room))
            if sink.have == piece.length and (piece.grows or not piece.whole):
                return  # a server that ignores ranges would go on to the end of the file
        if sink.have < piece.length:
            raise Again(f"{shown}: the answer ended at byte {sink.have:,} of {piece.length:,}", answered=True)

    def _chunks(self, response: httpx.Response, shown: str, where: Callable[[], str]) -> Iterator[bytes]:
        """The body as it comes, no coding undone; Again when the line breaks or is slower than the minimum rate."""
        import httpx

        rate = Rate(self._limits, self._clock)
        try:
            for chunk in response.iter_raw():
                if rate.stalled(len(chunk)):
                    floor = self._limits.rate_floor_bytes_per_second
                    raise Again(f"{shown}: slower than {floor:,} bytes a second at {where()}", answered=True)
                yield chunk
        except httpx.TransportError as error:
            raise Again(f"{shown}: {words(error)} at {where()}", answered=True) from None

    def _refusal(self, response: httpx.Response, shown: str) -> Exception:
        status = response.status_code
        message = f"{shown}: the server answered {status}{_phrase(status)}"
        if status in PASSING:
            asked = retry_after(response.headers.get("Retry-After"), now=self._clock.wall())
            return Again(message, answered=True, asked=asked)
        hint = "the place wants a login" if status in (401, 403, 407, 511) else ""
        return Unavailable(message, hint=hint)


def _phrase(status: int) -> str:
    # Not the server's own words: they could hold anything.
    return f" {HTTPStatus(status).phrase.lower()}" if status in HTTPStatus.__members__.values() else ""


def _check_length(response: httpx.Response, shown: str, piece: Piece, seen: Seen) -> None:
    declared = response.headers.get("Content-Length", "")
    if "Transfer-Encoding" not in response.headers and declared.isdigit():
        _check_total(int(declared), shown, piece, seen)


def _check_range(response: httpx.Response, shown: str, piece: Piece, first: int, seen: Seen) -> None:
    """The answer must be the bytes from `first` on, of an object of the declared size (RFC 9110 section 14.4)."""
    match = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", "").strip())
    if match is None or int(match[1]) != first or not first <= int(match[2]) < piece.first + piece.length:
        raise _Plain
    if match[3] != "*":
        _check_total(int(match[3]), shown, piece, seen)


def _check_total(found: int, shown: str, piece: Piece, seen: Seen) -> None:
    if found == piece.total or (piece.grows and found > piece.total):
        return
    message = f"{shown}: {found:,} bytes, but the manifest declares {piece.total:,}"
    if piece.grows and not seen.coding:
        raise Unavailable(message, hint="the copy there may be older than the manifest: try again later")
    raise seen.wrong(message)
