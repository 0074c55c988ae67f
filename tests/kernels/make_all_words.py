"""Digests of exp and log over all 2^32 binary32 words, by the reference; for a device, which does them all in seconds.

    python -m tests.kernels.make_all_words

Writes tests/kernels/all_words.json: for each op 64 BLAKE3 digests, of the outputs (little-endian words) for the inputs
n * 2^26 .. (n + 1) * 2^26 - 1, n = 0 .. 63. Takes a minute; tests/kernels/test_all_words.py makes two of them again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from auditkit.formats.digest import Hasher
from auditkit.numerics.arrays import F32
from auditkit.numerics.exp import exp
from auditkit.numerics.log import log

FILE = Path(__file__).with_name("all_words.json")
FORMAT = "auditkit/all words/v1"
CHUNK = 1 << 26
CHUNKS = (1 << 32) // CHUNK
OPS: dict[str, Callable[[F32], F32]] = {"exp": exp, "log": log}

_PIECE = 1 << 22  # words at a time, for the reference's sake


def words(first: int, count: int) -> npt.NDArray[np.uint32]:
    """The words first, first + 1, .. (count of them)."""
    return np.arange(count, dtype=np.uint32) + np.uint32(first)


def chunk_digest(op: str, chunk: int) -> str:
    """The digest of the reference's outputs over one chunk."""
    hasher = Hasher()
    for first in range(chunk * CHUNK, (chunk + 1) * CHUNK, _PIECE):
        hasher.update(OPS[op](words(first, _PIECE).view(np.float32)).astype("<f4", copy=False).view(np.uint8))
    return hasher.hexdigest()


def load(op: str) -> list[str]:
    """The committed digests of an op, one a chunk."""
    digests: list[str] = json.loads(FILE.read_text(encoding="ascii"))[op]
    return digests


def main() -> None:
    """Make the file."""
    made = {op: [chunk_digest(op, chunk) for chunk in range(CHUNKS)] for op in OPS}
    text = json.dumps({"format": FORMAT, **made}, indent=1) + "\n"
    FILE.write_text(text, encoding="ascii", newline="\n")


if __name__ == "__main__":
    main()
