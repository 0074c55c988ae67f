"""Where connections really went: a name may stand for another address by the time it is connected to than when it was
looked up, or than it did before (DNS rebinding). So the address at the other end is judged, before anything is sent.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from auditkit.errors import Unavailable

Hook = Callable[[str, dict[str, Any]], None]


class Peers:
    """The hosts that were found outside; `is_inside` tells it of an address."""

    def __init__(self, is_inside: Callable[[str], bool]) -> None:
        self._is_inside, self._lock = is_inside, threading.Lock()
        self._outside: set[str] = set()

    def was_outside(self, host: str) -> bool:
        """Whether a direct connection to this host went outside."""
        with self._lock:
            return host in self._outside

    def trace(self, host: str, shown: str, stay: bool, more: Hook) -> Hook:
        """The hook of httpcore for one direct request, which hands all on to `more`.

        It raises Unavailable and closes the connection where that goes inside, if it must `stay` outside, or if this
        host was outside before.
        """

        def hook(event: str, info: dict[str, Any]) -> None:
            if event.endswith("connect_tcp.complete"):
                self._judge(host, shown, stay, info["return_value"])
            more(event, info)

        return hook

    def _judge(self, host: str, shown: str, stay: bool, stream: Any) -> None:
        try:
            peer = stream.get_extra_info("server_addr")
        except OSError as error:  # it was reset meanwhile
            import httpcore  # as late as httpx in http.py

            stream.close()
            raise httpcore.ConnectError(str(error)) from error
        if not self._is_inside(str(peer[0])):
            with self._lock:
                self._outside.add(host)
        elif stay or self.was_outside(host):
            stream.close()
            raise Unavailable(
                f"{shown}: leads into this machine or its own network and is not asked",
                hint="if it is meant, name it yourself: --artifacts",
            )
