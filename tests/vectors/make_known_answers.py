"""Makes the digests that the self-test compares with: auditkit/numerics/known_answers.json.

    python -m tests.vectors.make_known_answers [FILE]

tests/vectors/test_make_known_answers.py makes the file again and compares every byte.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from auditkit.numerics import reference
from auditkit.numerics.known_answers import COMMON, PROBES, answer

FILE = Path(__file__).resolve().parents[2] / "auditkit" / "numerics" / "known_answers.json"


def encode() -> bytes:
    """The file's bytes: one digest a line, sorted by op."""
    digests = {name: answer(name, reference) for name in PROBES} | {name: make() for name, make in COMMON.items()}
    return (json.dumps(digests, indent=0, sort_keys=True) + "\n").encode("ascii")


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else FILE).write_bytes(encode())
