"""The client of a registry: hand attestations over, ask for steps. What a registry answers is material, not trusted.

Handing over is idempotent: an envelope is known by its SHA-256, so whatever was interrupted is simply done again.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from auditkit.errors import AuditkitError, BadArtifact, Unavailable, Untrusted, UsageError
from auditkit.formats import canonical
from auditkit.formats.canonical import Value, shown
from auditkit.formats.dsse import Envelope, Signature, pae
from auditkit.formats.fields import Fields
from auditkit.formats.lease import PAYLOAD_TYPE, LeaseRequest, Leases, registry_address
from auditkit.formats.limits import LIMITS
from auditkit.store import STORE_LIMITS, Clock, Progress, Silent, StoreLimits, SystemClock
from auditkit.store.http import Http
from auditkit.store.post import Answer, Poster
from auditkit.store.source import Remote
from auditkit.store.transfer import Transfer
from auditkit.trust.keys import PrivateKey, PublicKey
from auditkit.verdict import Verdict, worst

BATCH_ENVELOPES, BATCH_BYTES = 128, 4 * 1024 * 1024  # what a registry takes at once
ANSWER_BYTES = 1024 * 1024
LATER_SECONDS = 60  # what a registry may make us wait before an envelope is sent again
LATER_ROUNDS = 20  # how often it may say so of the same envelope
JSON, LINES = "application/json", "application/x-ndjson"
KEY_HEADER = "Auditkit-Key"


class Status(Enum):
    """What a registry did with an envelope."""

    TAKEN = "taken"
    KNOWN = "known"
    REFUSED = "refused"
    LATER = "later"


@dataclass(frozen=True)
class Result:
    """What became of an envelope from `place`: its place in the log, or why it is not there."""

    place: str
    envelope: str  # SHA-256; empty for what could not be read
    status: Status
    position: int = -1
    message: str = ""
    hint: str = ""
    unread: Verdict | None = None  # why it could not be read

    @property
    def verdict(self) -> Verdict:
        """MATCH for what the registry has, UNTRUSTED for what it refuses, `unread`, UNAVAILABLE for the rest."""
        if self.unread is not None:
            return self.unread
        return {Status.REFUSED: Verdict.UNTRUSTED, Status.LATER: Verdict.UNAVAILABLE}.get(self.status, Verdict.MATCH)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON values."""
        told = {"message": self.message, "hint": self.hint} if self.message else {"position": self.position}
        return {"place": self.place, "envelope": self.envelope, "status": self.status.value, **told}


@dataclass(frozen=True)
class Served:
    """A run that a registry serves."""

    run_id: str
    name: str
    size: int


class Registry:
    """A registry at an address; to be closed. Unavailable when it cannot be reached or does not speak as one."""

    def __init__(
        self,
        url: str,
        *,
        progress: Progress | None = None,
        clock: Clock | None = None,
        limits: StoreLimits = STORE_LIMITS,
    ) -> None:
        self.address = registry_address(url)
        self._progress, self._clock = progress or Silent(), clock or SystemClock()
        self._http = Http(limits)
        self._poster = Poster(self._http, limits, self._progress, self._clock)
        self._transfer = Transfer(self._http, limits, self._progress, self._clock)

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def submit(self, envelopes: Sequence[tuple[str, bytes]], keys: Sequence[PublicKey] = ()) -> list[Result]:
        """Hand envelopes over, each with the place it comes from; `keys` are brought along for an open registry.

        One result for each, in their order. Those that the registry could not take in time are LATER, and may be
        submitted again like all others. BadArtifact: the registry's answer is none.
        """
        headers = {"Content-Type": LINES, "Accept": JSON}
        if keys:
            headers[KEY_HEADER] = ",".join(base64.b64encode(key.raw).decode("ascii") for key in keys)
        results = [_local(place, data) for place, data in envelopes]
        left = [number for number, result in enumerate(results) if result.status is Status.LATER]
        self._progress.start("submission", len(left), "attestations")
        try:
            for _ in range(LATER_ROUNDS):
                seconds = 0
                for batch in _batches(left, envelopes):
                    found, wait = self._batch([envelopes[number] for number in batch], headers)
                    seconds = max(seconds, wait)
                    for number, result in zip(batch, found, strict=True):
                        results[number] = result
                self._progress.advance(len(left))
                left = [number for number in left if results[number].status is Status.LATER]
                self._progress.advance(-len(left))
                if not left:
                    break
                self._pause(results[left[0]].message, len(left), seconds)
        except Unavailable as error:
            for number in left:
                if results[number].status is Status.LATER:
                    results[number] = replace(results[number], message=error.message, hint=error.hint)
        finally:
            self._progress.finish()
        return results

    def submit_one(self, envelope: bytes, keys: Sequence[PublicKey] = ()) -> Result:
        """Hand one envelope over. Untrusted: it is refused; Unavailable: the registry could not take it in time."""
        (result,) = self.submit([("the attestation", envelope)], keys)
        if result.status is Status.REFUSED:
            raise Untrusted(f"{self.address}: {result.message}", hint=result.hint)
        if result.status is Status.LATER:
            raise Unavailable(result.message, hint=result.hint)
        return result

    def claim(self, key: PrivateKey, run_id: str, count: int) -> Leases:
        """Ask for `count` steps of a run.

        Untrusted: the registry refuses; Unavailable: not now; BadArtifact: its answer is none.
        """

        def request() -> bytes:  # each try with a nonce of its own: the one before may have been used
            now = int(self._clock.wall())
            return signed_request(LeaseRequest(self.address, run_id, count, now, secrets.token_hex(32)), key)

        headers = {"Content-Type": JSON, "Accept": JSON}
        headers[KEY_HEADER] = base64.b64encode(key.public.raw).decode("ascii")
        answer = self._poster.post(f"{self.address}/v1/leases", request, headers, limit=ANSWER_BYTES)
        if answer.status != 201:
            raise self._refusal(answer)
        leases = Leases.parse(answer.body)
        steps = {lease.step for lease in leases.leases}
        if leases.run_id != run_id or len(leases.leases) > count or len(steps) < len(leases.leases):
            raise BadArtifact(f"{self.address}: the leases are not for what was asked")
        return leases

    def runs(self) -> list[Served]:
        """The runs that the registry serves."""
        data = self._transfer.document(Remote(f"{self.address}/"), "v1/runs", ANSWER_BYTES)
        fields = Fields(self._json(data), "registry")
        if fields.raw("format") != "auditkit/registry/v1":
            raise BadArtifact(f"{self.address}: not a registry that is known here")
        rows = fields.rows("runs", 0, 4096)
        return [Served(r.digest("run"), r.text("name"), r.integer("steps", 1, LIMITS.steps)) for r in rows]

    def find(self, run: str | None) -> Served:
        """The run of that name or id; without one the only run. UsageError: there is none, or more than one."""
        served = self.runs()
        found = [item for item in served if run in (None, item.name, item.run_id)]
        if len(found) == 1:
            return found[0]
        names = ", ".join(f"{item.name} ({item.run_id[:8]})" for item in served) or "none"
        which = "a run must be named" if run is None else f"{len(found)} runs are called {shown(run)}"
        raise UsageError(f"{self.address}: {which}", hint=f"--run NAME or ID; its runs are: {names}")

    def _batch(self, batch: Sequence[tuple[str, bytes]], headers: dict[str, str]) -> tuple[list[Result], int]:
        """One request; what became of each envelope, and the seconds to wait for those that are taken later."""
        body = b"\n".join(data for _, data in batch)
        answer = self._poster.post(f"{self.address}/v1/attestations/batch", lambda: body, headers, limit=ANSWER_BYTES)
        if answer.status != 200:
            refused = self._refusal(answer)
            if isinstance(refused, Unavailable):
                raise refused
            return [_refused(place, data, refused) for place, data in batch], 0
        rows = Fields(self._json(answer.body), "registry").rows("results", len(batch), len(batch))
        found = [_result(row, place, data) for row, (place, data) in zip(rows, batch, strict=True)]
        return [result for result, _ in found], max(seconds for _, seconds in found)

    def _pause(self, message: str, count: int, asked: int) -> None:
        seconds = min(LATER_SECONDS, asked)
        self._progress.note(f"{self.address}: {message} ({count} attestations); trying again in {seconds} s")
        self._clock.sleep(seconds)

    def _refusal(self, answer: Answer) -> AuditkitError:
        """What a registry says that does not do what it is asked: its words, under a verdict of ours."""
        try:
            fields = Fields(self._json(answer.body), "registry")
            message, hint = _words(fields)
            passing = fields.raw("verdict") == Verdict.UNAVAILABLE.name
        except BadArtifact:
            return Unavailable(f"{self.address}: answered {answer.status}, and not as a registry does")
        if passing:
            return Unavailable(f"{self.address}: {message}", hint=hint)
        return Untrusted(f"the registry refuses: {message}", hint=hint)

    def _json(self, data: bytes) -> Value:
        return canonical.loads_relaxed(data, what=f"answer of {self.address}", limit=ANSWER_BYTES)


def signed_request(request: LeaseRequest, key: PrivateKey) -> bytes:
    """The envelope of a lease request."""
    payload = request.encode()
    signature = Signature(key.public.keyid, key.sign(pae(PAYLOAD_TYPE, payload)))
    return Envelope(PAYLOAD_TYPE, payload, (signature,)).encode()


def unread(place: str, error: AuditkitError) -> Result:
    """The result of what was never sent, because it could not be read at `place`."""
    message = f"not sent: {error.message}"
    return Result(place, "", Status.REFUSED, message=message, hint=error.hint, unread=error.verdict)


def overall(results: Iterable[Result]) -> Verdict:
    """The worst of the verdicts: MATCH when the registry has everything, INCOMPLETE when there was nothing."""
    return worst(result.verdict for result in results)


def _local(place: str, data: bytes) -> Result:
    """What is not an envelope is not sent; all else is to be sent."""
    envelope = hashlib.sha256(data).hexdigest()
    try:
        Envelope.parse(data)
    except BadArtifact as error:
        return Result(place, envelope, Status.REFUSED, message=f"not sent: {error.message}", hint=error.hint)
    return Result(place, envelope, Status.LATER, message="not sent yet")


def _refused(place: str, data: bytes, error: AuditkitError) -> Result:
    envelope = hashlib.sha256(data).hexdigest()
    return Result(place, envelope, Status.REFUSED, message=error.message, hint=error.hint)


def _batches(numbers: Sequence[int], envelopes: Sequence[tuple[str, bytes]]) -> Iterator[list[int]]:
    batch: list[int] = []
    size = 0
    for number in numbers:
        length = len(envelopes[number][1]) + 1
        if batch and (len(batch) == BATCH_ENVELOPES or size + length > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(number)
        size += length
    if batch:
        yield batch


def _result(fields: Fields, place: str, data: bytes) -> tuple[Result, int]:
    envelope = hashlib.sha256(data).hexdigest()
    status = Status(fields.choice("status", *(status.value for status in Status)))
    if status in (Status.TAKEN, Status.KNOWN):
        if fields.digest("envelope") != envelope:
            raise BadArtifact(f"the registry's answer is about another envelope than that of {place}")
        return Result(place, envelope, status, fields.integer("position")), 0
    message, hint = _words(fields)
    seconds = fields.integer("seconds", 1, 1 << 30) if fields.has("seconds") else 2
    return Result(place, envelope, status, message=message, hint=hint), seconds if status is Status.LATER else 0


def _words(fields: Fields) -> tuple[str, str]:
    """Message and hint of a failure, quoted where they are not plain text."""
    texts = [str(fields.raw(key))[:1000] for key in ("message", "hint")]
    message, hint = (text if text.isprintable() else shown(text) for text in texts)
    return message, hint
