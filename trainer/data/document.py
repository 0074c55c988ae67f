"""What every reader hands on: documents whose text is valid, and the words for those that are not."""

from __future__ import annotations

from dataclasses import dataclass

from auditkit.errors import BadArtifact
from auditkit.formats.limits import LIMITS

MOST_BYTES = LIMITS.block_bytes - (1 << 20)  # a document lies whole in one block, beside its table
DEFAULT_BYTES = 1 << 26

_FIX = "mend the input or leave it out: nothing is replaced or dropped in silence"


@dataclass(frozen=True)
class RawDocument:
    """One document: a name for people (file, or file and row) and its UTF-8 text."""

    name: str
    data: bytes


@dataclass(frozen=True)
class Limit:
    """The most bytes that the text of one document may have."""

    document_bytes: int = DEFAULT_BYTES

    def check(self, size: int, where: str) -> None:
        """Refuse a longer text; BadArtifact naming `where`."""
        if size > self.document_bytes:
            raise BadArtifact(
                f"{where}: a document of {size} bytes or more, at most {self.document_bytes} are allowed",
                hint=f"--max-document allows up to {MOST_BYTES}; a longer one is better cut",
            )


def bad(where: str, what: str) -> BadArtifact:
    """The error of an input that cannot become a document."""
    return BadArtifact(f"{where}: {what}", hint=_FIX)


def check_text(data: bytes, where: str, first_byte: int = 0) -> None:
    """Refuse bytes that are not UTF-8 or hold U+0000, naming the byte; `first_byte` is the offset of `data` there."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        at = first_byte + error.start
        raise bad(where, f"not UTF-8 at byte {at} (0x{data[error.start]:02x}: {error.reason})") from error
    zero = data.find(0)
    if zero >= 0:
        raise bad(where, f"U+0000 at byte {first_byte + zero} (not text, or text of another encoding)")
