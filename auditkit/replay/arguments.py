"""What a Python caller passed, checked by type before anything is done: a wrong type is a usage error in words."""

from __future__ import annotations

import os
from pathlib import Path

from auditkit.errors import UsageError

Place = str | os.PathLike[str]


def place(name: str, value: object) -> str | None:
    """A name, path or URL as text; None stays None. UsageError: anything but text or a path of text."""
    if value is None:
        return None
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise _wrong(name, "text or a path", value)
    return text


def folder(name: str, value: object) -> Path | None:
    """A folder as a path; None stays None. UsageError: anything but text or a path of text, or one with a zero byte."""
    text = place(name, value)
    if text is not None and "\0" in text:
        raise UsageError(f"{name}: an impossible name")
    return None if text is None else Path(text)


def check_options(device: object, threads: object, offline: object) -> None:
    """UsageError unless `device` is text, `threads` an integer or None, and `offline` True or False."""
    if not isinstance(device, str):
        raise _wrong("device", "text", device)
    if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool)):
        raise _wrong("threads", "an integer", threads)
    if not isinstance(offline, bool):
        raise _wrong("offline", "True or False", offline)


def _wrong(name: str, wanted: str, value: object) -> UsageError:
    return UsageError(f"{name} must be {wanted}, not {value!r}")
