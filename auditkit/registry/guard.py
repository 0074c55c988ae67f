"""What surrounds every request: the address's rate, a time for the whole answer, headers, and errors as JSON."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from auditkit.errors import AuditkitError, Unavailable
from auditkit.registry.answers import error_answer
from auditkit.registry.buckets import Buckets, address_name
from auditkit.registry.leftover import Body
from auditkit.registry.limits import RegistryLimits
from auditkit.registry.refusals import NotAllowed, NotFound, TooMany

# Data is public, so pages of others may read it; nothing here is to be run, framed or guessed at.
_HEADERS = (
    (b"access-control-allow-origin", b"*"),
    (b"cache-control", b"no-store"),
    (b"cross-origin-resource-policy", b"cross-origin"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
)

_log = logging.getLogger("auditkit.registry")


class Guard:
    """An ASGI layer around the application."""

    def __init__(self, app: ASGIApp, limits: RegistryLimits, now: Callable[[], float]) -> None:
        self._app, self._limits, self._head_bytes = app, limits, limits.head_bytes
        self._requests = Buckets(limits.requests_per_second, limits.requests_burst, limits.addresses, now)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun, body = False, Body(scope, receive, self._limits)

        async def with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                await body.drop()
                given = {name for name, _ in message["headers"]}
                message["headers"] = [*message["headers"], *(item for item in _HEADERS if item[0] not in given)]
            await send(message)

        try:
            async with asyncio.timeout(self._limits.answer_seconds):
                refused = self._refused(scope)
                app = error_answer(refused) if refused else self._app
                await app(scope, body.receive, with_headers)
        except TimeoutError:
            if not begun:
                await error_answer(Unavailable("the answer took too long"))(scope, receive, with_headers)

    def _refused(self, scope: Scope) -> AuditkitError | None:
        """Why a request is not even looked at."""
        wait = self._requests.take(address_of(scope))
        if wait:
            return TooMany("too many requests from this address", wait)
        # The HTTP parser bounds a head that is incomplete, and not one that comes in one piece.
        head = len(scope["path"]) + len(scope["query_string"])
        head += sum(len(name) + len(value) for name, value in scope["headers"])
        if head > self._head_bytes:
            return NotAllowed(f"a request head of more than {self._head_bytes} bytes", 431)
        return None


def address_of(scope: Scope) -> str:
    """The name of the client's address, under which its rates are kept."""
    client = scope.get("client")
    return address_name(client[0]) if client else "unknown"


def handlers() -> dict[Any, Callable[[Request, Any], Awaitable[Response]]]:
    """What answers instead of an exception."""
    return {AuditkitError: _expected, HTTPException: _routing, Exception: _bug}


async def _expected(_: Request, error: AuditkitError) -> Response:
    return error_answer(error)


async def _routing(request: Request, error: HTTPException) -> Response:
    if error.status_code == 404:
        return error_answer(NotFound("there is nothing of that address here", hint="docs/registry.md lists what is"))
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        message = f"the method {request.method[:20]} is not allowed here"
        return error_answer(NotAllowed(message, 405, headers={"Allow": allowed}))
    return error_answer(NotAllowed(error.detail.lower().rstrip("."), error.status_code))


async def _bug(_: Request, error: Exception) -> Response:
    _log.error("internal error", exc_info=error)
    return error_answer(AuditkitError("internal error", hint="the operator's log has more"))
