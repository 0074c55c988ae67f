"""Inputs on both sides of every edge beyond which a step has no result (SPEC.md sections 1, 4, 13)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from auditkit.numerics import reference as ops
from auditkit.numerics.arrays import F32
from auditkit.numerics.exact_dot import quantise
from auditkit.numerics.exact_sum import sum_rows
from auditkit.numerics.known_inputs import floats
from auditkit.numerics.nonfinite import NonFinite
from auditkit.numerics.weighted_sum import true_bound, weighted_sum
from tests.vectors.words import array, f32, read, read_f32

Case = dict[str, Any]

HALF = 1 << 61
BAD = {"inf": np.float32(np.inf), "-inf": np.float32(-np.inf), "NaN": np.float32(np.nan)}


def no_result() -> list[Case]:
    """All cases, each with what the reference says."""
    cases = [*terms(), *sums(), *partial_sums(), *squares(), *operands(), *scores(), *losses(), *states()]
    return [{**case, "has_result": has_result(case)} for case in cases]


def has_result(case: Case) -> bool:
    """Whether the reference computes the case."""
    try:
        _REFERENCE[case["op"]](case)
    except NonFinite:
        return False
    return True


def _terms(c: Case) -> None:
    sum_rows(ops.to_fixed(read(c["x"]), c["unit"]))


def _partial_sums(c: Case) -> None:
    total, *rest = read(c["sums"])[:, None]
    for part in rest:
        (total,) = ops.add_sums([total], [part])


def _squares(c: Case) -> None:
    ops.norm_from_squares([ops.squares([read(grad) for grad in c["grads"]])])


def _dot(c: Case) -> None:
    ops.dot(*(ops.quantise(read(c[name]), c["bits"]) for name in ("x", "y")))


def _weighted_sum(c: Case) -> None:
    rounded, weights = quantise(read(c["rows"]), c["bits"]), read(c["weights"])
    weighted_sum(weights, rounded, true_bound(weights, rounded))


def _attention(c: Case) -> None:
    q, k, v = (read(c[name]) for name in "qkv")
    out, cache = ops.attention_forward(q, k, v, window=0, bits=c["bits"])
    for made in (out, *ops.attention_backward(read(c["dout"]), cache)):
        ops.quantise(made, c["bits"])  # the product that it enters next


def _cross_entropy(c: Case) -> None:
    ops.cross_entropy(read(c["logits"]), np.array(c["targets"]), read_f32(c["z_loss"]), c["total_targets"])


_REFERENCE: dict[str, Callable[[Case], object]] = {
    "terms": _terms,
    "sum": lambda c: sum_rows(read(c["terms"])),
    "partial sums": _partial_sums,
    "squares": _squares,
    "dot": _dot,
    "weighted sum": _weighted_sum,
    "attention": _attention,
    "cross-entropy": _cross_entropy,
    "state": lambda c: ops.check_finite({"param": read(c["param"])}),
}


def terms() -> list[Case]:
    """|x| * 2^unit at and below 2^62, sums of terms at both ends of the range, and what is not finite."""
    cases = []
    for unit in (30, 32, 56):
        limit = np.float32(2.0 ** (62 - unit))
        below = np.nextafter(limit, np.float32(0))
        half = limit / 2
        found = {
            "2^62": [0, limit],
            "-2^62": [0, -limit],
            "below 2^62": [below, -below],
            "2^61 twice": [half, half],
            "-2^61 twice": [-half, -half],
            "through 2^62 and back": [half, half, -half, 1],
            **{name: [0, bad] for name, bad in BAD.items()},
        }
        for name, x in found.items():
            cases.append({"name": name, "op": "terms", "unit": unit, "x": array(np.array(x, np.float32))})
    return cases


def sums() -> list[Case]:
    """Integers of one micro-batch: the range is that of the true sum."""
    top = 2 * HALF - 1  # the largest in range; no single term is larger
    found = {
        "2^62 - 1": [top],
        "2^62": [top, 1],
        "-2^62": [-top, -1],
        "-2^62 - 1": [-top, -2],
        "in range at last": [top, top, top, -top, -top, -1],
        "2^64, which wraps to 0": [HALF] * 8,
        "-2^64 - 2^61": [-HALF] * 9,
        "a tied table: the head's term, last, takes the sum back": [top, 9, -10],
        "a tied table: the head's term takes the sum beyond": [HALF, HALF - 1, 1],
        "nothing": [],
    }
    return [{"name": name, "op": "sum", "terms": array(np.array(x, np.int64))} for name, x in found.items()]


def partial_sums() -> list[Case]:
    """Sums of micro-batches in their order: every partial sum must lie in the range."""
    found = {
        "one of -2^62": [-2 * HALF],
        "2^62 - 1": [HALF, HALF - 1],
        "2^62": [HALF, HALF],
        "-2^62": [-HALF, -HALF],
        "-2^62 - 1": [-HALF, -HALF, -1],
        "through 2^62 and back": [HALF, HALF, -HALF],
        "the same, never through 2^62": [HALF, -HALF, HALF],
        "through -2^62 and back": [-HALF, -HALF, HALF],
    }
    return [{"name": name, "op": "partial sums", "sums": array(np.array(x, np.int64))} for name, x in found.items()]


def squares() -> list[Case]:
    """x * 2^30 at and below 2^62; Q at 2^94 in one tensor and over two, and just below; what is not finite."""
    limit = np.float32(65536)
    half = np.float32(32768)
    found: dict[str, list[list[Any]]] = {
        "x is 2^32": [[limit]],
        "x is below 2^32": [[np.nextafter(limit, np.float32(0))]],
        "x is infinite": [[1e30]],
        "2^94": [[half] * 4],
        "2^94 over two tensors": [[half] * 2, [-half] * 2],
        "below 2^94": [[half] * 3, [np.nextafter(half, np.float32(0))]],
        **{name: [[1, bad]] for name, bad in BAD.items()},
    }
    grads = {name: [array(np.array(g, np.float32)) for g in tensors] for name, tensors in found.items()}
    return [{"name": name, "op": "squares", "grads": value} for name, value in grads.items()]


def operands() -> list[Case]:
    """Operands that are not finite, also where they meet zeros; weights of a zero row."""
    x, zeros = floats(260, 2, 3), np.zeros((2, 3), np.float32)
    cases: list[Case] = []
    for bits in (14, 21, 24):
        cases.append({"name": "finite", "op": "dot", "bits": bits, "x": array(x), "y": array(zeros)})
        for name, bad in BAD.items():
            spoilt = array(_with(x, bad))
            cases.append({"name": f"{name} in x", "op": "dot", "bits": bits, "x": spoilt, "y": array(zeros)})
            cases.append({"name": f"{name} in y", "op": "dot", "bits": bits, "x": array(zeros), "y": spoilt})
    weights, rows = floats(261, 1, 2), floats(262, 2, 2)
    rows = np.stack([rows[0], np.zeros(2, np.float32)])
    given = {"finite": (weights, rows)}
    for name, bad in BAD.items():
        given[f"{name} as weight of a zero row"] = _with(weights, bad), rows
        given[f"{name} in a row"] = weights, _with(rows, bad)
    for name, (w, r) in given.items():
        cases.append({"name": name, "op": "weighted sum", "bits": 14, "weights": array(w), "rows": array(r)})
    return cases


def _with(x: F32, bad: np.float32) -> F32:
    changed = x.copy()
    changed.reshape(-1)[-1] = bad
    return changed


def scores() -> list[Case]:
    """A score of -inf beside a finite one is a weight of 0; alone, or of +inf, it leaves a NaN."""
    huge = np.float32(2.0**100)
    one = np.ones((1, 1, 2, 2), np.float32)
    keys: dict[str, tuple[Any, Any]] = {
        "finite": (1, 1),
        "-inf beside a finite score": (-huge, 0),
        "-inf alone": (-huge, -huge),
        "inf": (huge, 0),
    }
    cases: list[Case] = []
    for bits in (14, 24):
        for name, (first, second) in keys.items():
            k, q = one.copy(), one.copy()
            k[0, 0, :, 0] = first, second
            q[0, 0, :, 0] = (0, huge)  # query 0 sees key 0 alone: a score of 0 keeps it finite
            given = {"q": array(q), "k": array(k), "v": array(one), "dout": array(one)}
            cases.append({"name": name, "op": "attention", "bits": bits, **given})
    return cases


def losses() -> list[Case]:
    """A loss at and below 2^30, a z-loss that overflows even when it is off, logits that are not finite."""
    found = {
        "below 2^30": [0.0, 2.0**29],
        "2^30": [0.0, 2.0**30],
        "lse * lse is infinite, times 0": [0.0, 1e20],
        "inf": [0.0, np.inf],
        "NaN": [0.0, np.nan],
        "-inf beside the target": [0.0, -np.inf],
        "-inf as the target": [-np.inf, 0.0],
    }
    given = {"targets": [0], "z_loss": f32(0.0), "total_targets": 1}
    logits = {name: array(np.array([row], np.float32)) for name, row in found.items()}
    return [{"name": name, "op": "cross-entropy", "logits": x, **given} for name, x in logits.items()]


def states() -> list[Case]:
    """A new parameter or moment that is not finite."""
    found = {"finite": np.float32(3e38), **BAD}
    return [{"name": name, "op": "state", "param": array(_with(floats(263, 3), x))} for name, x in found.items()]
