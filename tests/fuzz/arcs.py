"""Choose the few inputs that together go every way through the parsers that any of them goes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

Arc = tuple[str, int, int]

_ROOT = Path(__file__).resolve().parents[2]
_OWN = tuple(str(_ROOT / folder) for folder in ("auditkit", "trainer"))


def arcs(run: Callable[[], object]) -> set[Arc]:
    """The steps from line to line within the project's own functions while `run` runs."""
    found: set[Arc] = set()
    last: dict[int, int] = {}

    def local(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            key = id(frame)
            found.add((frame.f_code.co_filename, last.get(key, 0), frame.f_lineno))
            last[key] = frame.f_lineno
        elif event == "return":
            last.pop(id(frame), None)
        return local

    def begin(frame: FrameType, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(_OWN) else None

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        run()
    finally:
        sys.settrace(before)
    return found


def smallest(inputs: Iterable[bytes], run: Callable[[bytes], object]) -> list[bytes]:
    """The inputs that add an arc to those of all shorter ones."""
    seen: set[Arc] = set()
    kept = []
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        new = arcs(lambda data=data: run(data)) - seen  # type: ignore[misc]
        if new:
            seen |= new
            kept.append(data)
    return kept
