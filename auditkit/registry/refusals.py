"""Why a request is not done, beyond the errors that commands have too: each leads to one HTTP status."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from auditkit.errors import AuditkitError, Unavailable, UsageError
from auditkit.verdict import Verdict

ERROR_FORMAT = "auditkit/error/v1"

STATUS = {
    Verdict.USAGE: 400,
    Verdict.BAD_ARTIFACT: 400,
    Verdict.UNTRUSTED: 403,
    Verdict.UNSUPPORTED: 422,
    Verdict.UNAVAILABLE: 503,
}


class TooMany(Unavailable):
    """more than the registry takes at a time; `seconds` is when it will take more"""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message, hint="try again later")
        self.seconds = max(1, math.ceil(seconds))


class NotFound(Unavailable):
    """there is no such thing here"""


class NotAllowed(UsageError):
    """the method, the type or the size of a request is not one that the registry takes; `status` says which"""

    def __init__(self, message: str, status: int, *, hint: str = "", headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status, self.headers = status, dict(headers or {})


class TooSlow(Unavailable):
    """the request did not come in time"""


def failure(error: AuditkitError) -> dict[str, Any]:
    """The JSON object of a failure: verdict, exit code, message, hint."""
    return {
        "format": ERROR_FORMAT,
        "verdict": error.verdict.name,
        "code": error.verdict.code,
        "message": error.message,
        "hint": error.hint,
    }


def status_of(error: AuditkitError) -> int:
    """The HTTP status of a failure."""
    if isinstance(error, NotAllowed):
        return error.status
    for kind, status in ((TooMany, 429), (NotFound, 404), (TooSlow, 408)):
        if isinstance(error, kind):
            return status
    return STATUS.get(error.verdict, 500)
