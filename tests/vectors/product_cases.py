"""Cases of the products: exact dot, f32 dot, weighted sum, attention (SPEC.md sections 3, 8, 16)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from auditkit.numerics import reference as ops
from auditkit.numerics.arrays import F32
from auditkit.numerics.exact_dot import quantise
from auditkit.numerics.known_inputs import floats, rows
from auditkit.numerics.weighted_sum import true_bound, weighted_sum
from tests.vectors.words import array, runs

Case = dict[str, Any]

BELOW_ONE = np.nextafter(np.float32(1), np.float32(0))


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


def weighted_sums() -> list[Case]:
    """Rows of very different size under one bound, zero rows, bounds of -149 and far below, a sum beyond 2^53."""
    tiny = np.full((1, 5), 2.0**-120, np.float32), np.full((5, 2), 2.0**-30, np.float32)
    zero_row = np.array([[2.0**100, 0.7, -0.3]], np.float32), np.array([[0, 0], [1e-30, 2e-30], [7e-30, 0]], np.float32)
    inputs = {
        "usual": (floats(141, 3, 5), floats(142, 5, 4)),
        "extreme rows": (floats(143, 3, 8, low=-20, high=0), rows(5)),
        "extreme weights": (floats(144, 2, 4, low=-149, high=-100), floats(145, 4, 3, low=40, high=60)),
        "the largest product is 2^-150": tiny,
        "bounds below -149": (floats(147, 3, 4, low=-149, high=-130), floats(148, 4, 3, low=-60, high=-30)),
        "a zero row has no say in the bound": zero_row,
        "all weights zero": (np.zeros((1, 3), np.float32), floats(146, 3, 2)),
    }
    cases = [weighted_case(name, *given, bits) for bits in (14, 21) for name, given in inputs.items()]
    cases += [weighted_case("subnormal, above a tie, bound -151", *above_a_tie(bits), bits) for bits in (14, 21)]
    return cases + [weighted_case(f"2^53 + 2^29 + {n}", *long_column(n), 21, write=runs) for n in (-1, 0, 1)]


def above_a_tie(bits: int) -> tuple[F32, F32]:
    """32 equal products of (0.625 + 2^(1-bits)) 2^-152: with all their bits the sum is just above 2.5 * 2^-149."""
    weight = (0.625 * 2.0 ** (bits - 1) + 1) * 2.0**-149
    return np.full((1, 32), weight, np.float32), np.full((32, 1), 2.0 ** (-bits - 2), np.float32)


def long_column(last: int) -> tuple[F32, F32]:
    """Weights (1, 8195) and rows (8195, 1) whose integer sum at 21 bits is 2^53 + 2^29 + last."""
    weights, x = np.full((1, 8195), BELOW_ONE), np.full((8195, 1), BELOW_ONE)
    weights[0, 8192:] = 2.0**-11, last * 2.0**-20, -last * 2.0**-20
    x[8194] = 1 - 2.0**-20  # the integer 2^20 - 1 where the others are 2^20
    return weights, x


def weighted_case(name: str, weights: F32, x: F32, bits: int, write: Callable[[F32], Case] = array) -> Case:
    """One weighted sum under its true bound, with the exponents of the rows."""
    rounded = quantise(x, bits)
    bound = true_bound(weights, rounded)
    bounds = [e if w.any() else None for e, w in zip(bound.tolist(), weights, strict=True)]
    exponents = rounded.exponents
    shown = exponents.tolist() if write is array else write(exponents.astype(np.int64))
    case = {"name": name, "bits": bits, "weights": write(weights), "rows": write(x), "row_exponents": shown}
    return {**case, "bounds": bounds, "result": array(weighted_sum(weights, rounded, bound))}


def attention() -> list[Case]:
    """Of the exact products."""
    return [case for bits in (14, 21) for case in attention_cases(bits)]


def attention_cases(bits: int) -> list[Case]:
    """Grouped heads, windows, value rows of very different size, head widths whose scale binary32 gets wrong."""
    uneven = floats(184, 1, 1, 5, 2) * np.ldexp(np.float32(1), np.array([-120, 0, 20, -30, 60]))[:, None]
    leaving = floats(191, 1, 1, 5, 2) * np.ldexp(np.float32(1), np.array([22, 0, -3, 1, -2], np.int32))[:, None]
    inputs: dict[str, tuple[F32, F32, F32, tuple[int, ...]]] = {
        "one token": (floats(180, 1, 1, 1, 2), floats(181, 1, 1, 1, 2), floats(182, 1, 1, 1, 2), (0,)),
        "grouped heads": (floats(185, 2, 4, 5, 4), floats(186, 2, 2, 5, 4), floats(187, 2, 2, 5, 4), (0, 1, 3)),
        "uneven values": (floats(188, 1, 2, 5, 2), floats(189, 1, 1, 5, 2), uneven.astype(np.float32), (0, 2)),
        "large values leave the window": (floats(188, 1, 2, 5, 2), floats(189, 1, 1, 5, 2), leaving, (2,)),
    }
    for width in (6, 18, 24):
        shapes = (1, 2, 3, width), (1, 1, 3, width), (1, 1, 3, width)
        q, k, v = (floats(192 + i, *shape) for i, shape in enumerate(shapes))
        inputs[f"width {width}"] = q, k, v, (0,)
    cases = []
    for name, (q, k, v, windows) in inputs.items():
        dout = floats(190, *q.shape, low=-10, high=-3)
        if "leave" in name:
            dout = dout * np.ldexp(np.float32(1), np.array([0, 3, -2, 1, 25], np.int32))[:, None]
        given = {"q": array(q), "k": array(k), "v": array(v), "dout": array(dout)}
        for window in windows:
            out, cache = ops.attention_forward(q, k, v, window=window, bits=bits)
            gradients = zip(("dq", "dk", "dv"), ops.attention_backward(dout, cache), strict=True)
            made = {"out": array(out)} | {n: array(g) for n, g in gradients}
            cases.append({"name": name, "bits": bits, "window": window, **given, **made})
    return cases
