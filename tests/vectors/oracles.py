"""The oracle on the committed vectors: for each file a function from a case to what the fields should be.

Only the case is read: the functions use tests/ops/oracle and nothing of auditkit.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.ops.oracle import attention, layers, plain, results, sums, update
from tests.ops.oracle.rounding import ieee
from tests.vectors.words import f32, read, read_f32, read_f64

FOLDER = Path(__file__).resolve().parent
Case = dict[str, Any]


def cases_of(op: str) -> list[Case]:
    """The cases of a committed file."""
    found: list[Case] = json.loads((FOLDER / f"{op}.json").read_text(encoding="ascii"))["cases"]
    return found


def differences(op: str, case: Case) -> list[str]:
    """The fields in which the oracle's words are not those of the case."""
    return [name for name, want in ORACLES[op](case).items() if not _same(case[name], want)]


def _same(written: Any, want: Any) -> bool:
    if not isinstance(want, np.ndarray):
        return bool(written == want)
    got = read(written)
    return got.dtype == want.dtype and got.shape == want.shape and got.tobytes() == want.tobytes()


def exact_dot(c: Case) -> dict[str, Any]:
    """Section 3."""
    x, y = read(c["x"]), read(c["y"])
    exponents = ([sums.round_row(row, c["bits"]).exponent for row in z] for z in (x, y))
    return {"x_exponents": next(exponents), "y_exponents": next(exponents), "product": sums.product(x, y, c["bits"])}


def exact_sum(c: Case) -> dict[str, Any]:
    """Section 4."""
    if "x" not in c:
        return {"rounded": np.array([sums.from_fixed(int(s), c["unit"]) for s in read(c["sum"])], np.float32)}
    terms = [sums.fixed(v, c["unit"]) for v in read(c["x"])]
    total = sums.exact(terms)
    rounded = np.array([sums.from_fixed(total, c["unit"])], np.float32)
    return {"terms": np.array(terms, np.int64), "sum": np.array([total], np.int64), "rounded": rounded}


def row_sum(c: Case) -> dict[str, Any]:
    """Section 5."""
    return {"sum": np.array([sums.row_sum(row) for row in read(c["x"])], np.float32)}


def weighted_sum(c: Case) -> dict[str, Any]:
    """Section 8."""
    weights, rows = read(c["weights"]), [sums.round_row(row, c["bits"]) for row in read(c["rows"])]
    bounds = [sums.true_bound(w, rows) for w in weights]
    width = read(c["rows"]).shape[1]
    result = [sums.weighted_sum(w, rows, e, c["bits"], width) for w, e in zip(weights, bounds, strict=True)]
    shown = [e if w.any() else None for w, e in zip(weights, bounds, strict=True)]
    exponents: Any = [row.exponent for row in rows]
    if isinstance(c["row_exponents"], dict):
        exponents = np.array(exponents, np.int64)
    return {"row_exponents": exponents, "bounds": shown, "result": np.array(result, np.float32)}


def rms_norm(c: Case) -> dict[str, Any]:
    """Section 7."""
    weight = read(c["weight"])
    y, rstd, xhat = layers.rms_norm(read(c["x"]), weight, read_f32(c["eps"]))
    dx, dweight = layers.rms_norm_backward(read(c["dy"]), weight, rstd, xhat)
    return {"rstd": rstd, "y": y, "dx": dx, "dweight": dweight}


def rope(c: Case) -> dict[str, Any]:
    """Section 9."""
    x, theta = read(c["x"]), read_f64(c["theta"])
    cos, sin = layers.rope_angles(x.shape[0], x.shape[1], theta)
    return {"cos": cos, "sin": sin, "y": layers.rope(x, theta), "dx": layers.rope(read(c["dy"]), theta, backward=True)}


def attention_case(c: Case) -> dict[str, Any]:
    """Section 8."""
    q, k, v, window, bits = read(c["q"]), read(c["k"]), read(c["v"]), c["window"], c["bits"]
    out, parts = attention.forward(q, k, v, window, bits)
    dq, dk, dv = attention.backward(read(c["dout"]), q, k, v, parts, window, bits)
    return {"out": out, "dq": dq, "dk": dk, "dv": dv}


def f32_dot(c: Case) -> dict[str, Any]:
    """Section 16."""
    return {"product": plain.product(read(c["x"]), read(c["y"]))}


def f32_attention(c: Case) -> dict[str, Any]:
    """Section 16."""
    q, k, v, window = read(c["q"]), read(c["k"]), read(c["v"]), c["window"]
    out, parts = plain.forward(q, k, v, window)
    dq, dk, dv = plain.backward(read(c["dout"]), q, k, v, parts, window)
    return {"out": out, "dq": dq, "dk": dk, "dv": dv}


def swiglu(c: Case) -> dict[str, Any]:
    """Section 10."""
    gate, up, dy = (read(c[name]).reshape(-1) for name in ("gate", "up", "dy"))
    dgate, dup = layers.swiglu_backward(gate, up, dy)
    shape = c["gate"]["shape"]
    return {n: a.reshape(shape) for n, a in (("y", layers.swiglu(gate, up)), ("dgate", dgate), ("dup", dup))}


def embedding(c: Case) -> dict[str, Any]:
    """Section 11."""
    tokens, table = np.array(c["tokens"]), read(c["table"])
    dtable = layers.embedding_backward(read(c["dx"]), tokens, len(table))
    return {"x": np.stack([table[t] for t in tokens]), "dtable": dtable}


def cross_entropy(c: Case) -> dict[str, Any]:
    """Section 12."""
    targets, total = np.array(c["targets"]), c["total_targets"]
    loss_sum, gradient = layers.cross_entropy(read(c["logits"]), targets, float(read_f32(c["z_loss"])), total)
    return {"loss_sum": str(loss_sum), "mean_loss": f32(layers.mean_loss(loss_sum, total)), "gradient": gradient}


def global_norm(c: Case) -> dict[str, Any]:
    """Section 13."""
    total = update.squares(read(c["grad"]))
    norm = update.norm([total])
    return {"squares": str(total), "norm": f32(norm), "clip": f32(update.clip_factor(norm, read_f32(c["clip_norm"])))}


def adamw(c: Case) -> dict[str, Any]:
    """Section 14."""
    betas = read_f64(c["beta1"]), read_f64(c["beta2"])
    s = update.scalars(read_f32(c["lr"]), *betas, float(read_f32(c["eps"])), read_f64(c["weight_decay"]), c["update"])
    p, m, v, grad = (read(c[name]) for name in ("param", "m", "v", "grad"))
    new = update.adamw(p, m, v, grad, read_f32(c["clip"]), s, decayed=c["decayed"])
    arrays = dict(zip(("new_param", "new_m", "new_v"), new, strict=True))
    words = {name: f32(getattr(s, name)) for name in ("a1", "a2", "c2", "rate")}
    return {**words, "decay": f32(s.decay if c["decayed"] else np.float32(1)), **arrays}


def fold(c: Case) -> dict[str, Any]:
    """Section 17."""
    terms = np.array([[sums.from_fixed(int(a), 56) for a in row] for row in read(c["sums"])], np.float32)
    return {"terms": terms, "gradient": np.array([update.fold(list(x), c["radices"]) for x in terms.T], np.float32)}


def no_result(c: Case) -> dict[str, Any]:
    """Sections 1, 4 and 13."""
    return {"has_result": results.has_result(c)}


def layout(c: Case) -> dict[str, Any]:
    """Section 15."""
    x = read(c["x"])
    if c["name"] == "add":
        with ieee():
            return {"sum": x + read(c["y"])}
    tokens, dim = len(x) // c["batch"], x.shape[1] // c["heads"]
    split = np.empty((c["batch"], c["heads"], tokens, dim), np.float32)
    for b, h, t, d in np.ndindex(split.shape):
        split[b, h, t, d] = x[b * tokens + t, h * dim + d]
    return {"split": split}


ORACLES: dict[str, Callable[[Case], dict[str, Any]]] = {
    "exact_dot": exact_dot,
    "f32_dot": f32_dot,
    "f32_attention": f32_attention,
    "exact_sum": exact_sum,
    "row_sum": row_sum,
    "weighted_sum": weighted_sum,
    "rms_norm": rms_norm,
    "rope": rope,
    "attention": attention_case,
    "swiglu": swiglu,
    "embedding": embedding,
    "cross_entropy": cross_entropy,
    "global_norm": global_norm,
    "adamw": adamw,
    "fold": fold,
    "layout": layout,
    "no_result": no_result,
}
