"""Where a page may be written: under a new name or over an older page of its kind, never over anything else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from auditkit.errors import UsageError
from auditkit.trust import disk, key_files

MARKER = b"<!doctype html>\n<!-- auditkit coverage page -->\n"
"""What every coverage page begins with, and nothing else does."""


class PageFile:
    """A file for a page, named by a user; `inputs` are files that are read, which it may not be.

    UsageError: no name of a file, a folder that is not there, or something there that is no page of the same `marker`,
    whose `kind` in words it is. A link is not followed: what it leads to has another name, under which it was not
    given. Unsupported: the disk refuses.
    """

    def __init__(
        self, name: str, inputs: Iterable[Path] = (), *, marker: bytes = MARKER, kind: str = "coverage page"
    ) -> None:
        self._marker, self._kind = marker, kind
        self._choose = f"choose a new name, or that of an older {kind}"
        if name in ("", "-"):
            raise UsageError(f"a page cannot be written to {name!r}", hint="name a file, such as coverage.html")
        self.path = Path(name)
        if name.endswith(tuple(filter(None, (os.sep, os.altsep)))) or self.path.is_dir():
            raise UsageError(f"{name} is a folder", hint="name a file in it, such as coverage.html")
        if not self.path.parent.is_dir():
            raise UsageError(f"there is no folder {self.path.parent}", hint="make it first")
        self._require_not_read(inputs)
        self._is_there()

    def write(self, data: bytes) -> None:
        """Put a page there at once; what else is there by now stays."""
        if self._is_there():
            disk.write(self.path, data)
        else:
            key_files.write_new(self.path, data, mode=0o666)

    def _is_there(self) -> bool:
        """Whether there is an older page. UsageError if there is something else."""
        with disk.writing(self.path):
            try:
                found = self.path.lstat()
            except FileNotFoundError:
                return False
        if not stat.S_ISREG(found.st_mode) or self._head() != self._marker:
            raise UsageError(f"{self.path} exists and is no {self._kind}: it is not written over", hint=self._choose)
        return True

    def _head(self) -> bytes:
        flags = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        try:
            with open(os.open(self.path, flags), "rb") as file:
                return file.read(len(self._marker))
        except OSError:
            return b""  # what cannot be read is not known to be a page

    def _require_not_read(self, inputs: Iterable[Path]) -> None:
        for path in inputs:
            try:
                same = os.path.samefile(path, self.path)
            except OSError:
                continue
            if same:
                raise UsageError(f"{self.path} is read by this command: it is not written over", hint=self._choose)
