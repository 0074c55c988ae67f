"""Cases of the sums and the update: exact sum, gradient norm, AdamW, fold (SPEC.md sections 4, 13, 14, 17)."""

from __future__ import annotations

from typing import Any

import numpy as np

from auditkit.numerics import reference as ops
from auditkit.numerics.arrays import F32
from auditkit.numerics.exact_sum import GRADIENT_UNIT, sum_rows
from auditkit.numerics.fold import Fold
from auditkit.numerics.known_inputs import floats
from tests.vectors.words import array, f32, f64

Case = dict[str, Any]


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


def fold() -> list[Case]:
    """Full and short groups, at one level and at several; terms whose order, brackets and rounding show."""
    cases = []
    for number, (count, radices) in enumerate(
        [(1, (2,)), (4, (8,)), (5, (2,)), (8, (2, 2)), (11, (3, 2)), (12, (2, 3)), (13, (4,)), (7, (2, 2, 2))]
    ):
        terms = ops.to_fixed(floats(250 + number, count, 6, low=-14, high=-2), GRADIENT_UNIT)
        terms[:, 4] = terms[:, 4] + (terms[:, 5] >> 30)  # more bits than binary32 holds
        terms[-1, 5] = -ops.to_fixed(ops.from_fixed([np.add.reduce(terms[:-1, 5:], axis=0)], GRADIENT_UNIT)[0], 56)[0]
        rounded = ops.from_fixed(list(terms), GRADIENT_UNIT)
        made: Fold[F32] = Fold(radices, ops.add)
        for term in rounded:
            made.push(term)
        given = {"name": f"{count} in groups of {radices}", "radices": list(radices), "sums": array(terms)}
        cases.append({**given, "terms": array(np.stack(rounded)), "gradient": array(made.total())})
    return cases


def global_norm() -> list[Case]:
    """Gradients of every size, ties of both limbs, clipping on and off; norms whose root binary32 gets wrong."""
    halves = np.concatenate([np.ldexp(np.arange(1, 6, dtype=np.float32), e) for e in (-16, -32)])
    grads = {
        "usual": floats(230, 9),
        "small": floats(231, 9, low=-40, high=-25),
        "subnormal": floats(232, 5, low=-149, high=-70),
        "ties": halves,
        "large": floats(233, 5, low=8, high=14),
        "zeros": np.zeros(2, np.float32),
        **{f"three of {n}": row for n, row in enumerate(floats(294, 20, 3, low=-20, high=-2))},
    }
    cases = []
    for name, grad in grads.items():
        total = ops.squares([grad])
        norm = ops.norm_from_squares([total])
        for clip_norm in (0.0, 2.0**-12 / 3) if name.startswith("three") else (0.0, 1.0, 0.3):
            factor = ops.clip_factor(norm, np.float32(clip_norm))
            made = {"squares": str(total), "norm": f32(norm), "clip_norm": f32(clip_norm), "clip": f32(factor)}
            cases.append({"name": name, "grad": array(grad), **made})
    return cases


def adamw() -> list[Case]:
    """Many updates, subnormal moments, decay on and off, moments and parameters of zero that hide no rounding."""
    sevens = {
        "usual": (floats(240, 7), floats(241, 7, low=-12, high=-8), abs(floats(242, 7, low=-20, high=-14))),
        "subnormal moments": (floats(243, 7), floats(244, 7, low=-149, high=-120), np.zeros(7, np.float32)),
    }
    lows = {"usual": -8, "subnormal moments": -66}
    cases = []
    for name, arrays in sevens.items():
        grad = floats(245, 7, low=lows[name], high=lows[name] + 3)
        for update, decayed in ((1, True), (2, False), (256, True), ((1 << 24) + 1, True)):
            cases.append(adamw_case(name, (*arrays, grad), update, decayed=decayed))
    zeros, grad = np.zeros(11, np.float32), floats(246, 11, low=-10, high=-2)
    small, moment = floats(247, 11, low=-11, high=-9), floats(248, 11, low=-10, high=-4)
    for update in (1, 2, 3, 10, 1000):
        cases.append(adamw_case("parameters and second moments of zero", (zeros, moment, zeros, grad), update))
        cases.append(adamw_case("parameters as small as their change", (small, moment, zeros, grad), update))
    four = tuple(a[:4] for a in (small, moment, zeros, grad))
    for lr, weight_decay in ((0.04, 1.1), (0.3, 1.7), (0.4, 0.7), (0.5, 1.3)):
        cases.append(adamw_case("strong decay", four, 5, lr=lr, weight_decay=weight_decay))
    return cases


def adamw_case(
    name: str,
    arrays: tuple[F32, ...],
    update: int,
    *,
    decayed: bool = True,
    lr: float = 1e-3,
    weight_decay: float = 0.1,
) -> Case:
    """One update of (param, m, v, grad), clipped by 0.5, with the step's scalars."""
    options = {"beta1": 0.9, "beta2": 0.999, "weight_decay": weight_decay}
    scalars = ops.adamw_scalars(lr=np.float32(lr), eps=float(np.float32(1e-8)), update=update, **options)
    lists = [[a] for a in arrays]
    new = ops.adamw(*lists, clip=np.float32(0.5), scalars=scalars, decayed=[decayed])
    given = {"lr": f32(lr), "eps": f32(1e-8), "clip": f32(0.5), **{key: f64(value) for key, value in options.items()}}
    found = {
        "a1": f32(scalars.one_minus_beta1),
        "a2": f32(scalars.one_minus_beta2),
        "c2": f32(scalars.sqrt_correction2),
        "rate": f32(scalars.step_size),
        "decay": f32(scalars.decay if decayed else 1.0),
    }
    before = dict(zip(("param", "m", "v", "grad"), map(array, arrays), strict=True))
    after = dict(zip(("new_param", "new_m", "new_v"), (array(only) for (only,) in new), strict=True))
    return {"name": name, "update": update, "decayed": decayed, **given, **found, **before, **after}
