"""Makes tests/golden/training.json: what three steps of three tiny trainings give, on every machine.

    python -m tests.golden.make_training [FILE]

tests/test_platform.py runs it again, here and under other threads, vector extensions and BLAS kernels. Together the
recipes use everything that a recipe can choose.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.formats.bits import f32_text
from auditkit.formats.recipe import (
    BatchConfig,
    InitConfig,
    LossConfig,
    ModelConfig,
    NumericsConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
)
from auditkit.model.state import document, initial_state
from auditkit.model.step import step
from auditkit.numerics import reference
from auditkit.numerics.arrays import IntArray
from auditkit.numerics.philox import philox

FILE = Path(__file__).resolve().parent / "training.json"
STEPS = 3
EPS = float(np.float32(1e-8))
NORM_EPS = float(np.float32(1e-5))

RECIPES = {
    "tied head, grouped heads, window, QK-norm, z-loss, clip, cosine": Recipe(
        ModelConfig(61, 12, 2, 4, 2, 4, 20, 9, 10_000.0, NORM_EPS, True, True, 4),
        LossConfig(float(np.float32(1e-4))),
        OptimizerConfig("adamw", 0.9, 0.95, EPS, 0.1, 0.5),
        ScheduleConfig("cosine", 0.01, 0.001, 2, 0, 10),
        BatchConfig(5, 2),
        NumericsConfig(1, "fx", 14, 21),
        InitConfig(7, 0.02, 0.01),
    ),
    "untied head, no window, wsd, fx21 body and fx14 head": Recipe(
        ModelConfig(40, 8, 1, 2, 2, 4, 16, 17, 500_000.0, NORM_EPS, False, False, 0),
        LossConfig(0.0),
        OptimizerConfig("adamw", 0.9, 0.999, EPS, 0.0, 0.0),
        ScheduleConfig("wsd", 0.02, 0.0, 0, 2, 3),
        BatchConfig(3, 3),
        NumericsConfig(1, "fx", 21, 14),
        InitConfig(8, 0.05, 0.05),
    ),
    "plain binary32, grouped heads, window, untied head, z-loss, clip": Recipe(
        ModelConfig(40, 12, 2, 4, 2, 6, 20, 17, 10_000.0, NORM_EPS, False, True, 5),
        LossConfig(float(np.float32(1e-4))),
        OptimizerConfig("adamw", 0.9, 0.95, EPS, 0.1, 0.5),
        ScheduleConfig("cosine", 0.01, 0.001, 1, 0, 10),
        BatchConfig(5, 2),
        NumericsConfig(1, "f32", 24, 24),
        InitConfig(9, 0.05, 0.02),
    ),
    "tied head, gradients folded in groups of two, twice": Recipe(
        ModelConfig(50, 8, 1, 2, 1, 4, 12, 9, 10_000.0, NORM_EPS, True, True, 0),
        LossConfig(0.0),
        OptimizerConfig("adamw", 0.9, 0.95, EPS, 0.1, 0.5),
        ScheduleConfig("cosine", 0.01, 0.001, 1, 0, 10),
        BatchConfig(7, 1),
        NumericsConfig(1, "fx", 14, 21, (2, 2)),
        InitConfig(10, 0.05, 0.02),
    ),
}


def tokens_of(recipe: Recipe, number: int) -> IntArray:
    """The batch of a step: (sequences, context_length + 1) tokens, from Philox."""
    shape = recipe.batch.sequences, recipe.model.context_length + 1
    words = philox(recipe.init.seed, number, 0, shape[0] * shape[1]).reshape(-1)[: shape[0] * shape[1]]
    return (words % np.uint32(recipe.model.vocab_size)).astype(np.uint16).reshape(shape)


def train(recipe: Recipe, threads: int) -> list[dict[str, Any]]:
    """State root, gradient, losses and scalars of each step."""
    state, found = initial_state(recipe), []
    for number in range(STEPS):
        state, result = step(state, tokens_of(recipe, number), recipe, reference, threads=threads)
        scalars = {name: f32_text(float(getattr(result, name))) for name in ("loss", "lr", "norm")}
        losses = [str(leaf.loss_sum) for leaf in result.leaves]
        root = document(state, recipe).root()
        found.append({"state": root, "gradient": result.gradient, "micro_batch_losses": losses, **scalars})
    return found


def encode(threads: int = 1) -> bytes:
    """The file's bytes."""
    trained = {name: {"recipe": recipe.digest(), "steps": train(recipe, threads)} for name, recipe in RECIPES.items()}
    return (json.dumps(trained, indent=1) + "\n").encode("ascii")


if __name__ == "__main__":
    (Path(sys.argv[1]) if len(sys.argv) > 1 else FILE).write_bytes(encode())
