"""`metrics.jsonl`: figures of each step for people and plots; no bit of the run depends on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from auditkit.cli import console
from trainer.disk import read_bytes, write_atomic

METRICS = "metrics.jsonl"
_NUMBERS = ("step", "loss", "lr")


def read_metrics(data: bytes) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Each whole line with its figures; a torn or damaged one is left out."""
    for line in data.splitlines(keepends=True):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if line.endswith(b"\n") and isinstance(row, dict) and all(type(row.get(k)) in (int, float) for k in _NUMBERS):
            yield line, row


def cut_metrics(path: Path, step: int) -> int:
    """Leave the lines of steps below `step`, with a note where some are missing; returns the bytes to keep."""
    data = read_bytes(path) if path.is_file() else b""
    lines = [line for line, row in read_metrics(data) if row["step"] < step]
    kept = b"".join(lines)
    if len(lines) < step:
        console.tell(f"note: {path}: figures of {step - len(lines)} steps are missing; the run needs none")
    if not path.is_file() or not data.startswith(kept):
        write_atomic(path, kept)
    return len(kept)
