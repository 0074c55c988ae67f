"""Names for files in the making that tell who makes them, so that abandoned ones can be told from live ones."""

from __future__ import annotations

import os
import platform
import re
import secrets
import stat
from pathlib import Path

from auditkit.formats.digest import content_digest

_OWNER = re.compile(r"\.([0-9a-f]{8})-(\d{1,10})-[0-9a-f]{12}\.part$")


def machine() -> str:
    """Eight hex digits for this machine and process-id space: two containers may share a cache and have equal ids."""
    try:
        space = os.readlink("/proc/self/ns/pid")
    except (OSError, AttributeError):
        space = ""
    return content_digest(f"{platform.node()}\0{space}".encode("utf-8", "surrogateescape"))[:8]


def is_own(path: Path) -> bool:
    """Whether a folder or a regular file, and no link to one, belongs to this user or root, and no other can write to
    it. For what runs: a digest in it proves nothing where others can write. True on Windows, where folders of users
    are their own.
    """
    try:
        found = path.lstat()
    except OSError:
        return False
    if not hasattr(os, "geteuid"):
        return True
    kind = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return kind and found.st_uid in (os.geteuid(), 0) and not found.st_mode & 0o022


def unique_suffix() -> str:
    """`machine-process-random`, never the same twice."""
    return f"{machine()}-{os.getpid()}-{secrets.token_hex(6)}"


def abandoned(path: Path, *, now: float, after_seconds: float) -> bool:
    """Whether nobody writes the part `path` any more: its process on this machine is gone, or it is old.

    `now` is Unix time. Wrong answers are harmless: the owner of a part that vanishes starts again.
    """
    match = _OWNER.search(path.name)
    if match and match[1] == machine() and _gone(int(match[2])):
        return True
    try:
        return now - path.stat().st_mtime > after_seconds
    except OSError:
        return False


def _gone(process: int) -> bool:
    if os.name == "nt":
        # os.kill would end the process here. Windows refuses to delete a file that is open, which tells the same.
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        return False
    return False
