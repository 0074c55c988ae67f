"""Hand something to a server that may be given it any number of times: tried again while the trouble may pass."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from auditkit.errors import BadArtifact, Unavailable
from auditkit.store.http import REDIRECTS, Again, Http, words
from auditkit.store.limits import StoreLimits
from auditkit.store.progress import Clock, Progress
from auditkit.store.source import redact
from auditkit.store.transfer import PASSING
from auditkit.store.waiting import Rate, Tries, retry_after

if TYPE_CHECKING:
    import httpx

LONGEST_SECONDS = 600.0  # a server that is busy for longer says something about more than this moment


@dataclass(frozen=True)
class Answer:
    """Status and body of an answer; not one that may soon pass by waiting, nor a redirect."""

    status: int
    body: bytes


class Poster:
    """Posts through `http`; one at a time in a thread, any number of threads."""

    def __init__(self, http: Http, limits: StoreLimits, progress: Progress, clock: Clock) -> None:
        self._http, self._limits, self._progress, self._clock = http, limits, progress, clock

    def post(self, url: str, body: Callable[[], bytes], headers: Mapping[str, str], *, limit: int) -> Answer:
        """The answer, of at most `limit` bytes; `body` is asked for the bytes of each try.

        Also an answer that asks to come again after more than LONGEST_SECONDS. Unavailable when the tries are used up;
        BadArtifact if the answer is larger.
        """
        tries = Tries(self._limits)
        while True:
            try:
                return self._attempt(url, body(), headers, limit)
            except Again as again:
                seconds = tries.failed(gained=0, answered=again.answered, asked=again.asked)
                if seconds is None:
                    raise Unavailable(again.message, hint="what was sent may be sent again at any time") from None
                self._progress.note(f"{again.message}; trying again in {seconds:.3g} s")
                self._clock.sleep(seconds)

    def _attempt(self, url: str, body: bytes, headers: Mapping[str, str], limit: int) -> Answer:
        shown = redact(url)
        with self._http.post(url, body, headers) as response:
            status = response.status_code
            if status in REDIRECTS:
                raise Unavailable(f"{shown}: redirects, which is not followed", hint="name the place itself")
            asked = retry_after(response.headers.get("Retry-After"), now=self._clock.wall())
            if status in PASSING and (asked is None or asked <= LONGEST_SECONDS):
                raise Again(f"{shown}: the server answered {status}{_phrase(status)}", answered=True, asked=asked)
            return Answer(status, self._read(response, shown, limit))

    def _read(self, response: httpx.Response, shown: str, limit: int) -> bytes:
        import httpx

        data, rate = bytearray(), Rate(self._limits, self._clock)
        try:
            for chunk in response.iter_raw():
                data += chunk
                if len(data) > limit:
                    raise BadArtifact(f"{shown}: an answer of more than {limit:,} bytes")
                if rate.stalled(len(chunk)):
                    raise Again(f"{shown}: the answer is too slow", answered=True)
        except httpx.TransportError as error:
            raise Again(f"{shown}: {words(error)} within the answer", answered=True) from None
        return bytes(data)


def _phrase(status: int) -> str:
    # Not the server's own words: they could hold anything.
    return f" {HTTPStatus(status).phrase.lower()}" if status in HTTPStatus.__members__.values() else ""
