"""Verdicts and their exit codes. Code 1 is never used: Python's own crash code must not read as an accusation."""

from __future__ import annotations

import enum
from collections.abc import Iterable


class Verdict(enum.Enum):
    """One outcome; the value is the process exit code."""

    MATCH = 0
    USAGE = 2
    MISMATCH = 3
    BAD_ARTIFACT = 4
    UNAVAILABLE = 5
    UNSUPPORTED = 6
    MACHINE_FAULT = 7
    UNTRUSTED = 8
    INCOMPLETE = 9
    INTERNAL = 70
    INTERRUPTED = 130

    @property
    def code(self) -> int:
        """The process exit code."""
        return self.value


# Most serious first. A machine that cannot be trusted outranks what it claims to have found.
_SEVERITY = (
    Verdict.INTERNAL,
    Verdict.INTERRUPTED,
    Verdict.USAGE,
    Verdict.MACHINE_FAULT,
    Verdict.MISMATCH,
    Verdict.UNTRUSTED,
    Verdict.BAD_ARTIFACT,
    Verdict.UNAVAILABLE,
    Verdict.UNSUPPORTED,
    Verdict.INCOMPLETE,
    Verdict.MATCH,
)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """The most serious of several verdicts; INCOMPLETE when there is none, for nothing was verified."""
    found = set(verdicts)
    return next((v for v in _SEVERITY if v in found), Verdict.INCOMPLETE)
