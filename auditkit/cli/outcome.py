"""What a command hands to `main`: a verdict and the text for stdout."""

from __future__ import annotations

import json
from dataclasses import dataclass

from auditkit.verdict import Verdict

ERROR_FORMAT = "auditkit/error/v1"


@dataclass(frozen=True)
class Outcome:
    """The end of a command: its verdict (the exit code) and its result, printed by `main` and by nothing else."""

    verdict: Verdict
    text: str


def error_json(verdict: Verdict, message: str, hint: str, *, code: int | None = None) -> str:
    """The one JSON object of a command that failed before it had a result; `code` where it is not the verdict's."""
    number = verdict.code if code is None else code
    return to_json({"format": ERROR_FORMAT, "verdict": verdict.name, "code": number, "message": message, "hint": hint})


def to_json(value: object) -> str:
    """One JSON object on one line, ASCII only, so that any stream can carry it."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False)
