"""Cut connections when the head of an answer does not end in time.

The read time-out of httpx starts anew with every byte, so a server could hold us for ever with one byte at a time.
"""

from __future__ import annotations

import socket
import threading
import weakref
from typing import Any


class Streams:
    """The open connections of one client, noted as httpcore's `trace` extension reports them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: weakref.WeakSet[Any] = weakref.WeakSet()

    def trace(self, event: str, info: dict[str, Any]) -> None:
        """The hook that httpcore calls."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            with self._lock:
                self._open.add(info["return_value"])

    def cut(self) -> None:
        """Shut every connection down, so that a thread that reads from one wakes up with an error."""
        with self._lock:
            streams = list(self._open)
        for stream in streams:
            connection = stream.get_extra_info("socket")
            if isinstance(connection, socket.socket):
                try:
                    # Not SSLSocket.shutdown: it takes the TLS object away from under the thread that reads.
                    socket.socket.shutdown(connection, socket.SHUT_RDWR)
                except OSError:
                    continue  # closed already


class HeadWatch:
    """A context in which the head of an answer must arrive within `seconds`; `fired` tells that it did not."""

    def __init__(self, streams: Streams, seconds: float) -> None:
        self.fired, self._streams = False, streams
        self._timer = threading.Timer(seconds, self._fire)
        self._timer.daemon = True

    def __enter__(self) -> HeadWatch:
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _fire(self) -> None:
        self.fired = True
        self._streams.cut()
