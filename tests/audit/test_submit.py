"""The client of a registry against servers that are busy, lying, slow or gone: what is told is what is so."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from auditkit.audit.submit import LATER_ROUNDS, Registry, Result, Status, overall
from auditkit.errors import AuditkitError, BadArtifact, Unavailable, Untrusted, UsageError
from auditkit.formats.dsse import Envelope
from auditkit.formats.lease import PAYLOAD_TYPE, LeaseRequest, Leases
from auditkit.store import STORE_LIMITS
from auditkit.trust.envelope import sign_payload, signer
from auditkit.trust.keys import PrivateKey
from auditkit.verdict import Verdict

KEY = PrivateKey(bytes([1]) * 32)
RUN = "ab" * 32
LIMITS = replace(STORE_LIMITS, connect_seconds=5.0, silence_seconds=5.0, answer_seconds=5.0)

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Asked:
    """One request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Server:
    """A server that answers by a function of the request; `asked` is what it was asked."""

    answer: Callable[[Asked], Answer]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)


@contextmanager
def serving(answer: Callable[[Asked], Answer]) -> Iterator[Server]:
    """A server on 127.0.0.1 for the block."""
    found = Server(answer)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
            headers = {name.lower(): value for name, value in self.headers.items()}
            asked = Asked(self.command, self.path, headers, body)
            found.asked.append(asked)
            status, extra, data = found.answer(asked)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **extra}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            """Silence."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield found
        finally:
            server.shutdown()


class Waits:
    """A clock that stands; what it was asked to wait is noted."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def now(self) -> float:
        """Always the same."""
        return 0.0

    def wall(self) -> float:
        """Always the same."""
        return 1_750_000_000.0

    def sleep(self, seconds: float) -> None:
        """Note it."""
        self.waits.append(seconds)


def envelopes(count: int, size: int = 10) -> list[tuple[str, bytes]]:
    """Envelopes of good form, each from a place of its own."""
    return [
        (f"file {n}", sign_payload(b"x" * size + str(n).encode(), "text/plain", KEY).encode()) for n in range(count)
    ]


def submit(server: Server | str, items: list[tuple[str, bytes]], clock: Waits | None = None) -> list[Result]:
    """Hand them over."""
    url = server if isinstance(server, str) else server.url
    with Registry(url, clock=clock or Waits(), limits=LIMITS) as client:
        return client.submit(items)


def receipts(asked: Asked, status: str = "taken") -> list[dict[str, Any]]:
    """What an honest registry answers."""
    return [
        {"status": status, "envelope": hashlib.sha256(line).hexdigest(), "position": n}
        for n, line in enumerate(asked.body.split(b"\n"))
    ]


def told(results: list[dict[str, Any]]) -> Answer:
    """As the answer of a registry."""
    return 200, {}, json.dumps({"format": "auditkit/registry-results/v1", "results": results}).encode()


FAILURE = {"verdict": "UNTRUSTED", "code": 8, "message": "no such key", "hint": "ask for it"}
BUSY = json.dumps({**FAILURE, "verdict": "UNAVAILABLE"}).encode()


def honest(asked: Asked) -> Answer:
    """Takes everything."""
    return told(receipts(asked))


def test_everything_is_handed_over_in_batches() -> None:
    items = envelopes(300)
    with serving(honest) as server:
        results = submit(server, items)
    assert [result.status for result in results] == [Status.TAKEN] * 300
    assert [result.place for result in results] == [place for place, _ in items]
    assert [len(asked.body.split(b"\n")) for asked in server.asked] == [128, 128, 44]
    assert {asked.path for asked in server.asked} == {"/v1/attestations/batch"}
    assert {asked.headers["content-type"] for asked in server.asked} == {"application/x-ndjson"}
    assert overall(results) is Verdict.MATCH


def test_a_batch_is_no_larger_than_a_registry_takes() -> None:
    with serving(honest) as server:
        submit(server, envelopes(120, 40_000))
    assert all(len(asked.body) <= 4 * 1024 * 1024 for asked in server.asked)
    assert len(server.asked) == 2


def test_taken_known_and_refused_are_told_apart() -> None:
    def mixed(asked: Asked) -> Answer:
        found = receipts(asked)
        found[1]["status"] = "known"
        found[2] = {**FAILURE, "status": "refused"}
        return told(found)

    with serving(mixed) as server:
        results = submit(server, envelopes(3))
    assert [result.status for result in results] == [Status.TAKEN, Status.KNOWN, Status.REFUSED]
    assert (results[2].message, results[2].hint) == ("no such key", "ask for it")
    assert overall(results) is Verdict.UNTRUSTED
    assert results[0].to_dict()["position"] == 0
    assert results[2].to_dict()["message"] == "no such key"


def test_what_is_no_envelope_is_not_sent() -> None:
    good = envelopes(1)
    with serving(honest) as server:
        results = submit(server, [("a", b"{}\n{}"), *good, ("b", b"")])
    assert [result.status for result in results] == [Status.REFUSED, Status.TAKEN, Status.REFUSED]
    assert results[0].message.startswith("not sent: envelope")
    assert [asked.body for asked in server.asked] == [good[0][1]]


def test_a_busy_registry_is_tried_again_when_it_says() -> None:
    clock, answers = Waits(), [(503, {"Retry-After": "7"}, b""), (429, {"Retry-After": "590"}, b""), (502, {}, b"")]

    def busy(asked: Asked) -> Answer:
        return answers.pop(0) if answers else honest(asked)

    with serving(busy) as server:
        results = submit(server, envelopes(2), clock)
    assert [result.status for result in results] == [Status.TAKEN] * 2
    assert clock.waits == [7.0, LIMITS.retry_after_seconds, 2.0]
    assert len({asked.body for asked in server.asked}) == 1


def test_what_is_taken_later_is_sent_again_and_nothing_else() -> None:
    clock, first = Waits(), True

    def later(asked: Asked) -> Answer:
        nonlocal first
        found = receipts(asked)
        if first:
            found[1] = {**FAILURE, "status": "later", "message": "too many", "seconds": 9}
        first = False
        return told(found)

    items = envelopes(3)
    with serving(later) as server:
        results = submit(server, items, clock)
    assert [result.status for result in results] == [Status.TAKEN] * 3
    assert clock.waits == [9]
    assert server.asked[1].body == items[1][1]


def test_one_at_a_time() -> None:
    ((_, data),) = envelopes(1)
    with serving(honest) as server, Registry(server.url, limits=LIMITS) as client:
        assert client.submit_one(data).status is Status.TAKEN
    with serving(lambda _: (403, {}, json.dumps(FAILURE).encode())) as server:
        with Registry(server.url, limits=LIMITS) as client, pytest.raises(Untrusted, match="no such key"):
            client.submit_one(data)
    with serving(lambda _: (503, {}, b"")) as server:
        with Registry(server.url, clock=Waits(), limits=LIMITS) as client, pytest.raises(Unavailable, match="503"):
            client.submit_one(data)


def test_a_registry_that_always_says_later_is_given_up_and_that_is_told() -> None:
    clock = Waits()

    def never(asked: Asked) -> Answer:
        return told([{**FAILURE, "status": "later", "message": "too many", "seconds": 10**6} for _ in receipts(asked)])

    with serving(never) as server:
        results = submit(server, envelopes(1), clock)
    assert (results[0].status, results[0].message) == (Status.LATER, "too many")
    assert clock.waits == [60] * LATER_ROUNDS
    assert overall(results) is Verdict.UNAVAILABLE


def test_a_registry_that_goes_away_in_the_middle() -> None:
    count = 0

    def dying(asked: Asked) -> Answer:
        nonlocal count
        count += 1
        return honest(asked) if count == 1 else (503, {}, b"")

    with serving(dying) as server:
        results = submit(server, envelopes(200))
    assert [result.status for result in results] == [Status.TAKEN] * 128 + [Status.LATER] * 72
    assert "503" in results[-1].message
    assert overall(results) is Verdict.UNAVAILABLE


def test_nobody_listens() -> None:
    results = submit("http://127.0.0.1:9", envelopes(2))
    assert {result.status for result in results} == {Status.LATER}
    assert overall(results) is Verdict.UNAVAILABLE


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (403, json.dumps(FAILURE).encode(), Status.REFUSED),
        (413, json.dumps(FAILURE).encode(), Status.REFUSED),
        (404, b"<html>nothing here</html>", Status.LATER),
        (302, b"", Status.LATER),
        (403, b"{}", Status.LATER),
    ],
)
def test_other_answers(status: int, body: bytes, expected: Status) -> None:
    with serving(lambda _: (status, {"Location": "http://127.0.0.1:9/"}, body)) as server:
        results = submit(server, envelopes(2))
    assert {result.status for result in results} == {expected}
    assert len(server.asked) == 1


LIES: dict[str, Callable[[Asked], Answer]] = {
    "no JSON": lambda _: (200, {}, b"taken"),
    "another number of results": lambda asked: told(receipts(asked)[1:]),
    "results of other envelopes": lambda asked: told(receipts(asked)[::-1]),
    "no status": lambda asked: told([{"position": 1} for _ in receipts(asked)]),
    "an unknown status": lambda asked: told([{**row, "status": "lost"} for row in receipts(asked)]),
    "no position": lambda asked: told([{**row, "position": "first"} for row in receipts(asked)]),
    "a list": lambda _: (200, {}, b"[]"),
    "very deep": lambda _: (200, {}, b"[" * 100_000),
    "very long": lambda _: (200, {}, b" " * (1 << 20) + b"{}"),
    "a wait that is none": lambda asked: told([{**FAILURE, "status": "later", "seconds": -1} for _ in receipts(asked)]),
}


@pytest.mark.parametrize("name", LIES)
def test_an_answer_that_is_none(name: str) -> None:
    with serving(LIES[name]) as server, pytest.raises(BadArtifact):
        submit(server, envelopes(2))


def test_a_registry_cannot_steer_the_terminal() -> None:
    def evil(asked: Asked) -> Answer:
        return told(
            [{**FAILURE, "status": "refused", "message": "\x1b[2Jall is fine\n" * 500} for _ in receipts(asked)]
        )

    with serving(evil) as server:
        (result,) = submit(server, envelopes(1))
    assert result.message.isprintable()
    assert len(result.message) <= 80


def test_keys_come_along() -> None:
    with serving(honest) as server, Registry(server.url, limits=LIMITS) as client:
        client.submit(envelopes(1), [KEY.public])
    assert server.asked[0].headers["auditkit-key"] == base64.b64encode(KEY.public.raw).decode("ascii")


def leases(run: str, *steps: int) -> Callable[[Asked], Answer]:
    """A registry that gives these steps."""
    rows = [{"expires": 1_750_003_600, "step": step} for step in steps]
    value = {"format": "auditkit/leases/v1", "held": len(rows), "leases": rows, "run": run}
    return lambda _: (201, {}, json.dumps(value, separators=(",", ":"), sort_keys=True).encode())


def claim(server: Server, count: int = 3) -> Leases:
    """Ask for steps."""
    with Registry(server.url + "/", clock=Waits(), limits=LIMITS) as client:
        return client.claim(KEY, RUN, count)


def test_a_claim_is_signed_for_this_registry_this_run_and_this_moment() -> None:
    with serving(leases(RUN, 7, 5)) as server:
        assert [lease.step for lease in claim(server).leases] == [7, 5]
        claim(server)
    requests = []
    for asked in server.asked:
        envelope = Envelope.parse(asked.body)
        signer(envelope, {KEY.public.keyid: KEY.public}, payload_type=PAYLOAD_TYPE)
        requests.append(LeaseRequest.parse(envelope.payload))
    assert {request.audience for request in requests} == {server.url}
    assert (requests[0].run_id, requests[0].count, requests[0].time) == (RUN, 3, 1_750_000_000)
    assert requests[0].nonce != requests[1].nonce
    # the private key stays here
    assert not any(b"\x01" * 32 in asked.body for asked in server.asked)


def test_each_try_of_a_claim_has_a_nonce_of_its_own() -> None:
    answers = [(503, {}, b""), (429, {"Retry-After": "5"}, b"")]
    with serving(lambda asked: answers.pop(0) if answers else leases(RUN, 7)(asked)) as server:
        assert len(claim(server).leases) == 1
    nonces = {LeaseRequest.parse(Envelope.parse(asked.body).payload).nonce for asked in server.asked}
    assert len(nonces) == len(server.asked) == 3


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (leases("cd" * 32, 1), BadArtifact),
        (leases(RUN, 1, 2, 3, 4), BadArtifact),
        (leases(RUN, 1, 1), BadArtifact),
        (leases(RUN, -1), BadArtifact),
        (lambda _: (201, {}, b"{}"), BadArtifact),
        (lambda _: (403, {}, json.dumps(FAILURE).encode()), Untrusted),
        (lambda _: (404, {}, b"nothing"), Unavailable),
        (lambda _: (503, {}, b""), Unavailable),
        (lambda _: (429, {"Retry-After": "3600"}, BUSY), Unavailable),
    ],
)
def test_claims_that_fail(answer: Callable[[Asked], Answer], error: type[AuditkitError]) -> None:
    with serving(answer) as server, pytest.raises(error):
        claim(server)


def runs(*found: tuple[str, str, int]) -> Callable[[Asked], Answer]:
    """A registry that serves these runs."""
    rows = [{"run": run, "name": name, "steps": steps} for run, name, steps in found]
    return lambda _: (200, {}, json.dumps({"format": "auditkit/registry/v1", "more": 1, "runs": rows}).encode())


def test_the_run_is_found_by_name_or_id_or_is_the_only_one() -> None:
    a, b = (RUN, "tiny", 8), ("cd" * 32, "large", 9)
    with serving(runs(a)) as server, Registry(server.url, limits=LIMITS) as client:
        assert client.find(None).run_id == client.find("tiny").run_id == client.find(RUN).run_id == RUN
        with pytest.raises(UsageError, match="0 runs are called"):
            client.find("other")
    with serving(runs(a, b)) as server, Registry(server.url, limits=LIMITS) as client:
        assert client.find("large").size == 9
        with pytest.raises(UsageError, match="a run must be named"):
            client.find(None)
    with serving(lambda _: (200, {}, b"{}")) as server, Registry(server.url, limits=LIMITS) as client:
        with pytest.raises(BadArtifact):
            client.find(None)
    with pytest.raises(UsageError):
        Registry("registry.example")
