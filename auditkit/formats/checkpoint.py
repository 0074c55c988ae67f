"""Checkpoints: the text of a log's signed note, with origin, size and root hash of the log (C2SP tlog-checkpoint)."""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats.canonical import shown
from auditkit.formats.limits import LIMITS
from auditkit.formats.merkle import EMPTY_ROOT, HASH_BYTES
from auditkit.formats.note import decode_base64

_DECIMAL = re.compile(r"0|[1-9][0-9]{0,15}")
_CONTROL = re.compile("[\x00-\x1f]")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What a log signs: its origin, its number of entries, and the RFC 6962 root over them (32 bytes).

    `extensions` are further lines, of no meaning here.
    """

    origin: str
    size: int
    root: bytes
    extensions: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_origin(self.origin, "checkpoint")
        if not 0 <= self.size <= LIMITS.log_entries:
            raise BadArtifact(f"checkpoint: size {self.size} is outside 0 to {LIMITS.log_entries} entries")
        if len(self.root) != HASH_BYTES:
            raise BadArtifact(f"checkpoint: a root hash of {len(self.root)} bytes, SHA-256 has {HASH_BYTES}")
        if self.size == 0 and self.root != EMPTY_ROOT:
            raise BadArtifact("checkpoint: no entries, but not the root hash of none")
        if not all(self.extensions) or any(map(_CONTROL.search, self.extensions)):
            raise BadArtifact("checkpoint: an extension line that is empty or holds a control character")

    @classmethod
    def parse(cls, text: str, what: str = "checkpoint") -> Self:
        """The checkpoint of a note's text; BadArtifact naming `what`."""
        lines = text.split("\n")
        if len(lines) < 4 or lines[-1]:
            raise BadArtifact(f"{what}: not at least three lines that end in newlines")
        origin, size, root, *extensions = lines[:-1]
        return cls(origin, parse_decimal(size, what), decode_base64(root, what), tuple(extensions))

    def text(self) -> str:
        """The text of the note."""
        lines = (self.origin, str(self.size), base64.b64encode(self.root).decode("ascii"), *self.extensions)
        return "".join(f"{line}\n" for line in lines)

    def describe(self) -> str:
        """Size and root in words, for messages."""
        return f"{self.size} entries, root {self.root.hex()}"


def check_origin(origin: str, what: str) -> str:
    """The name of a log, `origin` itself: 1 to 255 bytes of UTF-8 on one line; BadArtifact naming `what` otherwise.

    Spaces and pluses are not recommended, and occur.
    """
    try:
        size = len(origin.encode("utf-8"))
    except UnicodeEncodeError:
        raise BadArtifact(f"{what}: an origin with a lone surrogate") from None
    if not 1 <= size <= LIMITS.note_name_bytes:
        raise BadArtifact(f"{what}: an origin of {size} bytes, 1 to {LIMITS.note_name_bytes} are allowed")
    if _CONTROL.search(origin):
        raise BadArtifact(f"{what}: origin {shown(origin)} holds a control character")
    return origin


def parse_decimal(text: str, what: str) -> int:
    """A number of entries, or the index of one: ASCII digits without leading zeros, at most 2^53-1; BadArtifact."""
    if not _DECIMAL.fullmatch(text) or int(text) > LIMITS.log_entries:
        raise BadArtifact(f"{what}: {shown(text)} is not a number of 0 to {LIMITS.log_entries} without leading zeros")
    return int(text)
