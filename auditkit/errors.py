"""Errors that a user, a publisher or the machine can cause; each carries the verdict it leads to."""

from __future__ import annotations

from typing import ClassVar

from auditkit.verdict import Verdict


class AuditkitError(Exception):
    """Base of every expected failure. `message` is lower case without a final period; `hint` says what would help."""

    verdict: ClassVar[Verdict] = Verdict.INTERNAL

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(AuditkitError):
    """the command or call was used wrongly"""

    verdict = Verdict.USAGE


class MismatchError(AuditkitError):
    """computed, repeated, and different from what was published"""

    verdict = Verdict.MISMATCH


class BadArtifact(AuditkitError):
    """malformed, or not the bytes its digest names"""

    verdict = Verdict.BAD_ARTIFACT


class Unavailable(AuditkitError):
    """could not be fetched or read"""

    verdict = Verdict.UNAVAILABLE


class Unsupported(AuditkitError):
    """this device, memory, disk or version cannot do it"""

    verdict = Verdict.UNSUPPORTED


class MachineFault(AuditkitError):
    """self-test failed or two runs here disagree; says nothing about the publisher"""

    verdict = Verdict.MACHINE_FAULT


class Untrusted(AuditkitError):
    """signature, key, log proof or policy refused"""

    verdict = Verdict.UNTRUSTED


class Incomplete(AuditkitError):
    """nothing, or not all that was asked for, was verified"""

    verdict = Verdict.INCOMPLETE
