"""Cosignatures: witnesses that saw a log only grow, and say so on its checkpoint (C2SP tlog-cosignature, Ed25519)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from auditkit.errors import Untrusted
from auditkit.formats.note import COSIGNATURE, NoteKey, SignedNote
from auditkit.trust import notes

_LAST_SECOND = 253402300799  # of the year 9999, beyond which there is no date to show


@dataclass(frozen=True)
class Cosignature:
    """A witness's word: at `time` (Unix seconds, the witness's own clock) this was the largest tree it had seen."""

    key: NoteKey
    time: int

    def describe(self) -> str:
        """Name and time, for people."""
        return f"{self.key.name} at {shown_time(self.time)}"


def cosignatures(note: SignedNote, keys: Iterable[NoteKey]) -> tuple[Cosignature, ...]:
    """The cosignatures of known witnesses on a note, unknown ones ignored; Untrusted if one is wrong."""
    known = [key for key in keys if key.algorithm == COSIGNATURE]
    present = [key for key in known if any(signature.is_of(key) for signature in note.signatures)]
    return tuple(Cosignature(key, notes.verify(note, key)) for key in present)


def verify_witnesses(
    note: SignedNote, keys: Iterable[NoteKey], threshold: int, *, log: NoteKey | None = None
) -> tuple[Cosignature, ...]:
    """The cosignatures of the witnesses in `keys`; Untrusted unless `threshold` different ones signed.

    One public key counts once, whatever its names: an Ed25519 cosignature does not cover the name. The key of the log
    itself, `log`, never counts. The times are for people to read: no clock here decides.
    """
    own = log.public if log is not None else b""
    found = cosignatures(note, [key for key in keys if key.public != own])
    distinct = {cosignature.key.public: cosignature for cosignature in found}
    if len(distinct) < threshold:
        names = ", ".join(cosignature.key.name for cosignature in distinct.values()) or "none"
        raise Untrusted(
            f"{len(distinct)} known witnesses cosigned the checkpoint ({names}), {threshold} are asked for",
            hint="the log may be too new, or the publisher shows it to nobody else",
        )
    return tuple(distinct.values())


def shown_time(seconds: int) -> str:
    """A time of Unix seconds as 2026-01-02T03:04:05Z; seconds that no calendar has, as they are."""
    if seconds > _LAST_SECOND:
        return f"{seconds} s"
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
