"""Measures the elementary ops against binary64: the figures of SPEC.md section 6 and the accuracy tests come from here.

    python -m tests.ops.measure_elementary          every word for exp and log, every 16th for sin and cos (minutes)

The error is |result - reference| / ulp, where the reference is NumPy's binary64 function and ulp the distance between
neighbouring binary32 numbers at the reference: 2^(max(floor(log2 |reference|), -126) - 23).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from auditkit.numerics.arrays import F32, F64
from auditkit.numerics.cos import cos
from auditkit.numerics.elementwise import U32
from auditkit.numerics.exp import exp
from auditkit.numerics.log import log
from auditkit.numerics.sin import sin

CHUNK = 1 << 20  # words at a time
SIGN = 0x80000000
INFINITY = 0x7F800000
MAX_FINITE = 3.4028234663852886e38


@dataclass(frozen=True)
class Op:
    """An op, its binary64 reference, and the half-open ranges of words where its result is a finite number."""

    op: Callable[[F32], F32]
    reference: Callable[[F64], F64]
    ranges: tuple[tuple[int, int], ...]


OPS = {
    "exp": Op(exp, np.exp, ((0, 0x42B17218), (SIGN, SIGN | 0x42D20001))),  # up to 88.72283, down to -105
    "log": Op(log, np.log, ((1, INFINITY),)),
    "sin": Op(sin, np.sin, ((0, INFINITY), (SIGN, SIGN | INFINITY))),
    "cos": Op(cos, np.cos, ((0, INFINITY), (SIGN, SIGN | INFINITY))),
}


def ulp_errors(got: F32, reference: F64) -> F64:
    """Errors in units of the last place; got and reference (N,) finite."""
    size = np.maximum(np.abs(reference), 2.0**-126)
    _, exponent = np.frexp(size)
    errors: F64 = np.abs(got.astype(np.float64) - reference) / np.ldexp(1.0, exponent - 24)
    return errors


def worst_error(name: str, words: U32) -> tuple[float, int]:
    """The largest error over these words (in chunks), and the word where it is."""
    op = OPS[name]
    worst, place = 0.0, 0
    for start in range(0, words.size, CHUNK):
        x = words[start : start + CHUNK].view(np.float32)
        errors = ulp_errors(op.op(x), op.reference(x.astype(np.float64)))
        assert np.isfinite(errors).all()
        here = int(errors.argmax())
        if errors[here] > worst:
            worst, place = float(errors[here]), int(words[start + here])
    return worst, place


def sweep(name: str, stride: int) -> tuple[float, int]:
    """worst_error over every stride-th word of the op's ranges."""
    worst = (0.0, 0)
    for first, last in OPS[name].ranges:
        for start in range(first, last, CHUNK * stride):
            words = np.arange(start, min(last, start + CHUNK * stride), stride, dtype=np.uint64).astype(np.uint32)
            worst = max(worst, worst_error(name, words))
    return worst


def main() -> None:
    """Print one line an op."""
    for name, stride in (("exp", 1), ("log", 1), ("sin", 16), ("cos", 16)):
        error, word = sweep(name, stride)
        print(f"{name}: {error:.4f} ulp at {word:08x}, every {stride}. word", flush=True)


if __name__ == "__main__":
    main()
