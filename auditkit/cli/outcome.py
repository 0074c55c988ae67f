"""What a command hands to `main`: a verdict and the text for stdout."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from auditkit.cli import console
from auditkit.errors import AuditkitError
from auditkit.verdict import Verdict, worst

if TYPE_CHECKING:
    from auditkit.trust.page_file import PageFile

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


def page_written(target: PageFile | None, page: Callable[[], bytes], verdict: Verdict) -> tuple[bool, Verdict]:
    """Whether a page was written beside a result, and the verdict then.

    A disk that refuses takes nothing back of what was found: it is told on stderr, and no match ends with 0.
    """
    if target is None:
        return False, verdict
    try:
        target.write(page())
    except AuditkitError as error:
        console.tell(f"error: {console.printable(error.message)}")
        return False, worst([verdict, Verdict.UNSUPPORTED])
    return True, verdict


def to_json(value: object) -> str:
    """One JSON object on one line, ASCII only, so that any stream can carry it."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False)
