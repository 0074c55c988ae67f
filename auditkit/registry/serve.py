"""Listen and serve until SIGTERM or Ctrl-C, then finish what is under way."""

from __future__ import annotations

import contextlib
import logging
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from types import FrameType

import uvicorn

from auditkit.errors import Unavailable, UsageError
from auditkit.registry.app import application
from auditkit.registry.protocol import Doors, protocol
from auditkit.registry.service import Registry
from auditkit.store.disk import reason

BACKLOG = 512
SWITCH_SECONDS = 0.0005


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. UsageError: no such address here; Unavailable: taken, or not allowed."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError, OverflowError):
        raise UsageError(
            f"{host!r} is not an address to listen on", hint="127.0.0.1, ::1, 0.0.0.0 or a host name"
        ) from None
    try:
        return socket.create_server((str(address[0]), port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {host} port {port}: {reason(error)}", hint="--port 0 takes a free one"
        ) from error


def addresses(sock: socket.socket) -> tuple[str, ...]:
    """The addresses by which a registry on this socket is called without a proxy before it."""
    host, port = sock.getsockname()[:2]
    place = f"[{host}]" if ":" in host else host
    names = (place, "localhost") if host in ("127.0.0.1", "::1") else (place,)
    return tuple(f"http://{name}" + ("" if port == 80 else f":{port}") for name in names)


def serve(registry: Registry, sock: socket.socket, *, proxies: tuple[str, ...] = ()) -> None:
    """Serve until a signal comes; `proxies` are addresses whose X-Forwarded-For is believed.

    Raises what ended the log's task, should it end by a bug.
    """
    limits = registry.setting.limits
    # Requests that are no HTTP are the sender's affair; what is ours comes through auditkit.registry.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)
    config = uvicorn.Config(
        application(registry),
        http=protocol(Doors(limits, frozenset(proxies))),
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies) or None,
        h11_max_incomplete_event_size=limits.head_bytes,
        timeout_keep_alive=limits.idle_seconds,
        timeout_graceful_shutdown=limits.stop_seconds,
    )
    server = _Server(config)
    registry.failed = server.stop
    # Verification computes beside the event loop, which gives the interpreter away at each call of a socket, and by
    # default would get it back only after 5 ms each time.
    sys.setswitchinterval(SWITCH_SECONDS)
    server.run(sockets=[sock])
    if registry.error is not None:
        raise registry.error


class _Server(uvicorn.Server):
    """uvicorn's server, for which a signal is an orderly end and not also the end of this process."""

    def stop(self) -> None:
        """Stop as after a signal."""
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle SIGINT and SIGTERM during the block; a second one no longer waits for requests under way."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._signalled) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _signalled(self, _number: int, _frame: FrameType | None) -> None:
        self.force_exit = self.should_exit
        self.should_exit = True
