"""Five small trainings of 100 steps, whose records were made on a GPU: recipes, tokens and rows.

tests/golden/make_recipes.py writes the golden records, tests/golden/test_recipes.py computes some of them again on the
CPU and tests/kernels/test_recipes_gpu.py all of them on a card. Most sizes are no multiple of a tile, a warp or a
piece, and vocabularies are ragged. In two recipes the last micro-batch is short: a GPU launches their kernels one by
one, while it records those of the others from the third step on.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from auditkit.formats.bits import f32_bits
from auditkit.formats.leaves import micro_root
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
from auditkit.formats.record import RecordRow
from auditkit.formats.stream import batch_digest
from auditkit.model.state import State, document
from auditkit.numerics.arrays import IntArray
from auditkit.numerics.philox import philox
from auditkit.replay.backend import Backend

STEPS = 100
EPS = float(np.float32(1e-8))
NORM_EPS = float(np.float32(1e-5))
Z_LOSS = float(np.float32(1e-3))

RECIPES = {
    "grouped-heads": Recipe(
        ModelConfig(203, 36, 2, 6, 2, 10, 58, 33, 10_000.0, NORM_EPS, False, False, 0),
        LossConfig(0.0),
        OptimizerConfig("adamw", 0.9, 0.95, EPS, 0.1, 1.0),
        ScheduleConfig("cosine", 0.01, 0.001, 10, 0, STEPS),
        BatchConfig(6, 3),
        NumericsConfig(1, "fx", 14, 21),
        InitConfig(101, 0.05, 0.025),
    ),
    "sliding-window": Recipe(
        ModelConfig(131, 40, 2, 4, 4, 10, 66, 47, 10_000.0, NORM_EPS, False, False, 11),
        LossConfig(0.0),
        OptimizerConfig("adamw", 0.9, 0.999, EPS, 0.05, 1.0),
        ScheduleConfig("wsd", 0.008, 0.0005, 7, 30, STEPS),
        BatchConfig(5, 2),
        NumericsConfig(1, "fx", 14, 14),
        InitConfig(102, 0.05, 0.025),
    ),
    "tied-head-z-loss-qk-norm": Recipe(
        ModelConfig(307, 32, 2, 4, 4, 8, 86, 40, 500_000.0, NORM_EPS, True, True, 0),
        LossConfig(Z_LOSS),
        OptimizerConfig("adamw", 0.9, 0.95, EPS, 0.1, 1.0),
        ScheduleConfig("cosine", 0.012, 0.0, 12, 0, STEPS),
        BatchConfig(6, 2),
        NumericsConfig(1, "fx", 14, 21),
        InitConfig(103, 0.05, 0.025),
    ),
    "fx21": Recipe(
        ModelConfig(157, 28, 2, 4, 2, 6, 50, 29, 10_000.0, NORM_EPS, False, False, 0),
        LossConfig(0.0),
        OptimizerConfig("adamw", 0.85, 0.95, EPS, 0.1, 1.0),
        ScheduleConfig("wsd", 0.01, 0.001, 5, 20, STEPS),
        BatchConfig(7, 3),
        NumericsConfig(1, "fx", 21, 21),
        InitConfig(104, 0.06, 0.03),
    ),
    "f32": Recipe(
        ModelConfig(111, 33, 2, 3, 1, 8, 45, 31, 10_000.0, NORM_EPS, False, True, 0),
        LossConfig(Z_LOSS),
        OptimizerConfig("adamw", 0.9, 0.95, EPS, 0.1, 1.25),
        ScheduleConfig("cosine", 0.01, 0.001, 10, 0, STEPS),
        BatchConfig(4, 2),
        NumericsConfig(1, "f32", 24, 24),
        InitConfig(105, 0.06, 0.03),
    ),
}

_TABLE = 1 << 32  # stream of the successors; the streams of the steps lie below


def tokens_of(recipe: Recipe, step: int) -> IntArray:
    """The batch of a step, (sequences, context_length + 1) uint16: a chain that a model can learn, from Philox alone.

    Seven of eight tokens are one of four successors of the token before; the others are drawn with small ids more
    often, so that some rows of the vocabulary get no gradient in a step.
    """
    vocab, shape = recipe.model.vocab_size, (recipe.batch.sequences, recipe.model.context_length + 1)
    successors = philox(recipe.init.seed, _TABLE, 0, vocab) % np.uint32(vocab)  # (V, 4)
    words = philox(recipe.init.seed, step, 0, shape[0] * shape[1]).reshape(*shape, 4)
    small, large = (words[..., i].astype(np.int64) % vocab for i in (0, 1))
    tokens = small * large // vocab  # (S, T + 1)
    for t in range(1, shape[1]):
        chained = successors[tokens[:, t - 1], words[:, t, 2] % 4]
        tokens[:, t] = np.where(words[:, t, 3] % 8 != 0, chained, tokens[:, t])
    return tokens.astype(np.uint16)


def rows(backend: Backend, recipe: Recipe, state: State, count: int) -> Iterator[tuple[RecordRow, State]]:
    """The record's row of each of the next `count` steps, and the state after it, where the back end computes.

    state: NumPy arrays, `state.step` steps done. Raises NonFinite.
    """
    state = backend.place(state)
    for number in range(state.step, state.step + count):
        tokens = tokens_of(recipe, number)
        state, result = backend.step(state, tokens, recipe)
        row = RecordRow(
            state_after=document(state, recipe, backend.ops).root(),
            batch=batch_digest(tokens),
            gradient=result.gradient,
            micro_root=micro_root(result.leaves),
            loss=f32_bits(float(result.loss)),
            norm=f32_bits(float(result.norm)),
            lr=f32_bits(float(result.lr)),
        )
        yield row, state
