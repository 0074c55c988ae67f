"""Cases of the ops on rows: norm, rotation, MLP, embedding, loss, layout (SPEC.md sections 5, 7, 9 to 12, 15)."""

from __future__ import annotations

from typing import Any

import numpy as np

from auditkit.numerics import reference as ops
from auditkit.numerics.known_inputs import floats, rows
from auditkit.numerics.row_sum import row_sum
from tests.vectors.words import array, f32, f64

Case = dict[str, Any]


def row_sums() -> list[Case]:
    """Widths around powers of two, extreme rows, and the signs of zero."""
    shapes = {f"width {k}": floats(120 + k, 2, k, low=-12, high=12) for k in (1, 2, 3, 4, 5, 8, 9, 16, 17, 33)}
    zeros = {f"{k} minus zeros": np.full((1, k), -0.0, np.float32) for k in (1, 2, 3, 4)}
    named = {**shapes, "extreme rows": rows(7), **zeros, "no elements": np.zeros((2, 0), np.float32)}
    return [{"name": name, "x": array(x), "sum": array(row_sum(x))} for name, x in named.items()]


def rms_norm() -> list[Case]:
    """Widths around powers of two, more rows of 3, 7 and 9 (a mean is a quotient), and extreme rows."""
    inputs = {f"width {k}": floats(150 + k, 3, k) for k in (1, 2, 3, 8, 9)} | {"extreme rows": rows(7)}
    inputs |= {f"mean of {k}": floats(261 if k == 7 else 260, 8, k) for k in (3, 7, 9)}
    cases = []
    for name, x in inputs.items():
        weight, dy = floats(160, x.shape[1]), floats(161, *x.shape, low=-12, high=-2)
        for eps in (1e-5, 1e-6) if name == "width 8" else (1e-5,):
            y, cache = ops.rms_norm_forward(x, weight, np.float32(eps))
            dx, dweight = ops.rms_norm_backward(dy, weight, cache)
            given = {"x": array(x), "weight": array(weight), "dy": array(dy)}
            made = {"rstd": array(cache.rstd), "y": array(y), "dx": array(dx), "dweight": array(dweight)}
            case: Case = {"name": name, "eps": f32(eps)}
            cases.append({**case, **given, **made})
    return cases


def rope() -> list[Case]:
    """Tables of two bases, and the rotation both ways."""
    cases = []
    for tokens, width, theta in ((1, 2, 10_000.0), (5, 6, 10_000.0), (8, 8, 500_000.0)):
        x, dy = floats(170, tokens, width), floats(171, tokens, width, low=-140, high=2)
        table = ops.rope_table(tokens, width, theta)
        case: Case = {"name": f"{tokens} positions of {width}", "theta": f64(theta), "cos": array(table.cos)}
        rotated = {"y": array(ops.rope_forward(x, table)), "dy": array(dy), "dx": array(ops.rope_backward(dy, table))}
        cases.append({**case, "sin": array(table.sin), "x": array(x), **rotated})
    return cases


def swiglu() -> list[Case]:
    """Usual gates, saturated ones, and both signs of zero."""
    sizes = np.array([0.0, 2.0**-149, 1.0, 16.7, 87.3, 87.4, 103.9, 104.0, 3e38], np.float32)
    gates = {"usual": floats(200, 2, 9), "extreme gates": np.stack([sizes, -sizes])}
    cases = []
    for name, gate in gates.items():
        up, dy = floats(201, 2, 9), floats(202, 2, 9)
        y, cache = ops.swiglu_forward(gate, up)
        dgate, dup = ops.swiglu_backward(dy, cache)
        given = {"gate": array(gate), "up": array(up), "dy": array(dy)}
        cases.append({"name": name, **given, "y": array(y), "dgate": array(dgate), "dup": array(dup)})
    return cases


def embedding() -> list[Case]:
    """A repeated token, an absent one, and terms that binary32 would lose."""
    tokens, table = np.array([2, 0, 2, 2, 3], np.int64), rows(3)
    dx = np.concatenate([np.array([[32, 0, 0], [1, 1, 1], [2.0**-56, 0, 0]], np.float32), floats(210, 2, 3, low=-40)])
    forward = array(ops.embedding_forward(tokens, table))
    gradient = array(ops.embedding_backward(dx, tokens, 4))
    case = {"name": "five tokens of four", "tokens": tokens.tolist(), "table": array(table[:4]), "x": forward}
    return [{**case, "dx": array(dx), "dtable": gradient}]


def cross_entropy() -> list[Case]:
    """With and without z-loss; equal, extreme and far apart logits; long rows; a target that is the maximum."""
    apart = np.full((2, 4), -40, np.float32)
    apart[:, 2] = 60
    inputs = {"usual": floats(220, 3, 7, low=-1, high=3), "extreme rows": rows(5)[[2, 3, 5, 6, 7]], "far apart": apart}
    inputs["40 comparable logits"] = floats(221, 4, 40, low=-6, high=-1)
    inputs["large maximum as target"] = np.float32(1000) + floats(222, 4, 6, low=-2, high=1)
    cases = []
    for name, logits in inputs.items():
        targets = np.arange(len(logits)) * 2 % logits.shape[1]
        if "target" in name:
            targets = np.argmax(logits, axis=1)
        for z_loss in (0.0, 1e-4):
            loss_sum, gradient = ops.cross_entropy(logits.copy(), targets, np.float32(z_loss), 48)
            given = {"logits": array(logits), "targets": targets.tolist(), "z_loss": f32(z_loss), "total_targets": 48}
            made = {"loss_sum": str(int(loss_sum)), "mean_loss": f32(ops.mean_loss(int(loss_sum), 48))}
            cases.append({"name": name, **given, **made, "gradient": array(gradient)})
    return cases


def layout() -> list[Case]:
    """Heads split and merged; sums with infinities and both zeros."""
    x = floats(250, 6, 6)
    split = ops.split_heads(x, 2, 3)
    heads = {"name": "split_heads", "batch": 2, "heads": 3, "x": array(x), "split": array(split)}
    a, b = rows(5), np.ascontiguousarray(rows(5)[::-1])
    return [heads, {"name": "add", "x": array(a), "y": array(b), "sum": array(ops.add(a, b))}]
