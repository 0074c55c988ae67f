"""Makes the vectors of the ops: inputs and outputs as words, for anybody who implements SPEC.md.

    python -m tests.vectors.make_ops [FOLDER]

Each file says what its fields are; arrays are written as in tests/vectors/words.py. Inputs come from Philox by
integer operations. tests/vectors/test_make_ops.py makes the files again, compares every byte, and asks the oracle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.numerics import reference as ops
from auditkit.numerics.arrays import F32
from auditkit.numerics.exact_dot import quantise
from auditkit.numerics.exact_sum import sum_rows
from auditkit.numerics.known_answers import floats, rows
from auditkit.numerics.row_sum import row_sum
from auditkit.numerics.weighted_sum import true_bound, weighted_sum
from tests.vectors.make_elementary import FORMAT, encode
from tests.vectors.words import array, f32, f64, runs

Case = dict[str, Any]

BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))

ARRAYS = (
    "an array is {shape, f32: words} or {shape, dtype, runs: [[count, word], ..]}, elements in C order; f32 is the "
    "binary32 bit pattern in 8 hexadecimal digits, i64 two's complement in 16, f64 the binary64 bit pattern in 16. "
)


def ties(bits: int) -> F32:
    """One row with maximum 0.75: the rest lies half way between two integers of `bits` bits."""
    return np.array([[0.75, *(np.arange(-4, 5) + 0.5) * 2.0 ** (1 - bits)]], np.float32)


def long_rows(last: int) -> tuple[F32, F32]:
    """Rows of 8194 elements whose integer sum at 21 bits is 2^53 + 2^29 + last."""
    x, y = np.full((1, 8194), BELOW_ONE), np.full((1, 8194), BELOW_ONE)
    y[0, 8192], x[0, 8193], y[0, 8193] = 2.0**-11, 2.0**-20, last * 2.0**-20
    return x, y


def exact_dot() -> list[Case]:
    """Sizes, extreme rows, ties of both roundings, and past 2^53."""
    eye = np.eye(10, dtype=np.float32)
    whole = np.array([[4096, 1, 1, 1], [4096, 1, 0, 0], [4096, 0, 0, 0], [-4096, -1, -1, 0]], np.float32)
    pairs: list[tuple[str, F32, F32]] = [
        ("usual", floats(101, 2, 7), floats(102, 3, 7)),
        ("one element", floats(103, 1, 1), floats(104, 1, 1)),
        ("no elements", np.zeros((1, 0), np.float32), np.zeros((2, 0), np.float32)),
        ("extreme rows", rows(9), rows(9)),
        ("subnormal results", floats(105, 2, 5, low=-76, high=-74), floats(106, 2, 5, low=-76, high=-74)),
        ("infinite results", np.full((1, 2), 3e38, np.float32), np.full((1, 2), -3e38, np.float32)),
        ("sums of 2^24 and 1: ties of the final rounding at 14 bits", whole, whole),
        ("rounds up to the power of two", np.array([[BELOW_ONE]]), np.array([[BELOW_ONE]])),
    ]
    cases = [dot_case(name, x, y, bits) for bits in (14, 21) for name, x, y in pairs]
    cases += [dot_case("ties of the rounding to integers", ties(bits), eye, bits) for bits in (14, 21)]
    cases += [dot_case(f"2^53 + 2^29 + {n}", *long_rows(n), 21, write=runs) for n in (-1, 0, 1)]
    maximal = np.full((1, 9000), BELOW_ONE)
    return [*cases, dot_case("9000 products of 2^40", maximal, -maximal, 21, write=runs)]


def dot_case(name: str, x: F32, y: F32, bits: int, write: Callable[[F32], Case] = array) -> Case:
    """One product X . Y^T with the exponents of its rows."""
    a, b = quantise(x, bits), quantise(y, bits)
    exponents = {"x_exponents": a.exponents.tolist(), "y_exponents": b.exponents.tolist()}
    return {"name": name, "bits": bits, "x": write(x), "y": write(y), **exponents, "product": array(ops.dot(a, b))}


def exact_sum() -> list[Case]:
    """Terms of every size for each unit, ties, and a sum that rounds up by its last bit."""
    cases = []
    for unit in (30, 32, 56):
        halves = np.ldexp(np.arange(-5, 6).astype(np.float32), -unit - 1)
        x = np.concatenate([halves, floats(111, 20, low=-unit - 3, high=3), floats(112, 5, low=-149, high=-140)])
        terms = ops.to_fixed(x, unit)
        total = sum_rows(terms)[None]
        made = {"terms": array(terms), "sum": array(total), "rounded": array(ops.from_fixed([total], unit)[0])}
        cases.append({"name": f"unit {unit}", "unit": unit, "x": array(x), **made})
    sums = np.array(
        [0, 1, -1, (1 << 60) + (1 << 36), (1 << 60) + (1 << 36) + 1, (1 << 53) + 1, -(1 << 61) - 1], np.int64
    )
    return [*cases, {"name": "sums", "unit": 56, "sum": array(sums), "rounded": array(ops.from_fixed([sums], 56)[0])}]


def row_sums() -> list[Case]:
    """Widths around powers of two, extreme rows, and the signs of zero."""
    shapes = {f"width {k}": floats(120 + k, 2, k, low=-12, high=12) for k in (1, 2, 3, 4, 5, 8, 9, 16, 17, 33)}
    named = {**shapes, "extreme rows": rows(7), "minus zeros": np.full((1, 4), -0.0, np.float32)}
    return [{"name": name, "x": array(x), "sum": array(row_sum(x))} for name, x in named.items()]


def weighted_sums() -> list[Case]:
    """Rows of very different size under one bound, zero rows, a true bound of -149."""
    tiny = np.full((1, 5), 2.0**-120, np.float32), np.full((5, 2), 2.0**-30, np.float32)
    inputs = {
        "usual": (floats(141, 3, 5), floats(142, 5, 4)),
        "extreme rows": (floats(143, 3, 8, low=-20, high=0), rows(5)),
        "extreme weights": (floats(144, 2, 4, low=-149, high=-100), floats(145, 4, 3, low=40, high=60)),
        "the largest product is 2^-150": tiny,
        "all weights zero": (np.zeros((1, 3), np.float32), floats(146, 3, 2)),
    }
    cases = []
    for bits in (14, 21):
        for name, (weights, x) in inputs.items():
            rounded = quantise(x, bits)
            bound = true_bound(weights, rounded)
            result = array(weighted_sum(weights, rounded, bound))
            bounds = [e if w.any() else None for e, w in zip(bound.tolist(), weights, strict=True)]
            case = {"name": name, "bits": bits, "weights": array(weights), "rows": array(x)}
            cases.append({**case, "row_exponents": rounded.exponents.tolist(), "bounds": bounds, "result": result})
    return cases


def rms_norm() -> list[Case]:
    """Widths around powers of two and extreme rows."""
    inputs = {f"width {k}": floats(150 + k, 3, k) for k in (1, 2, 3, 8, 9)} | {"extreme rows": rows(7)}
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


def attention() -> list[Case]:
    """Of the exact products."""
    return [case for bits in (14, 21) for case in attention_cases(bits)]


def attention_cases(bits: int) -> list[Case]:
    """Grouped heads, windows, value rows of very different size."""
    uneven = floats(184, 1, 1, 5, 2) * np.ldexp(np.float32(1), np.array([-120, 0, 20, -30, 60]))[:, None]
    inputs = {
        "one token": (floats(180, 1, 1, 1, 2), floats(181, 1, 1, 1, 2), floats(182, 1, 1, 1, 2), (0,)),
        "grouped heads": (floats(185, 2, 4, 5, 4), floats(186, 2, 2, 5, 4), floats(187, 2, 2, 5, 4), (0, 1, 3)),
        "uneven values": (floats(188, 1, 2, 5, 2), floats(189, 1, 1, 5, 2), uneven.astype(np.float32), (0, 2)),
    }
    cases = []
    for name, (q, k, v, windows) in inputs.items():
        dout = floats(190, *q.shape, low=-10, high=-3)
        given = {"q": array(q), "k": array(k), "v": array(v), "dout": array(dout)}
        for window in windows:
            out, cache = ops.attention_forward(q, k, v, window=window, bits=bits)
            gradients = zip(("dq", "dk", "dv"), ops.attention_backward(dout, cache), strict=True)
            made = {"out": array(out)} | {n: array(g) for n, g in gradients}
            cases.append({"name": name, "bits": bits, "window": window, **given, **made})
    return cases


def f32_dot() -> list[Case]:
    """Sizes, extreme rows, ties, and sums whose every order gives another number."""
    ulp = np.float32(2.0**-24)
    order = np.array([[1, ulp, ulp, -1], [ulp, ulp, 1, -1], [1, -1, ulp, ulp], [3e38, 3e38, -3e38, -3e38]], np.float32)
    fused = np.array([[1 + 2.0**-12, 1]], np.float32), np.array([[1 + 2.0**-12, -1 - 2.0**-11]], np.float32)
    pairs: dict[str, tuple[F32, F32]] = {
        "usual": (floats(101, 2, 7), floats(102, 3, 7)),
        "one element": (floats(103, 1, 1), floats(104, 1, 1)),
        "no elements": (np.zeros((1, 0), np.float32), np.zeros((2, 0), np.float32)),
        "long rows": (floats(107, 2, 130, low=-9, high=9), floats(108, 2, 130, low=-9, high=9)),
        "extreme rows": (rows(9), rows(9)),
        "subnormal products": (floats(105, 2, 5, low=-76, high=-74), floats(106, 2, 5, low=-76, high=-74)),
        "minus zeros": (np.full((1, 3), -0.0, np.float32), np.eye(3, dtype=np.float32)),
        "k ascends; 3e38 + 3e38 is infinite": (order, np.ones((1, 4), np.float32)),
        "0 where the product is rounded before the sum": fused,
    }
    return [
        {
            "name": name,
            "x": array(x),
            "y": array(y),
            "product": array(ops.dot(ops.quantise(x, 24), ops.quantise(y, 24))),
        }
        for name, (x, y) in pairs.items()
    ]


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
    """With and without z-loss; equal, extreme and far apart logits."""
    apart = np.full((2, 4), -40, np.float32)
    apart[:, 2] = 60
    inputs = {"usual": floats(220, 3, 7, low=-1, high=3), "extreme rows": rows(5)[[2, 3, 5, 6, 7]], "far apart": apart}
    cases = []
    for name, logits in inputs.items():
        targets = np.arange(len(logits)) * 2 % logits.shape[1]
        for z_loss in (0.0, 1e-4):
            loss_sum, gradient = ops.cross_entropy(logits.copy(), targets, np.float32(z_loss), 48)
            given = {"logits": array(logits), "targets": targets.tolist(), "z_loss": f32(z_loss), "total_targets": 48}
            made = {"loss_sum": str(int(loss_sum)), "mean_loss": f32(ops.mean_loss(int(loss_sum), 48))}
            cases.append({"name": name, **given, **made, "gradient": array(gradient)})
    return cases


def global_norm() -> list[Case]:
    """Gradients of every size, ties of both limbs, clipping on and off."""
    halves = np.concatenate([np.ldexp(np.arange(1, 6, dtype=np.float32), e) for e in (-16, -32)])
    grads = {
        "usual": floats(230, 9),
        "small": floats(231, 9, low=-40, high=-25),
        "subnormal": floats(232, 5, low=-149, high=-70),
        "ties": halves,
        "large": floats(233, 5, low=8, high=14),
        "zeros": np.zeros(2, np.float32),
    }
    cases = []
    for name, grad in grads.items():
        total = ops.squares([grad])
        norm = ops.norm_from_squares([total])
        for clip_norm in (0.0, 1.0):
            factor = ops.clip_factor(norm, np.float32(clip_norm))
            made = {"squares": str(total), "norm": f32(norm), "clip_norm": f32(clip_norm), "clip": f32(factor)}
            cases.append({"name": name, "grad": array(grad), **made})
    return cases


def adamw() -> list[Case]:
    """Updates 1, 2, 256 and 2^24 + 1, subnormal moments, decay on and off."""
    cases = []
    inputs = {
        "usual": (floats(240, 7), floats(241, 7, low=-12, high=-8), abs(floats(242, 7, low=-20, high=-14)), -8),
        "subnormal moments": (floats(243, 7), floats(244, 7, low=-149, high=-120), np.zeros(7, np.float32), -66),
    }
    for name, (p, m, v, low) in inputs.items():
        grad = floats(245, 7, low=low, high=low + 3)
        for update, decayed in ((1, True), (2, False), (256, True), ((1 << 24) + 1, True)):
            options = {"beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1}
            scalars = ops.adamw_scalars(lr=np.float32(1e-3), eps=float(np.float32(1e-8)), update=update, **options)
            new = ops.adamw([p], [m], [v], [grad], clip=np.float32(0.5), scalars=scalars, decayed=[decayed])
            written = {key: f64(value) for key, value in options.items()}
            given = {
                "update": update,
                "decayed": decayed,
                "lr": f32(1e-3),
                "eps": f32(1e-8),
                "clip": f32(0.5),
                **written,
            }
            found = {"c2": f32(scalars.sqrt_correction2), "rate": f32(scalars.step_size), "decay": f32(scalars.decay)}
            arrays = {"param": array(p), "m": array(m), "v": array(v), "grad": array(grad)}
            made = dict(zip(("new_param", "new_m", "new_v"), (array(only) for (only,) in new), strict=True))
            cases.append({"name": name, **given, **found, **arrays, **made})
    return cases


def layout() -> list[Case]:
    """Heads split and merged; sums with infinities and both zeros."""
    x = floats(250, 6, 6)
    split = ops.split_heads(x, 2, 3)
    heads = {"name": "split_heads", "batch": 2, "heads": 3, "x": array(x), "split": array(split)}
    a, b = rows(5), np.ascontiguousarray(rows(5)[::-1])
    return [heads, {"name": "add", "x": array(a), "y": array(b), "sum": array(ops.add(a, b))}]


FILES: dict[str, tuple[str, Callable[[], list[Case]]]] = {
    "exact_dot": ("section 3: product is X . Y^T of the rows rounded to `bits` bits", exact_dot),
    "f32_dot": ("section 16: product is X . Y^T", f32_dot),
    "f32_attention": ("section 16: fields as in attention.json", lambda: attention_cases(24)),
    "exact_sum": ("section 4: terms = rint(x * 2^unit), their sum, and the sum rounded back", exact_sum),
    "row_sum": ("section 5: the ordered sum of each row of x", row_sums),
    "weighted_sum": ("section 8: weights (M, N), rows (N, D); a bound of null: all products are zero", weighted_sums),
    "rms_norm": ("section 7: x, dy (N, C) with weight (C) and eps; dweight in units 2^-56", rms_norm),
    "rope": ("section 9: cos, sin (T, D/2); x, y, dy, dx (T, D); theta is f64", rope),
    "attention": ("section 8: q, dout (B, H, T, D), k, v (B, G, T, D); window 0 is none", attention),
    "swiglu": ("section 10: gate, up, dy", swiglu),
    "embedding": ("section 11: rows of the table by token; dtable (V, C) in units 2^-56", embedding),
    "cross_entropy": ("section 12: loss_sum in units 2^-32 as a decimal, mean_loss of it alone", cross_entropy),
    "global_norm": ("section 13: squares in units 2^-62 as a decimal, of this tensor alone", global_norm),
    "adamw": ("section 14: `update` is t; beta1, beta2, weight_decay are f64, all else f32", adamw),
    "layout": ("section 15: split makes heads, add is one binary32 addition", layout),
}


def vectors() -> dict[str, dict[str, Any]]:
    """Every file by the name of its op."""
    return {
        op: {"format": FORMAT, "op": op, "about": f"SPEC.md {about}; {ARRAYS.strip()}", "cases": make()}
        for op, (about, make) in FILES.items()
    }


def main(folder: Path) -> None:
    """Write every file into the folder."""
    for op, vector in vectors().items():
        (folder / f"{op}.json").write_bytes(encode(vector))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
