"""What of a request's body was not read when its answer is ready.

A client that sends the whole body before it reads would meet a closed connection and never see why it was refused, so
the rest is read and dropped first: some of it, for some time.
"""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope

from auditkit.registry.limits import RegistryLimits


class Body:
    """The body of one request on its way in; its time begins now."""

    def __init__(self, scope: Scope, receive: Receive, limits: RegistryLimits) -> None:
        headers = Headers(scope=scope)
        length = headers.get("content-length", "")
        self._receive, self._most = receive, limits.dropped_bytes
        self._until = asyncio.get_running_loop().time() + limits.body_seconds
        self._is_left = "transfer-encoding" in headers or length.strip("0") != ""
        # Who asks first whether to send the body sends none that is refused; a body that is too long to be read to its
        # end delays the answer for nothing.
        is_asking = "expect" in headers
        self._is_hopeless = is_asking or (length.isdigit() and (len(length) > 15 or int(length) > self._most))

    async def receive(self) -> Message:
        """The next part, for the application."""
        message = await self._receive()
        self._is_left = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def drop(self) -> None:
        """Read what is left, as far as bytes and time allow."""
        if not self._is_left or self._is_hopeless:
            return
        dropped = 0
        try:
            async with asyncio.timeout_at(self._until):
                while self._is_left and dropped <= self._most:
                    dropped += len((await self.receive()).get("body", b""))
        except TimeoutError:
            return
