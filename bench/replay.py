"""Replay of a step against a torch float32 eager training step of the same model, batch and CPU, at two sizes."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from auditkit.formats.recipe import Recipe
from auditkit.model.params import parameter_count
from auditkit.model.state import initial_state
from auditkit.model.step import step
from auditkit.numerics import reference
from bench.process import ROOT
from bench.rows import Row
from trainer.recipe_toml import load

FACTOR = 3.0
THREADS = 2
SECONDS = 20.0  # spent on each figure at most, after a warm-up


def rows() -> list[Row]:
    """Both sizes."""
    tiny = load(Path(ROOT / "trainer" / "recipes" / "sotu-tiny.toml"))
    return [*compare("bundled model", tiny), *compare("10 M parameters", ten_million(tiny))]


def ten_million(base: Recipe) -> Recipe:
    """A recipe of about 10 M parameters with a vocabulary and context as small models have them."""
    model = dataclasses.replace(
        base.model,
        vocab_size=8192,
        hidden_size=256,
        num_layers=8,
        num_heads=8,
        num_kv_heads=4,
        head_dim=32,
        ffn_size=1024,
        context_length=256,
    )
    batch = dataclasses.replace(base.batch, sequences=8, micro_batch_sequences=4)
    return dataclasses.replace(base, model=model, batch=batch)


def compare(label: str, recipe: Recipe) -> list[Row]:
    """Time both on the same random tokens."""
    import torch

    torch.set_num_threads(THREADS)
    shape = (recipe.batch.sequences, recipe.model.context_length + 1)
    tokens = np.random.default_rng(0).integers(0, recipe.model.vocab_size, shape)
    ours = seconds(auditkit_step(recipe, tokens))
    theirs = seconds(torch_step(recipe, tokens))
    size = f"{parameter_count(recipe.model) / 1e6:.2f} M parameters, {shape[0]} x {shape[1] - 1} tokens"
    ratio, bar = ours / theirs, f"at most {FACTOR:g}x"
    return [
        Row(f"torch training step, {label}", theirs, "s", f"{size}, {THREADS} threads"),
        Row(f"replay of a step, {label}", ours, "s", f"{ratio:.2f}x torch", bar, ratio <= FACTOR),
    ]


def auditkit_step(recipe: Recipe, tokens: np.ndarray) -> Callable[[], object]:
    """The verifier's step from state 0, digests included."""
    state = initial_state(recipe)
    return lambda: step(state, tokens, recipe, reference, threads=THREADS)


def torch_step(recipe: Recipe, tokens: np.ndarray) -> Callable[[], object]:
    """The torch training step from the same weights."""
    import torch

    from bench import torch_model

    params = torch_model.parameters(initial_state(recipe).params)
    adamw = torch_model.optimizer(params, recipe)
    windows = torch.from_numpy(tokens)
    return lambda: torch_model.train_step(params, adamw, windows, recipe, recipe.schedule.peak_lr)


def seconds(call: Callable[[], object]) -> float:
    """The median time of a call, after one that is not counted."""
    call()
    times: list[float] = []
    while len(times) < 3 or (sum(times) < SECONDS and len(times) < 25):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
