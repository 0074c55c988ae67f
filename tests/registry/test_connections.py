"""Connections that are slow, malformed or too many cost the registry little, and get an answer where they can."""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auditkit.errors import Unavailable, UsageError
from auditkit.registry import serve as server
from auditkit.registry.folder import init
from auditkit.registry.limits import REGISTRY_LIMITS
from auditkit.registry.protocol import Doors
from auditkit.registry.runs import KnownRun
from tests.registry.inprocess import ORIGIN, HandClock, Options, open_registry
from tests.registry.makers import Maker, key

LIMITS = replace(
    REGISTRY_LIMITS,
    head_seconds=0.5,
    body_seconds=0.5,
    answer_seconds=5.0,
    idle_seconds=1,
    connections=12,
    connections_per_address=8,
    log_seconds=0.0,
)
SECONDS = 30.0  # no test waits for longer
POST = b"POST /v1/attestations HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"


@pytest.fixture
def place(run: KnownRun, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """Address and port of a registry whose patience is short, served by a thread of this process."""
    init(tmp_path / "registry", ORIGIN)
    options = Options(limits=getattr(request, "param", LIMITS))
    registry = open_registry(tmp_path / "registry", run, options, HandClock(), [])
    listening = server.listen("127.0.0.1", 0)
    address = listening.getsockname()[:2]
    stop = threading.Event()
    original = server._Server.main_loop

    async def main_loop(self: Any) -> None:
        threading.Thread(target=lambda: (stop.wait(), self.stop()), daemon=True).start()
        await original(self)

    thread = threading.Thread(target=server.serve, args=(registry, listening))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server._Server, "main_loop", main_loop)
        thread.start()
        yield address
        stop.set()
        thread.join(SECONDS)
    assert not thread.is_alive()


def connect(place: tuple[str, int]) -> socket.socket:
    """A connection."""
    return socket.create_connection(place, timeout=SECONDS)


def to_the_end(connection: socket.socket) -> bytes:
    """All that the server says before it closes."""
    data = b""
    while True:
        try:
            part = connection.recv(65536)
        except ConnectionError:
            return data
        if not part:
            return data
        data += part


def answer(data: bytes) -> tuple[int, dict[str, Any]]:
    """Status and JSON of an answer that is all there."""
    head, _, body = data.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)


def test_a_head_that_does_not_end(place: tuple[str, int]) -> None:
    with connect(place) as connection:
        connection.sendall(b"GET /v1/runs HTTP/1.1\r\nHost: a\r\n")
        status, said = answer(to_the_end(connection))
        assert (status, said["verdict"]) == (408, "UNAVAILABLE")


def test_a_head_that_trickles(place: tuple[str, int]) -> None:
    with connect(place) as connection:
        began = time.monotonic()
        with pytest.raises(OSError):
            connection.sendall(b"GET / HTTP/1.1\r\n")
            while time.monotonic() < began + SECONDS:
                connection.sendall(b"X: y\r\n")
                time.sleep(0.05)


def test_a_head_that_trickles_behind_a_good_request(place: tuple[str, int]) -> None:
    with connect(place) as connection:
        connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert b"200 OK" in connection.recv(65536)
        began = time.monotonic()
        with pytest.raises(OSError):
            connection.sendall(b"GET / HTTP/1.1\r\n")
            while time.monotonic() < began + SECONDS:
                connection.sendall(b"X: y\r\n")
                time.sleep(0.05)


def test_silence_before_and_after_a_request(place: tuple[str, int]) -> None:
    with connect(place) as connection:
        assert answer(to_the_end(connection))[0] == 408
    with connect(place) as connection:
        connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: a\r\n\r\n")
        assert to_the_end(connection).count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("sent", [b"", b'{"pay'])
def test_a_body_that_does_not_come(place: tuple[str, int], sent: bytes) -> None:
    head = POST + b"Content-Length: 100\r\n\r\n"
    with connect(place) as connection:
        connection.sendall(head + sent)
        status, said = answer(to_the_end(connection))
        assert (status, said["message"]) == (408, "the body did not come within 0.5 s")


@pytest.mark.parametrize("megabytes", [1, 6])
@pytest.mark.parametrize(
    ("path", "kind", "status"),
    [
        ("/v1/attestations", "application/json", 413),
        ("/v1/leases", "application/json", 413),
        ("/v1/attestations", "text/plain", 415),
        ("/v1/health", "application/json", 405),
        ("/nothing", "application/json", 404),
    ],
)
@pytest.mark.parametrize("place", [replace(LIMITS, body_seconds=20.0, answer_seconds=30.0)], indirect=True)
def test_who_sends_the_whole_body_first_sees_why_it_is_refused(
    place: tuple[str, int], path: str, kind: str, status: int, megabytes: int
) -> None:
    """urllib closes after each request and reads nothing before all is sent."""
    url = f"http://{place[0]}:{place[1]}{path}"
    request = urllib.request.Request(url, b"x" * (megabytes << 20), {"Content-Type": kind})
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=SECONDS)
    with refused.value as said:
        assert (said.code, json.loads(said.read())["code"]) == (status, 5 if status == 404 else 2)


@pytest.mark.parametrize(
    "line", [b"Content-Length: 900000000\r\n", b"Content-Length: 70000\r\nExpect: 100-continue\r\n"]
)
@pytest.mark.parametrize("place", [replace(LIMITS, body_seconds=3600.0, answer_seconds=3600.0)], indirect=True)
def test_a_body_that_is_not_dropped_is_refused_before_it_comes(place: tuple[str, int], line: bytes) -> None:
    with connect(place) as connection:
        connection.sendall(POST + line + b"\r\n")
        assert answer(to_the_end(connection))[0] == 413


def test_a_refused_body_is_waited_for_no_longer_than_any_other(place: tuple[str, int]) -> None:
    with connect(place) as connection:
        connection.sendall(POST + b"Content-Length: 70000\r\n\r\n" + b"x" * 1000)
        assert answer(to_the_end(connection))[0] == 413


def test_a_body_without_an_end(place: tuple[str, int]) -> None:
    head = POST + b"Transfer-Encoding: chunked\r\n\r\n"
    with connect(place) as connection:
        connection.sendall(head)
        data = b""
        try:
            for _ in range(10_000):
                connection.sendall(b"1000\r\n" + b"x" * 4096 + b"\r\n")
        except OSError:
            data = to_the_end(connection)
        assert data == b"" or answer(data)[0] == 413
    assert alive(place)


@pytest.mark.parametrize(
    "garbage",
    [
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET  HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 300_000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nBad Header: a\r\n\r\n",
    ],
)
def test_what_is_no_request(place: tuple[str, int], garbage: bytes) -> None:
    with connect(place) as connection:
        try:
            connection.sendall(garbage)
            data = to_the_end(connection)
        except ConnectionError:
            data = b""
        if data:  # the rest of a long head may have met a connection that was closed already
            status, said = answer(data)
            assert (status, said["verdict"]) in ((400, "BAD_ARTIFACT"), (431, "USAGE"))
    assert alive(place)


def test_an_upgrade_is_ignored(place: tuple[str, int]) -> None:
    with connect(place) as connection:
        upgrade = (
            b"Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Key: a\r\nSec-WebSocket-Version: 13\r\n"
        )
        connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: a\r\n" + upgrade + b"\r\n")
        assert to_the_end(connection).startswith(b"HTTP/1.1 200")


def test_requests_in_one_go(place: tuple[str, int]) -> None:
    with connect(place) as connection:
        connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: a\r\n\r\n" * 5)
        assert to_the_end(connection).count(b"HTTP/1.1 200") == 5


@pytest.mark.parametrize("place", [replace(LIMITS, head_seconds=SECONDS)], indirect=True)
def test_too_many_connections_of_an_address(place: tuple[str, int]) -> None:
    held = [connect(place) for _ in range(LIMITS.connections_per_address)]
    with connect(place) as connection:
        assert to_the_end(connection) == b""  # closed at once, without a word
    for connection in held:
        connection.close()
    until = time.monotonic() + SECONDS
    while not alive(place) and time.monotonic() < until:
        time.sleep(0.02)
    assert alive(place)


def test_who_goes_away_leaves_no_place_taken(place: tuple[str, int], maker: Maker) -> None:
    envelope = maker.signed(1, key(1))
    head = POST + b"Content-Length: %d\r\n\r\n" % len(envelope)
    for cut in (5, 60, len(head), len(head) + 100, len(head) + len(envelope)) * 8:
        with connect(place) as connection:
            connection.sendall((head + envelope)[:cut])
    time.sleep(0.2)
    assert alive(place)


def alive(place: tuple[str, int]) -> bool:
    """Whether the registry answers as usual."""
    with connect(place) as connection:
        connection.sendall(b"GET /v1/health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        return to_the_end(connection).startswith(b"HTTP/1.1 200")


def test_doors_count_by_customer_and_let_a_proxy_through() -> None:
    doors = Doors(replace(LIMITS, connections=5, connections_per_address=2), frozenset({"127.0.0.1"}))
    assert [doors.enter("2001:db8::1"), doors.enter("2001:db8::2"), doors.enter("2001:db8::3")] == [True, True, False]
    assert [doors.enter("127.0.0.1") for _ in range(4)] == [True, True, True, False]
    doors.leave("2001:db8::1")
    assert doors.enter("2001:db8::9")
    assert not doors.enter("192.0.2.1")


def test_listening_where_somebody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    with server.listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        assert server.addresses(first) == (f"http://127.0.0.1:{port}", f"http://localhost:{port}")
        with pytest.raises(Unavailable, match=f"cannot listen on 127.0.0.1 port {port}"):
            server.listen("127.0.0.1", port)

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror("no such host")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UsageError, match="'localhost:80' is not an address to listen on"):
        server.listen("localhost:80", 0)
