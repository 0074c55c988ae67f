"""Digests of what ops give, and the files of the right ones, which tests/vectors/make_known_answers.py makes."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from importlib import resources
from typing import Any

import numpy as np

from auditkit.formats.digest import Digest, content_digest


def digest_of(ops: Any, outputs: Iterable[Any]) -> Digest:
    """The digest of numbers, texts and arrays of a back end."""
    return content_digest("\n".join(_text(ops, output) for output in outputs).encode("ascii"))


def _text(ops: Any, output: Any) -> str:
    """One output: its bits, or for an array the digest that the back end makes of it."""
    if isinstance(output, (float, np.floating)):
        return float(output).hex()
    return str(output if isinstance(output, (int, str)) else ops.digests([output])[0])


@functools.cache
def right(file: str) -> dict[str, Digest]:
    """The digests of a file beside this one, by name of op."""
    found: dict[str, Digest] = json.loads(
        resources.files("auditkit.numerics").joinpath(file).read_text(encoding="utf-8")
    )
    return found
