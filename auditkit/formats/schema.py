"""Fields with ranges, declared once: `hidden_size: Annotated[int, Int(1, 1 << 20)]` reads, checks and writes itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Protocol, Self, get_type_hints

from auditkit.errors import BadArtifact, Unsupported
from auditkit.formats import bits
from auditkit.formats.canonical import MAX_INT, Value, shown
from auditkit.formats.fields import UPDATE, Fields


class Rule(Protocol):
    """What one field may hold and how JSON writes it."""

    def read(self, fields: Fields, key: str) -> Any:
        """The Python value of a JSON field."""
        ...

    def check(self, value: Any, what: str) -> None:
        """BadArtifact naming `what` when the value is of another type or out of range."""
        ...

    def write(self, value: Any) -> Value | None:
        """The JSON value of a checked Python value; None where the key is left out."""
        ...


@dataclass(frozen=True, slots=True)
class Int:
    """An integer in low..high, both included."""

    low: int = 0
    high: int = MAX_INT
    unit: str = ""

    def read(self, fields: Fields, key: str) -> int:
        """The integer of a JSON field."""
        return fields.integer(key, self.low, self.high, self.unit)

    def check(self, value: Any, what: str) -> None:
        """Exact type and range."""
        if type(value) is not int:
            raise BadArtifact(f"{what}: not an integer")
        if not self.low <= value <= self.high:
            unit = f" {self.unit}" if self.unit else ""
            raise BadArtifact(f"{what}: {value} is outside {self.low} to {self.high}{unit}")

    def write(self, value: int) -> Value:
        """The integer itself."""
        return value


@dataclass(frozen=True, slots=True)
class Real:
    """A finite number in an interval, held as a bit pattern of `width` 32 or 64; an open end is excluded."""

    width: int
    low: float = 0.0
    high: float = math.inf
    low_open: bool = False
    high_open: bool = False

    def read(self, fields: Fields, key: str) -> float:
        """The number of a JSON field."""
        return fields.f32(key) if self.width == 32 else fields.f64(key)

    def check(self, value: Any, what: str) -> None:
        """Type, range, finiteness and (32) exact representability; minus zero is refused, for it is a second zero."""
        if not isinstance(value, float):
            raise BadArtifact(f"{what}: not a float")
        above = value > self.low if self.low_open else value >= self.low
        below = value < self.high if self.high_open else value <= self.high
        if not (above and below and math.isfinite(value)):
            left, right = "(["[not self.low_open], ")]"[not self.high_open]
            raise BadArtifact(f"{what}: {float(value)!r} is outside {left}{self.low:g}, {self.high:g}{right}")
        if value == 0 and math.copysign(1.0, value) < 0:
            raise BadArtifact(f"{what}: minus zero is not allowed")
        if self.width == 32 and not bits.is_f32(value):
            raise BadArtifact(f"{what}: {float(value)!r} is not exactly a binary32 number")

    def write(self, value: float) -> Value:
        """The bit pattern as text."""
        return bits.f32_text(value) if self.width == 32 else bits.f64_text(value)


@dataclass(frozen=True, slots=True)
class Flag:
    """true or false."""

    def read(self, fields: Fields, key: str) -> bool:
        """The truth value of a JSON field."""
        return fields.flag(key)

    def check(self, value: Any, what: str) -> None:
        """Exact type."""
        if type(value) is not bool:
            raise BadArtifact(f"{what}: not true or false")

    def write(self, value: bool) -> Value:
        """The truth value itself."""
        return value


@dataclass(frozen=True, slots=True)
class Choice:
    """One of a few texts or integers."""

    allowed: tuple[str | int, ...]

    def read(self, fields: Fields, key: str) -> Any:
        """The value of a JSON field."""
        return fields.raw(key)

    def check(self, value: Any, what: str) -> None:
        """Exact type and membership (1 and true are equal in Python, but not the same value)."""
        if not any(type(value) is type(one) and value == one for one in self.allowed):
            found = shown(value) if isinstance(value, str) else str(value) if isinstance(value, int) else "another type"
            raise BadArtifact(f"{what}: {found} is not {' or '.join(map(str, self.allowed))}")

    def write(self, value: str | int) -> Value:
        """The value itself."""
        return value


@dataclass(frozen=True, slots=True)
class Ints:
    """A tuple of up to `most` integers in low..high; an empty one is written by leaving the key out."""

    low: int
    high: int
    most: int

    def read(self, fields: Fields, key: str) -> tuple[Any, ...]:
        """The items of a JSON list, which is never empty; () without one."""
        return tuple(fields.items(key, 1, self.most)) if fields.has(key) else ()

    def check(self, value: Any, what: str) -> None:
        """Exact types and ranges, and the number of items."""
        if type(value) is not tuple:
            raise BadArtifact(f"{what}: not a tuple of integers")
        if len(value) > self.most:
            raise BadArtifact(f"{what}: {len(value)} items, at most {self.most} are allowed")
        for number, item in enumerate(value):
            Int(self.low, self.high).check(item, f"{what}[{number}]")

    def write(self, value: tuple[int, ...]) -> Value | None:
        """The list, None for an empty one."""
        return list(value) or None


@dataclass(frozen=True, slots=True)
class Version:
    """The number `known`; a higher one is Unsupported, for what else it changes is unknown."""

    known: int

    def read(self, fields: Fields, key: str) -> Any:
        """The value of a JSON field, refused at once if it is newer: other keys may then be new too."""
        value = fields.raw(key)
        self.check(value, fields.name(key))
        return value

    def check(self, value: Any, what: str) -> None:
        """Exact type and value."""
        if type(value) is int and value > self.known:
            known = f"{self.known}, which this verifier knows"
            raise Unsupported(f"{what}: {value} is newer than {known}", hint=UPDATE)
        Choice((self.known,)).check(value, what)

    def write(self, value: int) -> Value:
        """The number itself."""
        return value


class Section:
    """Base of a frozen dataclass whose fields are all annotated with a Rule; checks itself when it is made."""

    section = "section"

    def __post_init__(self) -> None:
        for key, rule in _rules(type(self)).items():
            rule.check(getattr(self, key), f"{self.section}.{key}")
        self.check()

    def check(self) -> None:
        """Rules between fields; BadArtifact. Nothing by default."""

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """Read every field, refuse unknown ones; BadArtifact naming the field."""
        values = {key: rule.read(fields, key) for key, rule in _rules(cls).items()}
        fields.done()
        return cls(**values)

    def to_value(self) -> dict[str, Value]:
        """The JSON object."""
        written = {key: rule.write(getattr(self, key)) for key, rule in _rules(type(self)).items()}
        return {key: value for key, value in written.items() if value is not None}


_RULES: dict[type, dict[str, Rule]] = {}


def _rules(cls: type) -> dict[str, Rule]:
    if cls not in _RULES:
        hints = get_type_hints(cls, include_extras=True)
        _RULES[cls] = {key: hint.__metadata__[0] for key, hint in hints.items() if hasattr(hint, "__metadata__")}
    return _RULES[cls]
