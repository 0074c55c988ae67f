"""Replay of a step against a torch float32 eager training step of the same model, batch and CPU, at two sizes.

Each side runs in processes of its own, since the thread pools of torch and of NumPy's BLAS disturb each other in one.
The sides take turns and the least time counts, so that whatever else runs on the machine slows both alike.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Callable

import numpy as np

from auditkit.formats.recipe import Recipe
from auditkit.model.params import parameter_count
from auditkit.model.state import initial_state
from auditkit.model.step import step
from auditkit.numerics import reference
from bench.process import ROOT, python
from bench.rows import Row
from trainer.recipe_toml import load

FACTOR = 3.0
THREADS = 2
SECONDS = 8.0  # of each process, after a warm-up
TURNS = 2


def recipes() -> dict[str, Recipe]:
    """The bundled model, and one of about 10 M parameters with a vocabulary and context as small models have them."""
    tiny = load(ROOT / "trainer" / "recipes" / "sotu-tiny.toml")
    larger = dataclasses.replace(
        tiny.model,
        vocab_size=8192,
        hidden_size=256,
        num_layers=8,
        num_heads=8,
        num_kv_heads=4,
        head_dim=32,
        ffn_size=1024,
        context_length=256,
    )
    return {"bundled model": tiny, "10 M parameters": dataclasses.replace(tiny, model=larger)}


def rows() -> list[Row]:
    """Both sizes."""
    return [row for label, recipe in recipes().items() for row in compare(label, recipe)]


def compare(label: str, recipe: Recipe) -> list[Row]:
    """Both sides of one size."""
    times: dict[str, float] = {}
    for _ in range(TURNS):
        for side in SIDES:
            times[side] = min(times.get(side, float("inf")), in_process(side, label))
    ours, theirs = times["auditkit"], times["torch"]
    tokens = f"{recipe.batch.sequences} x {recipe.model.context_length} tokens"
    size = f"{parameter_count(recipe.model) / 1e6:.2f} M parameters, {tokens}, {THREADS} threads"
    ratio = ours / theirs
    return [
        Row(f"torch training step, {label}", theirs, "s", size),
        Row(f"replay of a step, {label}", ours, "s", f"{ratio:.2f}x torch", f"at most {FACTOR:g}x", ratio <= FACTOR),
    ]


def in_process(side: str, label: str) -> float:
    """The least seconds of one side's step, measured in a new process."""
    run = python("-m", "bench.replay", side, label)
    if run.code != 0:
        raise RuntimeError(f"{side}, {label}: {run.stderr[-500:]}")
    return float(run.stdout)


def auditkit_step(recipe: Recipe, tokens: np.ndarray) -> Callable[[], object]:
    """The verifier's step from state 0, digests included."""
    state = initial_state(recipe)
    return lambda: step(state, tokens, recipe, reference, threads=THREADS)


def torch_step(recipe: Recipe, tokens: np.ndarray) -> Callable[[], object]:
    """The torch training step from the same weights."""
    import torch

    from bench import torch_model

    torch.set_num_threads(THREADS)
    params = torch_model.parameters(initial_state(recipe).params)
    adamw = torch_model.optimizer(params, recipe)
    windows = torch.from_numpy(tokens)
    return lambda: torch_model.train_step(params, adamw, windows, recipe, recipe.schedule.peak_lr)


SIDES = {"auditkit": auditkit_step, "torch": torch_step}


def least_seconds(call: Callable[[], object]) -> float:
    """The least time of a call, after one that is not counted."""
    call()
    best, start, rounds = float("inf"), time.perf_counter(), 0
    while rounds < 3 or (time.perf_counter() - start < SECONDS and rounds < 100):
        begun = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - begun)
        rounds += 1
    return best


def measure(side: str, label: str) -> float:
    """One side at one size, on fixed random tokens."""
    recipe = recipes()[label]
    shape = (recipe.batch.sequences, recipe.model.context_length + 1)
    tokens = np.random.default_rng(0).integers(0, recipe.model.vocab_size, shape)
    return least_seconds(SIDES[side](recipe, tokens))


if __name__ == "__main__":
    print(measure(*sys.argv[1:]))
