"""Makes tests/golden/skips.json: what a tiny run that skips steps of both kinds gives, on every machine.

    python -m tests.golden.make_skips [FILE]

The sums, the norm and the update are those of auditkit.model.step under a recipe that says nothing of divergence. The
rule (SPEC.md section 18), records, leaves and state roots ("Skipped steps" in docs/formats.md) are written here once
more, with json, hashlib and blake3 alone.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.formats.recipe import DivergenceConfig, InitConfig, LossConfig, NumericsConfig, Recipe, ScheduleConfig
from auditkit.model.state import State, initial_state
from auditkit.model.step import NonFinite, step
from auditkit.numerics import reference
from tests.golden.make_segments import b3, bits, canonical, tree
from tests.golden.make_training import RECIPES, tokens_of

FILE = Path(__file__).resolve().parent / "skips.json"
STEPS = 30
BOUND = 300.0

# So large at first that the gradients of some batches leave their range and the norms of others the bound.
WILD = replace(
    RECIPES["plain binary32, grouped heads, window, untied head, z-loss, clip"],
    loss=LossConfig(0.0),
    schedule=ScheduleConfig("cosine", 0.004, 0.001, 2, 0, STEPS),
    numerics=NumericsConfig(1, "fx", 14, 21),
    init=InitConfig(9, 6.0, 0.02),
)
SUMS = {
    "exact sums": WILD,
    "folded by two, then by two": replace(WILD, numerics=NumericsConfig(1, "fx", 14, 21, (2, 2))),
}


def skipping(recipe: Recipe) -> Recipe:
    """The recipe with the rule."""
    return replace(recipe, divergence=DivergenceConfig("skip", BOUND))


def recipe_digest(recipe: Recipe) -> str:
    """That of the recipe with the rule, from the one without it."""
    bound = f"f32:{int(np.float32(BOUND).view(np.uint32)):08x}"
    value = recipe.to_value() | {"divergence": {"action": "skip", "max_norm": bound}}
    return b3(canonical(value), "auditkit recipe root v1")


def root(state: State, recipe: Recipe) -> str:
    """The state root, from the bytes of the tensors."""
    tensors = [
        {"digest": b3(array.tobytes()), "dtype": "F32", "name": name, "role": role, "shape": list(array.shape)}
        for role, arrays in (("adam_m", state.adam_m), ("adam_v", state.adam_v), ("param", state.params))
        for name, array in sorted(arrays.items())
    ]
    document = {
        "format": "auditkit/state/v1",
        "recipe": recipe_digest(recipe),
        "seed": recipe.init.seed,
        "sequence": state.step * recipe.batch.sequences,
        "step": state.step,
        "tensors": tensors,
    }
    return b3(canonical(document), "auditkit state root v1")


def one(recipe: Recipe, state: State, number: int) -> tuple[State, dict[str, Any]]:
    """Step `number` by the rule: the next state, and what the row and leaves say; `recipe` has no rule of its own."""
    kept = State(number + 1, state.params, state.adam_m, state.adam_v)
    try:
        new, result = step(state, tokens_of(recipe, number), recipe, reference)
    except NonFinite:
        large, known = None, None
    else:
        large, known = bool(result.norm > np.float32(BOUND)), result
    if known is None:
        leaves = [bytes(40)] * recipe.batch.micro_batches
        row = {"gradient": "0" * 64, "loss": "f32:00000000", "norm": "f32:00000000", "lr": "f32:00000000"}
        new = kept
    else:
        leaves = [
            leaf.loss_sum.to_bytes(8, "little", signed=True) + bytes.fromhex(leaf.gradient) for leaf in known.leaves
        ]
        row = {"gradient": known.gradient, "loss": bits(known.loss), "norm": bits(known.norm)}
        row["lr"] = "f32:00000000" if large else bits(known.lr)
        new = kept if large else new
    taken = {None: "no result", True: "norm", False: ""}[large]
    return new, {"skipped": taken, **row, "micro_root": tree(leaves), "state": root(new, recipe)}


def train(recipe: Recipe) -> dict[str, Any]:
    """All steps."""
    state, rows = initial_state(recipe), []
    for number in range(STEPS):
        state, row = one(recipe, state, number)
        rows.append(row)
    return {"recipe": recipe_digest(recipe), "state": root(initial_state(recipe), recipe), "steps": rows}


def encode() -> bytes:
    """The file's bytes."""
    return (json.dumps({name: train(recipe) for name, recipe in SUMS.items()}, indent=1) + "\n").encode("ascii")


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else FILE).write_bytes(encode())
