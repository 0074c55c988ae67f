"""The kept corpus: one file a target, one input a line in base64, sorted, each once.

Hundreds of small files would be slower to check out than to run; lines of text can be compared and merged.
"""

from __future__ import annotations

import base64
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "corpus"
MOST_BYTES = 160_000  # of the file of one target; few come near it


def read(target: str) -> list[bytes]:
    """The inputs of a target; none where no file is kept."""
    path = FOLDER / f"{target}.txt"
    return [base64.b64decode(line, validate=True) for line in path.read_bytes().split()] if path.is_file() else []


def write(target: str, inputs: list[bytes]) -> None:
    """Keep as many as fit, the short ones first."""
    lines = sorted({base64.b64encode(data) for data in inputs if data}, key=lambda line: (len(line), line))
    kept, size = [], 0
    for line in lines:
        size += len(line) + 1
        if size > MOST_BYTES:
            break
        kept.append(line)
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{target}.txt").write_bytes(b"".join(line + b"\n" for line in sorted(kept)))
