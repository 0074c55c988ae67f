"""Typed access to the fields of a parsed JSON object, so that each parser states types, ranges and nothing else."""

from __future__ import annotations

import re

from auditkit.errors import BadArtifact, Unsupported
from auditkit.formats import bits
from auditkit.formats.canonical import MAX_INT, Value, shown
from auditkit.formats.digest import Digest, check_digest
from auditkit.formats.limits import LIMITS
from auditkit.formats.paths import check_path

# Control characters, line separators, direction marks and surrogates: texts are shown in a terminal as they are.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]")


def check_text(value: object, what: str, limit: int = LIMITS.name_characters) -> str:
    """Printable text of 1 to `limit` characters; BadArtifact naming `what` otherwise."""
    if type(value) is not str:
        raise BadArtifact(f"{what}: not text")
    if not 1 <= len(value) <= limit:
        raise BadArtifact(f"{what}: {len(value)} characters, 1 to {limit} are allowed")
    if _UNPRINTABLE.search(value):
        raise BadArtifact(f"{what}: {shown(value)} holds an unprintable character")
    return value


UPDATE = "update auditkit-verifier"
_VERSIONED = re.compile(r"(auditkit/[a-z-]+/v)([1-9][0-9]{0,8})")


def is_newer(value: object, expected: str) -> bool:
    """Whether `value` names the format `expected` ("auditkit/KIND/vN") with a higher version."""
    found = _VERSIONED.fullmatch(value) if type(value) is str else None
    known = _VERSIONED.fullmatch(expected)
    return bool(found and known and found[1] == known[1] and int(found[2]) > int(known[2]))


class Fields:
    """One JSON object; every getter raises BadArtifact naming the field, `done` refuses keys nobody asked for."""

    def __init__(self, value: Value, what: str) -> None:
        if type(value) is not dict:
            raise BadArtifact(f"{what}: not an object")
        self.what = what
        self._value: dict[str, Value] = value
        self._asked: set[str] = set()

    def raw(self, key: str) -> Value:
        """The value of `key`, of any type."""
        self._asked.add(key)
        if key not in self._value:
            raise BadArtifact(f"{self.what}: key {shown(key)} is missing")
        return self._value[key]

    def has(self, key: str) -> bool:
        """Whether `key` is there, for the few that may be left out."""
        return key in self._value

    def name(self, key: str) -> str:
        """ "what.key", for messages."""
        return f"{self.what}.{key}"

    def format(self, *known: str) -> str:
        """Check the key "format", which names the kind of document and its version, one of `known` in rising order.

        Returns the one found; Unsupported for a later version, BadArtifact for anything else.
        """
        value = self.raw("format")
        if type(value) is str and value in known:
            return value
        found = shown(value) if type(value) is str else type(value).__name__
        if is_newer(value, known[-1]):
            newest = f"{shown(known[-1])}, which this verifier knows"
            raise Unsupported(f"{self.name('format')}: {found} is newer than {newest}", hint=UPDATE)
        raise BadArtifact(f"{self.name('format')}: {found} is not {' or '.join(map(shown, known))}")

    def text(self, key: str, *, limit: int = LIMITS.name_characters) -> str:
        """Printable text of 1 to `limit` characters."""
        return check_text(self.raw(key), self.name(key), limit)

    def choice(self, key: str, *allowed: str) -> str:
        """Text that is one of `allowed`."""
        value = self.raw(key)
        if type(value) is not str or value not in allowed:
            found = shown(value) if type(value) is str else type(value).__name__
            raise BadArtifact(f"{self.name(key)}: {found} is not {' or '.join(map(shown, allowed))}")
        return value

    def integer(self, key: str, low: int = 0, high: int = MAX_INT, unit: str = "") -> int:
        """An integer in low..high, both included; true and false are not integers."""
        value = self.raw(key)
        if type(value) is not int:
            raise BadArtifact(f"{self.name(key)}: not an integer")
        if not low <= value <= high:
            raise BadArtifact(f"{self.name(key)}: {value} is outside {low} to {high}{' ' + unit if unit else ''}")
        return value

    def flag(self, key: str) -> bool:
        """true or false."""
        value = self.raw(key)
        if type(value) is not bool:
            raise BadArtifact(f"{self.name(key)}: not true or false")
        return value

    def digest(self, key: str) -> Digest:
        """64 lower-case hexadecimal digits."""
        return check_digest(self.raw(key), self.name(key))

    def f32(self, key: str) -> float:
        """A finite binary32 number from its bit pattern."""
        return bits.parse_f32(self.raw(key), self.name(key))

    def f32_bits(self, key: str) -> int:
        """The bit pattern of a finite binary32 number."""
        return bits.parse_f32_bits(self.raw(key), self.name(key))

    def f64(self, key: str) -> float:
        """A finite binary64 number from its bit pattern."""
        return bits.parse_f64(self.raw(key), self.name(key))

    def path(self, key: str) -> str:
        """A safe relative path with '/' separators (formats/paths.py)."""
        return check_path(self.raw(key), self.name(key))

    def items(self, key: str, low: int, high: int) -> list[Value]:
        """A list of low..high values."""
        value = self.raw(key)
        if type(value) is not list:
            raise BadArtifact(f"{self.name(key)}: not a list")
        if not low <= len(value) <= high:
            raise BadArtifact(f"{self.name(key)}: {len(value)} items, {low} to {high} are allowed")
        return value

    def fields(self, key: str) -> Fields:
        """A nested object."""
        return Fields(self.raw(key), self.name(key))

    def rows(self, key: str, low: int, high: int) -> list[Fields]:
        """A list of low..high objects."""
        return [Fields(item, f"{self.name(key)}[{i}]") for i, item in enumerate(self.items(key, low, high))]

    def done(self) -> None:
        """Refuse keys that no getter asked for: an unknown key may change the meaning of the known ones."""
        unknown = sorted(set(self._value) - self._asked)
        if unknown:
            raise BadArtifact(f"{self.what}: unknown key {shown(unknown[0])}")
