"""Training quality: the same data, initial weights and recipe in auditkit's arithmetic and in torch's.

    python -m bench.quality run WORK RESULTS.json [--seeds 0:3] [--steps 1000] [--skip float32] [--budget 520]
    python -m bench.quality summary RESULTS.json ...

WORK: a folder made by `python -m trainer prepare` with a vocabulary of 32,768 or more: small ones hide what coarse
arithmetic loses in the head. Needs a CUDA device and torch. `run` adds each finished training to RESULTS.json and goes
on where the file ends; it begins no seed that would not fit into the budget of seconds. `summary` puts files together:
one call may train several seeds side by side, each process with a file of its own.

Losses are those of the last weights on windows that no run has seen, evaluated by torch in float32. The mean of the
weights over the last fifth of the steps, tried on small models, left the difference of a pair as it was: sides part as
trajectories, not from one step to the next. So only more seeds, and enough windows, make the error smaller.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own usage

from auditkit.formats.digest import content_digest
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
from auditkit.measure import torch_model
from auditkit.model.params import init_params, parameter_count
from auditkit.model.state import State
from auditkit.numerics.arrays import F32, IntArray
from auditkit.numerics.schedule import learning_rate
from auditkit.numerics.shuffle import window_order
from auditkit.replay.backend import choose
from bench.quality_results import AUDITKIT, BASE, FLOAT32, SIDES, Results, Run, merged, summary

HELD_OUT = 1024  # windows, the last of the corpus
SEQUENCES = 32
CONTEXT = 256

Params = dict[str, F32]


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


@dataclasses.dataclass(frozen=True)
class Data:
    """The ids of a corpus, cut into windows; the last `held_out` ones are for evaluation only."""

    ids: IntArray
    context: int = CONTEXT
    held_out: int = HELD_OUT

    @property
    def windows(self) -> int:
        """Windows to train on."""
        return (len(self.ids) - 1) // self.context - self.held_out

    def window(self, number: int) -> IntArray:
        """Window `number` of the ids, T + 1 tokens."""
        return self.ids[number * self.context : (number + 1) * self.context + 1].astype(np.int64)

    def batches(self, recipe: Recipe) -> list[IntArray]:
        """The windows (S, T + 1) of each step, in the trainer's order for the recipe's seed."""
        size, steps = recipe.batch.sequences, recipe.schedule.total_steps
        epochs = -(-steps * size // self.windows)
        order = np.concatenate([window_order(recipe.init.seed, epoch, self.windows) for epoch in range(epochs)])
        return [
            np.stack([self.window(int(n)) for n in order[step * size : (step + 1) * size]]) for step in range(steps)
        ]

    def evaluation(self) -> torch.Tensor:
        """The held-out windows (held_out, T + 1)."""
        return torch.tensor(np.stack([self.window(self.windows + i) for i in range(self.held_out)]))


def train_auditkit(recipe: Recipe, start: Params, batches: list[IntArray], device: str) -> Params:
    """The weights after all steps, by auditkit's back end."""
    backend = choose(device)
    zeros = {name: np.zeros_like(array) for name, array in start.items()}
    state = backend.place(State(0, start, zeros, zeros))
    for tokens in batches:
        state, _ = backend.step(state, tokens, recipe)
    return backend.host(state).params


def train_torch(recipe: Recipe, start: Params, batches: list[IntArray], device: str, *, bfloat16: bool) -> Params:
    """The weights after all steps, by torch: float32 throughout, or bfloat16 autocast over float32 weights."""
    params = {name: torch.tensor(array, device=device).requires_grad_() for name, array in start.items()}
    adamw = torch_model.optimizer(params, recipe)
    for step, tokens in enumerate(batches):
        with torch.autocast(device.split(":")[0], torch.bfloat16, enabled=bfloat16):
            rate = float(learning_rate(recipe.schedule, step))
            torch_model.train_step(params, adamw, torch.tensor(tokens, device=device), recipe, rate)
    return {name: p.detach().cpu().numpy() for name, p in params.items()}


def window_losses(params: Params, recipe: Recipe, windows: torch.Tensor, device: str) -> list[float]:
    """Mean cross-entropy of each window (W, T + 1), torch float32, without the z-loss."""
    placed = {name: torch.tensor(array, device=device) for name, array in params.items()}
    found: list[float] = []
    with torch.no_grad():
        for part in windows.split(32):
            tokens = part.to(device)
            logits = torch_model.decoder(placed, tokens[:, :-1], recipe.model)  # (B, T, V)
            losses = F.cross_entropy(logits.transpose(1, 2), tokens[:, 1:], reduction="none").mean(dim=1)
            found += [round(float(loss), 6) for loss in losses.double().cpu()]
    return found


def train(side: str, recipe: Recipe, start: Params, batches: list[IntArray], data: Data, device: str) -> Run:
    """One training and its evaluation. start: initial weights, not changed."""
    began = time.perf_counter()
    if side == AUDITKIT:
        params = train_auditkit(recipe, start, batches, device)
    else:
        params = train_torch(recipe, start, batches, device, bfloat16=side == BASE)
    losses = window_losses(params, recipe, data.evaluation(), device)
    name = torch.cuda.get_device_name() if device.startswith("cuda") else device
    seconds = round(time.perf_counter() - began, 1)
    return Run(recipe.init.seed, side, seconds, f"{name}, torch {torch.__version__}", losses)


def settings_of(recipe: Recipe, data: Data) -> dict[str, object]:
    """What runs must have in common; the recipe is that of seed 0."""
    ids = content_digest(np.ascontiguousarray(data.ids))
    return {"recipe": recipe.digest(), "ids": ids, "context": data.context, "held_out": data.held_out}


def run(
    results: Results, path: Path, recipes: list[Recipe], data: Data, sides: list[str], device: str, until: float
) -> None:
    """Train what is missing, seed by seed, and save after each training. until: perf_counter to stop at."""
    longest = 0.0
    for recipe in recipes:
        seed, began = recipe.init.seed, time.perf_counter()
        missing = [side for side in sides if not results.has(seed, side)]
        if not missing:
            continue
        if began + longest > until:
            print(f"seed {seed} and later ones do not fit into the budget: call again")
            return
        start, batches = init_params(recipe), data.batches(recipe)
        for side in missing:
            done = train(side, recipe, start, batches, data, device)
            results.runs.append(done)
            results.save(path)
            print(f"seed {seed}  {side:18}  {np.mean(done.losses):.4f}  {done.seconds:.1f} s", flush=True)
        longest = max(longest, time.perf_counter() - began)


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.quality", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="train seeds and add them to a file")
    runs.add_argument("work", type=Path)
    runs.add_argument("results", type=Path)
    runs.add_argument("--seeds", default="0:3", help="first:end, without the end")
    runs.add_argument("--steps", type=int, default=1000)
    runs.add_argument("--skip", choices=["float32"], action="append", default=[], help="train without torch float32")
    runs.add_argument("--budget", type=float, default=520.0, help="seconds; no seed is begun that would not fit")
    runs.add_argument("--device", default="cuda")
    sums = commands.add_parser("summary", help="means, paired differences and their errors")
    sums.add_argument("results", type=Path, nargs="+")
    arguments = parser.parse_args()
    if arguments.command == "summary":
        print(summary(merged(Results.load(path) for path in arguments.results)))
    else:
        _run(arguments)


def _run(arguments: argparse.Namespace) -> None:
    until = time.perf_counter() + arguments.budget
    torch.backends.cuda.matmul.allow_tf32 = False
    data = Data(np.fromfile(arguments.work / "ids.bin", np.uint16))
    vocab = max(32_768, int(data.ids.max()) + 1)
    first, end = map(int, arguments.seeds.split(":"))
    recipes = [recipe_of(vocab, arguments.steps, seed) for seed in range(first, end)]
    settings = settings_of(recipe_of(vocab, arguments.steps, 0), data)
    results = merged([Results(settings), *([Results.load(arguments.results)] if arguments.results.exists() else [])])
    size = parameter_count(recipes[0].model) / 1e6
    print(f"{size:.1f} M parameters, {len(data.ids)} ids, vocabulary {vocab}, {data.windows} windows to train on")
    sides = [side for side in SIDES if side != FLOAT32 or "float32" not in arguments.skip]
    run(results, arguments.results, recipes, data, sides, arguments.device, until)
    print(summary(results))


if __name__ == "__main__":
    main()
