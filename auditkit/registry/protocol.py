"""Connections: not too many, and none that keeps a place by sending its request head slowly.

uvicorn waits for the end of a head without a limit, and answers what is not HTTP in plain text.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from auditkit.errors import AuditkitError, BadArtifact
from auditkit.registry.answers import error_answer
from auditkit.registry.buckets import address_name
from auditkit.registry.limits import RegistryLimits
from auditkit.registry.refusals import TooSlow


class Doors:
    """How many connections there are, in all and of each address; those of `exempt` addresses count in all only."""

    def __init__(self, limits: RegistryLimits, exempt: frozenset[str] = frozenset()) -> None:
        self.limits, self._exempt = limits, exempt
        self._open: Counter[str] = Counter()

    def enter(self, host: str) -> bool:
        """Whether one more is let in, which is then counted until `leave`."""
        name = address_name(host)
        of_address = self._open[name] < self.limits.connections_per_address or host in self._exempt
        if not of_address or self._open.total() >= self.limits.connections:
            return False
        self._open[name] += 1
        return True

    def leave(self, host: str) -> None:
        """One that was let in is gone."""
        name = address_name(host)
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]


class GuardedProtocol(H11Protocol):
    """One connection; `protocol` makes the class whose `doors` it goes through."""

    doors: Doors

    _timer: asyncio.TimerHandle | None = None
    _host: str | None = None  # set while it counts

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count it, or close it at once."""
        super().connection_made(transport)
        host = self.client[0] if self.client else ""
        if not self.doors.enter(host):
            transport.abort()
            return
        self._host = host
        self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        """It no longer counts."""
        self._disarm()
        if self._host is not None:
            self.doors.leave(self._host)
            self._host = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """The time for a head begins with its first byte and ends with its last."""
        if self._is_between():
            self._arm()
        super().data_received(data)
        if not self._is_between():
            self._disarm()

    def on_response_complete(self) -> None:
        """The next request may be there already."""
        super().on_response_complete()
        if not self._is_between():
            self._disarm()

    def send_400_response(self, msg: str) -> None:
        """What answers bytes that are no request."""
        self._close_with(BadArtifact("not a valid http request, or a head that is too long"))

    def _is_between(self) -> bool:
        """Whether no request is under way, so that a head is expected."""
        return self.cycle is None or self.cycle.response_complete

    def _arm(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(self.doors.limits.head_seconds, self._late)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if not self.transport.is_closing() and self._is_between():
            self._close_with(TooSlow(f"no complete request head within {self.doors.limits.head_seconds:g} s"))

    def _close_with(self, error: AuditkitError) -> None:
        """Answer without a request, and close."""
        answer = error_answer(error)
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            status = answer.status_code
            headers: list[Any] = [h for h in answer.raw_headers if h[0] != b"connection"] + [(b"connection", b"close")]
            self.transport.write(self.conn.send(h11.Response(status_code=status, headers=headers)) or b"")
            self.transport.write(self.conn.send(h11.Data(data=bytes(answer.body))) or b"")
            self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")
        self.transport.close()


def protocol(doors: Doors) -> type[GuardedProtocol]:
    """The class of connections that go through `doors`."""
    return type("Guarded", (GuardedProtocol,), {"doors": doors})
