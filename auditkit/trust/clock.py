"""How far ahead of the reader's clock an auditor's may be: of one key's words the latest decides."""

from __future__ import annotations

from auditkit.errors import Untrusted
from auditkit.formats.times import time_text

AHEAD_SECONDS = 3600


def latest(now: float) -> float:
    """The latest finish time, in seconds since 1970, that a reader believes whose clock says `now`."""
    return now + AHEAD_SECONDS


def refusal(finished: int) -> Untrusted:
    """The error for an attestation that was finished later than `latest`."""
    message = f"finished {time_text(finished)}, which is in the future: more than an hour ahead of the clock here"
    return Untrusted(message, hint="is the auditor's clock right, and the one here?")


def check_finished(finished: int, now: float) -> None:
    """Untrusted unless a reader whose clock says `now` believes the finish time (seconds since 1970)."""
    if finished > latest(now):
        raise refusal(finished)
