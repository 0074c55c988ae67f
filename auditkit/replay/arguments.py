"""What a Python caller passed, checked by type before anything is done: a wrong type is a usage error in words."""

from __future__ import annotations

import os
import re
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


_SIZE = re.compile(r"([0-9]{1,15})(?:\.([0-9]{1,3}))? ?(?:([kmgt])(i?)b?|b)?", re.IGNORECASE)
MOST_MEMORY = 1 << 60  # bytes


def memory(value: object) -> int | None:
    """A size in bytes: an integer, or text such as 8GiB, 8GB or 512MiB; None stays None. UsageError: anything else."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str):
        size = _size(value)
    else:
        raise _wrong("memory", "a number of bytes or a size such as 8GiB", value)
    if not 0 < size < MOST_MEMORY:
        raise UsageError(f"memory: {size:,} bytes are no size", hint="e.g. 8GiB, 8GB or 512MiB")
    return size


def _size(text: str) -> int:
    found = _SIZE.fullmatch(text)
    if found is None or not text.isascii():
        raise UsageError(f"memory: {text!r} is no size", hint="e.g. 8GiB, 8GB or 512MiB")
    power = " kmgt".index(found[3].lower()) if found[3] else 0
    unit = (1024 if found[4] else 1000) ** power
    size: int = int(found[1]) * unit + int((found[2] or "0").ljust(3, "0")) * unit // 1000
    return size


def _wrong(name: str, wanted: str, value: object) -> UsageError:
    return UsageError(f"{name} must be {wanted}, not {value!r}")
