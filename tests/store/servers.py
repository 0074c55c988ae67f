"""Small HTTP servers on 127.0.0.1, each with one behaviour: honest, forgetful of ranges, lying, dying, slow, busy."""

from __future__ import annotations

import gzip
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

CERTIFICATE = Path(__file__).with_name("localhost.pem")


@dataclass
class Asked:
    """One request as the server saw it; header names in lower case. `sent` counts the body's bytes it got rid of."""

    path: str
    query: str
    headers: dict[str, str]
    sent: int = 0

    @property
    def range(self) -> str:
        """The Range header, "" if there was none."""
        return self.headers.get("range", "")


class Handler(BaseHTTPRequestHandler):
    """Hands every GET to the behaviour of its server."""

    protocol_version = "HTTP/1.1"
    server: Server
    asked: Asked

    def do_GET(self) -> None:
        """One GET."""
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.asked = Asked(unquote(parts.path).lstrip("/"), parts.query, headers)
        self.server.asked.append(self.asked)
        with suppress(ConnectionError):
            self.server.behaviour(self, self.server.files.get(self.asked.path))

    def do_HEAD(self) -> None:
        """HEAD is refused: nobody may need it."""
        self.server.heads += 1
        self.head(405, {"Content-Length": "0"})

    def head(self, status: int, headers: dict[str, str]) -> None:
        """Status line and headers."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def body(self, data: bytes, *, piece: int = 65536, pause: float = 0.0) -> None:
        """Send `data` in pieces with a pause after each."""
        for at in range(0, len(data), piece):
            self.wfile.write(data[at : at + piece])
            self.asked.sent += len(data[at : at + piece])
            if pause:
                time.sleep(pause)

    def whole(self, data: bytes, status: int = 200, **headers: str) -> None:
        """An answer with everything."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        self.head(status, {"Content-Length": str(len(data)), **named})
        self.body(data)

    def cut(self) -> None:
        """Close the connection without more ado."""
        self.wfile.flush()
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        """Silence."""


Behaviour = Callable[[Handler, bytes | None], None]


class Server(ThreadingHTTPServer):
    """A running server: its address, the files it knows, and what it was asked."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, behaviour: Behaviour, files: dict[str, bytes], *, tls: bool = False) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.behaviour, self.files, self.scheme = behaviour, files, "https" if tls else "http"
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(CERTIFICATE)
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.asked: list[Asked] = []
        self.heads = 0

    @property
    def url(self) -> str:
        """Address, with a slash at the end."""
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


@contextmanager
def serve(behaviour: Behaviour, files: dict[str, bytes], *, tls: bool = False) -> Iterator[Server]:
    """A server for the block."""
    server = Server(behaviour, files, tls=tls)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def span(handler: Handler, size: int) -> tuple[int, int] | None:
    """First and last byte asked for; None without a Range header."""
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.asked.range)
    return (int(match[1]), min(int(match[2] or size - 1), size - 1)) if match else None


def honest(handler: Handler, data: bytes | None) -> None:
    """Ranges, 404, 416: what a good static server does."""
    if data is None:
        return handler.whole(b"not found", 404)
    asked = span(handler, len(data))
    if asked is None:
        return handler.whole(data, Accept_Ranges="bytes")
    first, last = asked
    if first >= len(data):
        return handler.whole(b"", 416, Content_Range=f"bytes */{len(data)}")
    return handler.whole(data[first : last + 1], 206, Content_Range=f"bytes {first}-{last}/{len(data)}")


def forgetful(handler: Handler, data: bytes | None) -> None:
    """Ignores Range: 200 and everything."""
    honest(handler, None) if data is None else handler.whole(data)


def instead(change: Callable[[bytes], bytes], then: Behaviour = honest) -> Behaviour:
    """Serves other bytes than it should."""
    return lambda handler, data: then(handler, None if data is None else change(data))


def flip(data: bytes, at: int = -1) -> bytes:
    """`data` with one bit of byte `at` turned."""
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


def ranged(content_range: Callable[[int, int, int], str], *, shift: int = 0) -> Behaviour:
    """Answers ranges with a Content-Range of its own (first, last, total) and bytes moved by `shift`."""

    def behave(handler: Handler, data: bytes | None) -> None:
        asked = span(handler, len(data or b""))
        if data is None or asked is None:
            return honest(handler, data)
        first, last = asked
        moved = data[max(0, first + shift) : last + 1 + shift]
        return handler.whole(moved, 206, Content_Range=content_range(first, last, len(data)))

    return behave


@dataclass
class Dying:
    """Honest heads, but after `pieces[i]` bytes of the i-th answer the line is cut; later answers are whole."""

    pieces: Sequence[int]
    ranges: bool = True
    answers: int = field(default=0, init=False)

    def __call__(self, handler: Handler, data: bytes | None) -> None:
        """One answer."""
        number, self.answers = self.answers, self.answers + 1
        if data is None or number >= len(self.pieces):
            return honest(handler, data) if self.ranges else forgetful(handler, data)
        first, last = (span(handler, len(data)) if self.ranges else None) or (0, len(data) - 1)
        part = data[first : last + 1]
        resumed = {"Content-Range": f"bytes {first}-{last}/{len(data)}"}
        handler.head(206 if first else 200, {"Content-Length": str(len(part)), **(resumed if first else {})})
        handler.body(part[: self.pieces[number]])
        return handler.cut()


@dataclass
class Busy:
    """Answers with these statuses first, then as `then` does."""

    statuses: Sequence[int]
    retry_after: str | None = None
    then: Behaviour = honest
    answers: int = field(default=0, init=False)

    def __call__(self, handler: Handler, data: bytes | None) -> None:
        """One answer."""
        number, self.answers = self.answers, self.answers + 1
        if number >= len(self.statuses):
            return self.then(handler, data)
        headers = {} if self.retry_after is None else {"Retry_After": self.retry_after}
        return handler.whole(b"later", self.statuses[number], **headers)


def slow(piece: int, pause: float) -> Behaviour:
    """Sends `piece` bytes, waits `pause` seconds, and so on; knows ranges."""

    def behave(handler: Handler, data: bytes | None) -> None:
        assert data is not None
        first, last = span(handler, len(data)) or (0, len(data) - 1)
        part, status = data[first : last + 1], 206 if handler.asked.range else 200
        headers = {"Content-Range": f"bytes {first}-{last}/{len(data)}"} if status == 206 else {}
        handler.head(status, {"Content-Length": str(len(part)), **headers})
        handler.body(part, piece=piece, pause=pause)

    return behave


def slow_head(pause: float) -> Behaviour:
    """Sends its head one byte at a time, and never ends it."""

    def behave(handler: Handler, data: bytes | None) -> None:
        for byte in b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000:
            handler.wfile.write(bytes([byte]))
            time.sleep(pause)

    return behave


def chunked(data_of: Callable[[bytes], bytes]) -> Behaviour:
    """No Content-Length: the body in chunks."""

    def behave(handler: Handler, data: bytes | None) -> None:
        assert data is not None
        handler.head(200, {"Transfer-Encoding": "chunked"})
        body = data_of(data)
        for at in range(0, len(body), 1000):
            part = body[at : at + 1000]
            handler.body(b"%x\r\n%s\r\n" % (len(part), part))
        handler.wfile.write(b"0\r\n\r\n")

    return behave


def until_close(handler: Handler, data: bytes | None) -> None:
    """Neither length nor chunks: the end of the connection is the end of the body."""
    assert data is not None
    handler.head(200, {"Connection": "close"})
    handler.body(data)
    handler.cut()


def coded(handler: Handler, data: bytes | None) -> None:
    """Applies gzip whatever was accepted."""
    assert data is not None
    handler.whole(gzip.compress(data, mtime=0), Content_Encoding="gzip")


def labelled(coding: str) -> Behaviour:
    """Says that the bytes are coded although they are sent as they lie on its disk."""

    def behave(handler: Handler, data: bytes | None) -> None:
        assert data is not None
        handler.whole(data, Content_Encoding=coding)

    return behave


def web_page(handler: Handler, data: bytes | None) -> None:
    """A login page with status 200 for everything."""
    handler.whole(b"<!doctype html><title>please log in</title>", Content_Type="text/html; charset=utf-8")


def redirecting(to: Callable[[Handler], str], status: int = 302) -> Behaviour:
    """Sends every request elsewhere."""
    return lambda handler, data: handler.whole(b"", status, Location=to(handler))


def garbage(handler: Handler, data: bytes | None) -> None:
    """Does not speak HTTP."""
    handler.wfile.write(b"220 ftp ready\r\n")
    handler.cut()
