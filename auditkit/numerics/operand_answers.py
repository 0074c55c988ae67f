"""What the ops that make operands of products give for fixed inputs: a part of known_answers.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np

from auditkit.numerics.known_inputs import floats, rows

BITS = (14, 21, 24)  # fx14, fx21, f32
EPS = np.float32(1e-5)

Place: TypeAlias = Callable[[Any], Any]  # puts a NumPy array where the arrays of the ops live
Outputs: TypeAlias = Iterator[Any]

PROBES: dict[str, Callable[[Any, Place], Outputs]] = {}


def _kept(ops: Any, made: tuple[Any, ...], bits: int) -> tuple[Any, Any]:
    return made[0], ops.kept_columns(made[1], bits)


def _operands(name: str, widths: tuple[int, ...], make: Callable[[Any, Place, int], Iterable[Any]]) -> None:
    """Register a probe: the products of operands with ones on the diagonal show every integer of their rows."""

    def probe(ops: Any, place: Place) -> Outputs:
        for bits in BITS:
            for made, width in zip(make(ops, place, bits), widths, strict=True):
                yield ops.dot(made, ops.quantise(place(np.eye(width, dtype=np.float32)), bits))

    PROBES[name] = probe


def _swiglu_both(ops: Any, place: Place, bits: int) -> tuple[Any, ...]:
    cache = ops.swiglu_forward(place(rows(12)), place(floats(24, 8, 12)))[1]
    gate, up = ops.swiglu_backward_both(place(floats(26, 8, 12)), cache, bits)
    return *gate, *up


_operands("quantise", (9,), lambda o, p, b: (o.quantise(p(rows(9)), b),))
_operands("quantise_t", (8,), lambda o, p, b: (o.quantise_t(p(rows(9)), b),))
_operands("quantise_both", (9, 8), lambda o, p, b: o.quantise_both(p(rows(9)), b))
_operands("quantise_keep", (9,), lambda o, p, b: o.quantise_keep(p(rows(9)), b)[:1])
_operands("kept_columns", (9, 8), lambda o, p, b: _kept(o, o.quantise_keep(p(rows(9)), b), b))
_operands("merge_heads_keep", (9, 6), lambda o, p, b: _kept(o, o.merge_heads_keep(p(floats(48, 2, 3, 3, 3)), b), b))
_operands("merge_heads_rows", (9,), lambda o, p, b: (o.merge_heads_rows(p(floats(48, 2, 3, 3, 3)), b),))
_operands("merge_heads_both", (9, 6), lambda o, p, b: o.merge_heads_both(p(floats(49, 2, 3, 3, 3)), b))
_operands("rms_norm_keep", (8, 8), lambda o, p, b: _kept(o, o.rms_norm_keep(p(rows(8)), p(floats(15, 8)), EPS, b), b))
_operands("rms_norm_rows", (8,), lambda o, p, b: (o.rms_norm_rows(p(rows(8)), p(floats(15, 8)), EPS, b),))
_operands("swiglu_rows", (12,), lambda o, p, b: (o.swiglu_rows(p(rows(12)), p(floats(24, 8, 12)), b),))
_operands(
    "swiglu_columns", (8,),
    lambda o, p, b: (o.kept_columns(o.swiglu_columns(p(rows(12)), p(floats(24, 8, 12)), b)[0], b),),
)  # fmt: skip
_operands("swiglu_keep", (12, 8), lambda o, p, b: _kept(o, o.swiglu_keep(p(rows(12)), p(floats(24, 8, 12)), b), b))
_operands("swiglu_backward_both", (12, 8, 12, 8), _swiglu_both)
_operands("quantise_columns", (8,), lambda o, p, b: (o.quantise_columns([p(rows(9)[:5]), p(rows(9)[5:])], 2, 7, b),))
