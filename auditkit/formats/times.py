"""Moments as text, "2026-01-02T03:04:05Z": UTC to the second, one spelling for each, so that texts sort as times do."""

from __future__ import annotations

import re
from datetime import UTC, datetime

from auditkit.errors import BadArtifact
from auditkit.formats.canonical import shown

_FORM = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")


def check_time(value: object, what: str) -> str:
    """`value` itself if it is a moment from 1970 to 9999; BadArtifact naming `what` otherwise."""
    seconds(value, what)
    return str(value)


def seconds(value: object, what: str = "time") -> int:
    """Seconds from 1970 (UTC, without leap seconds) to a moment; BadArtifact naming `what` if it is none."""
    if type(value) is not str or _FORM.fullmatch(value) is None:
        found = shown(value) if type(value) is str else type(value).__name__
        raise BadArtifact(f'{what}: {found} is not a time such as "2026-01-02T03:04:05Z"')
    try:
        found_at = datetime.fromisoformat(value)
    except ValueError:
        raise BadArtifact(f"{what}: {shown(value)} is not in the calendar") from None
    if found_at.year < 1970:
        raise BadArtifact(f"{what}: {shown(value)} is before 1970")
    return int(found_at.timestamp())


def time_text(at: float) -> str:
    """The moment `at` seconds after 1970, a part of a second dropped; BadArtifact before 1970 and after 9999."""
    try:
        moment = datetime.fromtimestamp(int(at), UTC)
    except (ValueError, OverflowError, OSError):
        raise BadArtifact(f"time: {at} seconds after 1970 is not in the calendar") from None
    return check_time(moment.strftime("%Y-%m-%dT%H:%M:%SZ"), "time")
