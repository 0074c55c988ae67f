"""Training quality: the same data, initial weights and recipe in auditkit's arithmetic and in torch's.

    python -m bench.quality WORK [--steps 1000] [--seeds 3]

WORK: a folder made by `python -m trainer prepare` with a vocabulary of 32,768 or more: small ones hide what coarse
arithmetic loses in the head. Needs a CUDA device and torch. Prints the validation loss of each run, evaluated by torch
in float32 on windows that no run has seen, and the mean and spread over the seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

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
from auditkit.model.params import init_params, parameter_count
from auditkit.model.state import initial_state
from auditkit.numerics.arrays import F32, IntArray
from auditkit.numerics.schedule import learning_rate
from auditkit.numerics.shuffle import window_order
from auditkit.replay.backend import choose
from bench import torch_model

DEVICE = "cuda"
HELD_OUT = 128  # windows, the last of the corpus
SEQUENCES = 32
CONTEXT = 256
MARGIN = 0.01  # auditkit's mean loss may exceed bfloat16's by this much

Params = dict[str, F32]
Batches = Callable[[int], IntArray]


def recipe_of(vocab: int, steps: int, seed: int) -> Recipe:
    """A model of 26.5 M parameters (with a vocabulary of 32,768), fx14 in the body and fx21 in the head."""
    f32 = lambda x: float(np.float32(x))  # noqa: E731
    return Recipe(
        ModelConfig(vocab, 384, 8, 6, 6, 64, 1024, CONTEXT, 10_000.0, f32(1e-5), True, True, 0),
        LossConfig(f32(1e-4)),
        OptimizerConfig("adamw", 0.9, 0.95, f32(1e-8), 0.1, 1.0),
        ScheduleConfig("cosine", 1e-3, 1e-4, 100, 0, steps),
        BatchConfig(SEQUENCES, SEQUENCES),
        NumericsConfig(1, "fx", 14, 21),
        InitConfig(seed, 0.02, 0.005),
    )


def batches_of(ids: IntArray, seed: int) -> Batches:
    """Training windows (S, T + 1) of a step, without the held-out ones, in the trainer's order."""
    windows = (len(ids) - 1) // CONTEXT - HELD_OUT

    def tokens(step: int) -> IntArray:
        places = np.arange(step * SEQUENCES, (step + 1) * SEQUENCES)
        order = {epoch: window_order(seed, int(epoch), windows) for epoch in set(places // windows)}
        return np.stack([window(ids, int(order[p // windows][p % windows])) for p in places])

    return tokens


def window(ids: IntArray, number: int) -> IntArray:
    """Window `number` of the ids, T + 1 tokens."""
    return ids[number * CONTEXT : (number + 1) * CONTEXT + 1].astype(np.int64)


def held_out(ids: IntArray) -> torch.Tensor:
    """The last windows of the corpus (HELD_OUT, T + 1)."""
    first = (len(ids) - 1) // CONTEXT - HELD_OUT
    return torch.tensor(np.stack([window(ids, first + i) for i in range(HELD_OUT)]), device=DEVICE)


def train_auditkit(recipe: Recipe, batches: Batches) -> Params:
    """Parameters after all steps, by the CUDA back end."""
    backend = choose(DEVICE)
    state = backend.place(initial_state(recipe))
    for step in range(recipe.schedule.total_steps):
        state, _ = backend.step(state, batches(step), recipe)
    return backend.host(state).params


def train_torch(recipe: Recipe, batches: Batches, *, bfloat16: bool) -> Params:
    """Parameters after all steps, by torch: float32 throughout, or bfloat16 autocast over float32 weights."""
    params = {name: torch.tensor(array, device=DEVICE).requires_grad_() for name, array in init_params(recipe).items()}
    adamw = torch_model.optimizer(params, recipe)
    for step in range(recipe.schedule.total_steps):
        tokens = torch.tensor(batches(step), device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16, enabled=bfloat16):
            torch_model.train_step(params, adamw, tokens, recipe, float(learning_rate(recipe.schedule, step)))
    return {name: p.detach().cpu().numpy() for name, p in params.items()}


def validation_loss(params: Params, recipe: Recipe, windows: torch.Tensor) -> float:
    """Mean cross-entropy of the held-out windows, torch float32, without the z-loss."""
    plain = dataclasses.replace(recipe, loss=LossConfig(0.0))
    placed = {name: torch.tensor(array, device=DEVICE) for name, array in params.items()}
    with torch.no_grad():
        return float(np.mean([float(torch_model.loss(placed, part, plain)) for part in windows.split(16)]))


def main() -> None:
    """Train all seeds in all arithmetics and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    ids = np.fromfile(arguments.work / "ids.bin", np.uint16)
    windows, found = held_out(ids), {side: [] for side in ("torch bfloat16", "torch float32", "auditkit fx14/fx21")}
    vocab = max(32_768, int(ids.max()) + 1)
    size = parameter_count(recipe_of(vocab, arguments.steps, 0).model)
    print(f"{size / 1e6:.1f} M parameters, {len(ids)} ids, vocabulary {vocab}")
    for seed in range(arguments.seeds):
        recipe, batches = recipe_of(vocab, arguments.steps, seed), batches_of(ids, seed)
        for side, losses in found.items():
            began = time.perf_counter()
            if side.startswith("torch"):
                params = train_torch(recipe, batches, bfloat16=side.endswith("bfloat16"))
            else:
                params = train_auditkit(recipe, batches)
            losses.append(validation_loss(params, recipe, windows))
            print(f"seed {seed}  {side:20} {losses[-1]:.4f}  {time.perf_counter() - began:.1f} s", flush=True)
    means = {side: float(np.mean(losses)) for side, losses in found.items()}
    for side, losses in found.items():
        print(f"{side:20} mean {means[side]:.4f}  from {min(losses):.4f} to {max(losses):.4f}")
    difference = means["auditkit fx14/fx21"] - means["torch bfloat16"]
    print(f"auditkit - bfloat16 {difference:+.4f}, at most {MARGIN:+.2f}: {'ok' if difference <= MARGIN else 'MISSED'}")


if __name__ == "__main__":
    main()
