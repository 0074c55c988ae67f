"""A beacon: a public random value that nobody could foresee, from which the steps of every auditor follow."""

from __future__ import annotations

import datetime
import enum
import re
import secrets
from dataclasses import dataclass

from auditkit.errors import UsageError
from auditkit.formats.canonical import shown
from auditkit.formats.digest import root

LEAST_BYTES, MOST_BYTES = 16, 64  # 128 bits cannot be searched; block hashes and drand's randomness have 32 bytes
DRAWN_BYTES = 32
DATE_CONTEXT = "auditkit date beacon v1"
_HEX = re.compile(r"(?:0[xX])?((?:[0-9a-fA-F]{2})+)")


class Origin(enum.Enum):
    """Where a beacon comes from, and so who could have foreseen or chosen it."""

    GIVEN = "given"
    DRAND = "drand"
    DATE = "date"
    DRAWN = "drawn"


_CAVEATS = {
    Origin.GIVEN: "",
    Origin.DRAND: "",
    Origin.DATE: "the beacon is a date: everybody could foresee it, the publisher too",
    Origin.DRAWN: "the beacon was drawn on this machine: others can recompute the steps from it, but cannot check that "
    "it was not chosen",
}


@dataclass(frozen=True)
class Beacon:
    """A random value of 16 to 64 bytes and its origin; `detail` names it for others (a round, a date)."""

    value: bytes
    origin: Origin = Origin.GIVEN
    detail: str = ""

    @property
    def text(self) -> str:
        """The value in lower-case hexadecimal digits; `parse` reads it back."""
        return self.value.hex()

    @property
    def caveat(self) -> str:
        """What this beacon does not give; empty where it does all that a beacon can."""
        return _CAVEATS[self.origin]

    def to_dict(self) -> dict[str, object]:
        """The beacon as JSON values."""
        return {"value": self.text, "origin": self.origin.value, "detail": self.detail, "caveat": self.caveat}


def parse(text: str) -> Beacon:
    """The beacon that somebody wrote in hexadecimal digits, of either case, with or without a leading 0x.

    UsageError: anything else, or not 16 to 64 bytes.
    """
    found = _HEX.fullmatch(text)
    if not found:
        raise UsageError(f"beacon {shown(text)} is not an even number of hexadecimal digits", hint=_HINT)
    value = bytes.fromhex(found[1])
    if not LEAST_BYTES <= len(value) <= MOST_BYTES:
        raise UsageError(f"beacon of {len(value)} bytes, {LEAST_BYTES} to {MOST_BYTES} are allowed", hint=_HINT)
    return Beacon(value)


_HINT = "the randomness of a drand round, or the hash of a block that was not there when the run was published"


def draw() -> Beacon:
    """A fresh value from this machine's operating system, which nobody else can check."""
    return Beacon(secrets.token_bytes(DRAWN_BYTES), Origin.DRAWN)


def of_date(day: datetime.date) -> Beacon:
    """The beacon of a day, for lack of a better one: BLAKE3 in derive-key mode of the date's text, 2026-01-02."""
    text = day.isoformat()
    return Beacon(bytes.fromhex(root(DATE_CONTEXT, text.encode("ascii"))), Origin.DATE, text)
