"""JSON lines: one object a line, whose text under one key is a document."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from auditkit.formats.canonical import words
from trainer.data.document import Limit, RawDocument, bad

# A character of one byte may be written as an escape of six, and there may be other keys.
_ESCAPED, _OTHERS = 6, 1 << 20


def documents(pieces: Iterable[bytes], name: str, key: str, limit: Limit) -> Iterator[RawDocument]:
    """The documents of a file, called by its name and their line; memory holds one line.

    Raises BadArtifact with line and byte for a line that is not JSON, no object, or has no such text.
    """
    most = _ESCAPED * limit.document_bytes + _OTHERS
    read = _Reader(key)
    for number, begin, line in _lines(pieces, most, name):
        where = f"{name}, line {number} (byte {begin})"
        data = read(line, where, begin)
        limit.check(len(data), where)
        yield RawDocument(f"{name}:{number}", data)


def _lines(pieces: Iterable[bytes], most: int, name: str) -> Iterator[tuple[int, int, bytes]]:
    """Number from 1, first byte, and bytes of each line; the last may lack its line feed."""
    number, begin, length = 1, 0, 0
    parts: list[bytes] = []
    for piece in pieces:
        *ended, rest = piece.split(b"\n")
        for end in ended:
            line = b"".join([*parts, end])
            yield number, begin, line
            number, begin, length = number + 1, begin + len(line) + 1, 0
            parts = []
        parts.append(rest)
        length += len(rest)
        if length > most:
            raise bad(f"{name}, line {number} (byte {begin})", f"a line of more than {most} bytes")
    if length:
        yield number, begin, b"".join(parts)


class _Twice(ValueError):
    """The key occurs twice in an object: which of the texts is meant cannot be known."""


class _Reader:
    """The text under one key of an object in JSON (RFC 8259)."""

    def __init__(self, key: str) -> None:
        self._key = key
        # Numbers are not looked at: as texts they need no conversion, whatever their length.
        self._decoder = json.JSONDecoder(
            object_pairs_hook=self._pairs, parse_int=_Number, parse_float=_Number, parse_constant=_no_constant
        )

    def __call__(self, line: bytes, where: str, begin: int) -> bytes:
        try:
            text = line.decode("utf-8")
        except UnicodeDecodeError as error:
            at = begin + error.start
            raise bad(where, f"not UTF-8 at byte {at} (0x{line[error.start]:02x}: {error.reason})") from error
        if not text.strip(" \t\r"):
            raise bad(where, "the line is empty")
        try:
            value = self._decoder.decode(text)
        except json.JSONDecodeError as error:
            at = begin + len(text[: error.pos].encode("utf-8"))
            raise bad(where, f"not JSON at byte {at}: {error.msg.lower()}") from error
        except (ValueError, RecursionError) as error:
            raise bad(where, f"not JSON: {words(error)}") from error
        return self._encoded(value, where)

    def _encoded(self, value: Any, where: str) -> bytes:
        if not isinstance(value, dict):
            raise bad(where, "not a JSON object")
        if self._key not in value:
            raise bad(where, f"there is no key {self._key!r} (--text-key names another)")
        text = value[self._key]
        if not isinstance(text, str) or isinstance(text, _Number):
            raise bad(where, f"the value of {self._key!r} is not a text")
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError as error:
            surrogate = ord(text[error.start])
            raise bad(where, f"a lone surrogate, U+{surrogate:04X}, is character {error.start} of the text") from error
        zero = text.find("\0")
        if zero >= 0:
            raise bad(where, f"U+0000 is character {zero} of the text")
        return data

    def _pairs(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs) and sum(key == self._key for key, _ in pairs) > 1:
            raise _Twice(f"key {self._key!r} occurs twice")
        return found


class _Number(str):
    """A number, kept as it is written."""


def _no_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is no number")
