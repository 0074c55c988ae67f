"""Which inputs have no result (sections 1, 4 and 13), one case of tests/vectors/no_result.json at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.ops.oracle import attention, layers, plain, sums, update
from tests.ops.oracle.rounding import NoResult, real
from tests.vectors.words import read, read_f32

Case = dict[str, Any]


def has_result(case: Case) -> bool:
    """Whether the specification gives the case a result."""
    try:
        _CHECKS[case["op"]](case)
    except NoResult:
        return False
    return True


def _partial_sums(c: Case) -> None:
    total = 0
    for part in read(c["sums"]):
        total = sums.exact([total, int(part)])


def _dot(c: Case) -> None:
    x, y = read(c["x"]), read(c["y"])
    if c["bits"] == 24:
        plain.product(x, y)
    else:
        sums.product(x, y, c["bits"])


def _weighted_sum(c: Case) -> None:
    weights, rows = read(c["weights"])[0], [sums.round_row(row, c["bits"]) for row in read(c["rows"])]
    sums.weighted_sum(weights, rows, sums.true_bound(weights, rows), c["bits"], len(read(c["rows"])[0]))


def _attention(c: Case) -> None:
    q, k, v, dout, bits = read(c["q"]), read(c["k"]), read(c["v"]), read(c["dout"]), c["bits"]
    if bits == 24:
        out, parts = plain.forward(q, k, v, 0)
        made = out, *plain.backward(dout, q, k, v, parts, 0)
    else:
        out, parts = attention.forward(q, k, v, 0, bits)
        made = out, *attention.backward(dout, q, k, v, parts, 0, bits)
    for array in made:
        _all_finite(array)  # operands of the next product


def _all_finite(x: np.ndarray[Any, Any]) -> None:
    for value in x.reshape(-1):
        real(value)


def _cross_entropy(c: Case) -> None:
    z_loss = float(read_f32(c["z_loss"]))
    layers.cross_entropy(read(c["logits"]), np.array(c["targets"]), z_loss, c["total_targets"])


_CHECKS: dict[str, Callable[[Case], object]] = {
    "terms": lambda c: sums.exact(sums.fixed(x, c["unit"]) for x in read(c["x"])),
    "sum": lambda c: sums.exact(int(t) for t in read(c["terms"])),
    "partial sums": _partial_sums,
    "squares": lambda c: update.norm([update.squares(read(grad)) for grad in c["grads"]]),
    "dot": _dot,
    "weighted sum": _weighted_sum,
    "attention": _attention,
    "cross-entropy": _cross_entropy,
    "state": lambda c: _all_finite(read(c["param"])),
}
