"""Names that are safe on every file system: what a published file may be called.

Restricted to ASCII, so that no normalisation (macOS) and no code page can turn one name into another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from auditkit.errors import BadArtifact
from auditkit.formats.canonical import shown
from auditkit.formats.limits import LIMITS

# No leading dot (hidden, and '..'), no trailing dot (Windows drops it), no colon (drive letters, NTFS streams).
_SEGMENT = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._+-]*[A-Za-z0-9_+-])?")
# Windows opens the device whatever the extension.
_RESERVED = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\..*)?", re.IGNORECASE)


def check_segment(text: object, what: str) -> str:
    """One file or folder name of [A-Za-z0-9._+-], not reserved on any system; BadArtifact naming `what` otherwise."""
    if type(text) is not str:
        raise BadArtifact(f"{what}: not text")
    if len(text) > LIMITS.segment_characters:
        raise BadArtifact(f"{what}: name of {len(text)} characters, at most {LIMITS.segment_characters} are allowed")
    if _SEGMENT.fullmatch(text) is None:
        raise BadArtifact(f"{what}: unsafe name {shown(text)} (letters, digits and ._+- only, no dot at either end)")
    if _RESERVED.fullmatch(text) is not None:
        raise BadArtifact(f"{what}: name {shown(text)} is reserved on Windows")
    return text


def check_path(text: object, what: str) -> str:
    """A relative path of safe names joined by '/'; BadArtifact naming `what` and the reason otherwise."""
    if type(text) is not str:
        raise BadArtifact(f"{what}: not text")
    if len(text) > LIMITS.path_characters:
        raise BadArtifact(f"{what}: path of {len(text)} characters, at most {LIMITS.path_characters} are allowed")
    if "\\" in text:
        raise BadArtifact(f"{what}: path {shown(text)} holds a backslash (paths are joined by '/')")
    if text.startswith("/") or re.match(r"[A-Za-z]:", text):
        raise BadArtifact(f"{what}: path {shown(text)} is absolute")
    for segment in text.split("/"):
        check_segment(segment, what)
    return text


def check_distinct(paths: Iterable[str], what: str) -> None:
    """Refuse paths that are one file on some system: equal but for case, or one being a folder of another."""
    files: dict[str, str] = {}
    for path in paths:
        key = path.lower()
        if key in files:
            raise BadArtifact(f"{what}: paths {shown(files[key])} and {shown(path)} are one file where case is ignored")
        files[key] = path
    for key, path in files.items():
        parts = key.split("/")
        for depth in range(1, len(parts)):
            folder = files.get("/".join(parts[:depth]))
            if folder is not None:
                raise BadArtifact(f"{what}: {shown(folder)} is both a file and the folder of {shown(path)}")
