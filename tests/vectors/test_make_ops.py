"""The committed vectors of the ops: the generator makes them again, and the oracle, from the file alone, agrees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.numerics import self_test
from tests.ops.oracle import attention, layers, plain, sums, update
from tests.ops.oracle.rounding import ieee
from tests.same_bits import assert_same_bits
from tests.vectors import make_known_answers
from tests.vectors.make_elementary import encode
from tests.vectors.make_ops import FILES, vectors
from tests.vectors.words import Array, array, f32, f64, read, read_f32, read_f64, runs

FOLDER = Path(__file__).resolve().parent
Case = dict[str, Any]


def cases_of(op: str) -> list[Case]:
    """The cases of a committed file."""
    found: list[Case] = json.loads((FOLDER / f"{op}.json").read_text(encoding="ascii"))["cases"]
    return found


@pytest.fixture(scope="module")
def made() -> dict[str, dict[str, Any]]:
    """What the generator makes here."""
    return vectors()


@pytest.mark.parametrize("op", FILES)
def test_generator_makes_the_committed_bytes(op: str, made: dict[str, dict[str, Any]]) -> None:
    assert encode(made[op]) == (FOLDER / f"{op}.json").read_bytes()


def test_generator_makes_the_committed_known_answers() -> None:
    assert make_known_answers.encode() == make_known_answers.FILE.read_bytes()
    assert make_known_answers.FILE.parent == Path(self_test.__file__).parent


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
    total = np.array([sum(terms)], np.int64)
    rounded = np.array([sums.from_fixed(sum(terms), c["unit"])], np.float32)
    return {"terms": np.array(terms, np.int64), "sum": total, "rounded": rounded}


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
    return {"row_exponents": [row.exponent for row in rows], "bounds": shown, "result": np.array(result, np.float32)}


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
    return {"c2": f32(s.c2), "rate": f32(s.rate), "decay": f32(s.decay), **arrays}


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
    "layout": layout,
}


@pytest.mark.parametrize("op", FILES)
def test_the_oracle_reproduces_every_committed_case(op: str) -> None:
    cases = cases_of(op)
    assert cases
    for case in cases:
        for name, want in ORACLES[op](case).items():
            if isinstance(want, np.ndarray):
                assert_same_bits(read(case[name]), want)
            else:
                assert case[name] == want, (case["name"], name)


@pytest.mark.parametrize(
    "values",
    [
        np.array([[0.0, -0.0, 1.5], [2.0**-149, 3e38, -1]], np.float32),
        np.array([-1, 1 << 62, 0], np.int64),
        np.zeros((0, 3), np.float32),
        np.zeros(5, np.float32),
    ],
)
def test_arrays_written_as_words_read_back(values: Array) -> None:
    for write in (array, runs):
        assert_same_bits(read(json.loads(json.dumps(write(values)))), values)


def test_numbers_written_as_words_read_back() -> None:
    assert (f32(-0.0), f64(1.0)) == ("80000000", "3ff0000000000000")
    assert (float(read_f32("3f800001")), read_f64("bff0000000000000")) == (1 + 2.0**-23, -1.0)
