"""What the registry answers: JSON of one form for every failure, with the verdict that a command would end with."""

from __future__ import annotations

import json
from collections.abc import Mapping

from starlette.responses import Response

from auditkit.errors import AuditkitError
from auditkit.registry.refusals import NotAllowed, TooMany, TooSlow, failure, status_of

JSON = "application/json"


def json_answer(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """One JSON object on one line, ASCII only."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False) + "\n"
    return Response(text.encode("ascii"), status, headers, JSON)


def error_answer(error: AuditkitError) -> Response:
    """A failure as an answer; with Retry-After where waiting helps."""
    headers: dict[str, str] = {}
    if isinstance(error, NotAllowed):
        headers = error.headers
    if isinstance(error, TooMany):
        headers = {"Retry-After": str(error.seconds)}
    elif status_of(error) == 503:
        headers = {"Retry-After": "2"}
    if isinstance(error, (TooSlow, NotAllowed)):
        # The rest of the request may still be on its way: it must not be taken for another request.
        headers = {**headers, "Connection": "close"}
    return json_answer(failure(error), status_of(error), headers)
