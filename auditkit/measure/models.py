"""The models that can be measured without a run: recipes by name, of the shapes that are trained at these sizes."""

from __future__ import annotations

from dataclasses import replace

from auditkit.errors import UsageError
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

DEFAULT = "125m"


def _model(
    vocab: int, width: int, layers: int, heads: tuple[int, int, int], ffn: int, context: int, *, tied: bool
) -> ModelConfig:
    """heads: of queries, of keys, and elements of one."""
    return ModelConfig(
        vocab_size=vocab,
        hidden_size=width,
        num_layers=layers,
        num_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=heads[2],
        ffn_size=ffn,
        context_length=context,
        rope_theta=500000.0,
        norm_eps=float(2.0**-17),
        tied_head=tied,
        qk_norm=False,
        sliding_window=0,
    )


# Name -> shape, sequences of a step, sequences of a micro-batch.
MODELS: dict[str, tuple[ModelConfig, int, int]] = {
    "tiny": (_model(512, 64, 2, (4, 2, 16), 128, 128, tied=True), 8, 4),  # as the bundled run
    "25m": (_model(32_768, 384, 8, (6, 2, 64), 1024, 1024, tied=True), 128, 16),
    "125m": (_model(32_768, 768, 16, (12, 4, 64), 2048, 2048, tied=True), 256, 8),
    "350m": (_model(32_768, 1024, 24, (16, 4, 64), 2816, 2048, tied=False), 512, 8),
    "1.6b": (_model(128_256, 2048, 24, (16, 4, 128), 5632, 4096, tied=False), 1152, 2),
}


def recipe_of(name: str, micro_batch: int | None = None) -> Recipe:
    """The recipe of a named model, fx14 with an fx21 head; micro_batch: sequences of one, which is part of the recipe.

    UsageError: no such name, or more sequences than a step has.
    """
    if name not in MODELS:
        raise UsageError(f"there is no model {name!r} to measure", hint="one of " + ", ".join(MODELS))
    model, sequences, size = MODELS[name]
    if micro_batch is not None and not 1 <= micro_batch <= sequences:
        raise UsageError(f"a micro-batch of {micro_batch} sequences is outside 1..{sequences}, a step of {name}")
    return Recipe(
        model=model,
        loss=LossConfig(z_loss=0.0),
        optimizer=OptimizerConfig("adamw", beta1=0.9, beta2=0.95, eps=float(2.0**-26), weight_decay=0.1, clip_norm=1.0),
        schedule=ScheduleConfig("cosine", 3e-4, 3e-5, warmup_steps=0, decay_steps=0, total_steps=10_000),
        batch=BatchConfig(sequences, micro_batch or size),
        numerics=NumericsConfig(),
        init=InitConfig(seed=20260101, std=0.02, residual_std=0.02 / (2 * model.num_layers) ** 0.5),
    )


def reduced(recipe: Recipe) -> Recipe:
    """The same kind of model so narrow that a CPU computes four micro-batches of it in a minute: as many heads a key
    head, an untied head where it was one, the same precision. Lengths are no multiples of a tile, and tokens so many
    that the widest products have a tile for each multiprocessor of a large card, as those of a large model have.
    """
    model = recipe.model
    share = model.num_heads // model.num_kv_heads
    narrow = replace(
        model,
        vocab_size=min(model.vocab_size, 4160),
        hidden_size=min(model.hidden_size, 320),
        num_layers=min(model.num_layers, 3),
        num_heads=2 * share,
        num_kv_heads=2,
        head_dim=min(model.head_dim, 64),
        ffn_size=min(model.ffn_size, 1096),
        context_length=min(model.context_length, 1032),
    )
    return replace(recipe, model=narrow, batch=BatchConfig(sequences=16, micro_batch_sequences=4))
