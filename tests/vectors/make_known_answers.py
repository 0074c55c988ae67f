"""Makes the digests that the self-test compares with: known_answers.json and wide_answers.json of auditkit/numerics.

    python -m tests.vectors.make_known_answers [FOLDER]

tests/vectors/test_make_ops.py makes the files again and compares every byte.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from auditkit.formats.digest import Digest
from auditkit.numerics import reference, wide_answers
from auditkit.numerics.known_answers import COMMON, PROBES, answer

FOLDER = Path(__file__).resolve().parents[2] / "auditkit" / "numerics"


def files() -> dict[str, bytes]:
    """The files' bytes by name: one digest a line, sorted by op."""
    digests = {name: answer(name, reference) for name in PROBES} | {name: make() for name, make in COMMON.items()}
    wide = {name: wide_answers.answer(name, reference) for name in wide_answers.PROBES}
    return {"known_answers.json": _encoded(digests), "wide_answers.json": _encoded(wide)}


def _encoded(digests: dict[str, Digest]) -> bytes:
    return (json.dumps(digests, indent=0, sort_keys=True) + "\n").encode("ascii")


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    for name, data in files().items():
        (folder / name).write_bytes(data)
