"""Replay of a step against a torch float32 eager training step of the same model, batch and CPU, at two sizes: by the
ops in C where they can be compiled, and by the reference alone.

Each side runs in processes of its own, since the thread pools of torch and of NumPy's BLAS disturb each other in one.
The sides take turns, each process reports its median, and the median of these counts: whatever else runs on the machine
slows both alike. Two threads of torch spin while they wait for each other, on a busy machine for most of the time, so
the processor time of one thread is compared as well, and the worse of both factors must pass.
"""

from __future__ import annotations

import dataclasses
import functools
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np

from auditkit.errors import Unsupported
from auditkit.formats.recipe import Recipe
from auditkit.model.params import parameter_count
from auditkit.model.state import initial_state
from auditkit.replay.backend import choose
from bench.process import ROOT, python
from bench.rows import Row
from trainer.recipe_toml import load

FACTOR = 2.0
NUMPY_FACTOR = 3.0
THREADS = 2
SECONDS = 4.0  # of each process, after a warm-up
TURNS = 3

Times = tuple[float, float]  # of a step: wall clock with THREADS threads, processor time with one; seconds


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
    found: dict[str, list[Times]] = {side: [] for side in SIDES}
    for _ in range(TURNS):
        for side in SIDES:
            found[side].append(in_process(side, label))
    tokens = f"{recipe.batch.sequences} x {recipe.model.context_length} tokens"
    size = f"{parameter_count(recipe.model) / 1e6:.2f} M parameters, {tokens}, {THREADS} threads"
    theirs = medians(found["torch"])
    return [
        Row(f"torch training step, {label}", theirs[0], "s", f"{size}; with one thread {theirs[1]:.3g} s"),
        _row(f"replay of a step, {label}, {fastest()}", medians(found["auditkit"]), theirs, FACTOR),
        _row(f"replay of a step, {label}, NumPy alone", medians(found["numpy"]), theirs, NUMPY_FACTOR),
    ]


def _row(label: str, ours: Times, theirs: Times, bar: float) -> Row:
    wall, work = ours[0] / theirs[0], ours[1] / theirs[1]
    note = f"{wall:.2f}x torch; with one thread {ours[1]:.3g} s of processor time, {work:.2f}x torch"
    return Row(label, ours[0], "s", note, f"both at most {bar:g}x", max(wall, work) <= bar)


@functools.cache
def fastest() -> str:
    """The device that replays a step soonest on this processor: ops in C, or NumPy where they cannot be compiled."""
    try:
        choose("native", 1)
    except Unsupported:
        return "numpy"
    return "native"


def medians(times: list[Times]) -> Times:
    """The median of each."""
    return statistics.median(wall for wall, _ in times), statistics.median(work for _, work in times)


def in_process(side: str, label: str) -> Times:
    """One side's step, measured in two new processes."""
    found = []
    for threads in (THREADS, 1):
        run = python("-m", "bench.replay", side, label, str(threads))
        if run.code != 0:
            raise RuntimeError(f"{side}, {label}: {run.stderr[-500:]}")
        found.append([float(word) for word in run.stdout.split()])
    return found[0][0], found[1][1]


def auditkit_step(recipe: Recipe, tokens: np.ndarray, threads: int) -> Callable[[], object]:
    """The verifier's step from state 0, digests included."""
    return _step(fastest(), recipe, tokens, threads)


def numpy_step(recipe: Recipe, tokens: np.ndarray, threads: int) -> Callable[[], object]:
    """The same by the reference alone."""
    return _step("numpy", recipe, tokens, threads)


def _step(device: str, recipe: Recipe, tokens: np.ndarray, threads: int) -> Callable[[], object]:
    state, backend = initial_state(recipe), choose(device, threads)
    return lambda: backend.step(state, tokens, recipe)


def torch_step(recipe: Recipe, tokens: np.ndarray, threads: int) -> Callable[[], object]:
    """The torch training step from the same weights."""
    import torch

    from auditkit.measure import torch_model

    torch.set_num_threads(threads)
    params = torch_model.parameters(initial_state(recipe).params)
    adamw = torch_model.optimizer(params, recipe)
    windows = torch.from_numpy(tokens)
    return lambda: torch_model.train_step(params, adamw, windows, recipe, recipe.schedule.peak_lr)


SIDES = {"auditkit": auditkit_step, "numpy": numpy_step, "torch": torch_step}


def step_times(call: Callable[[], object]) -> Times:
    """Median seconds of a call, wall clock and processor time, after one that is not counted."""
    call()
    walls, works, start = [], [], time.perf_counter()
    while len(walls) < 3 or (time.perf_counter() - start < SECONDS and len(walls) < 100):
        wall, work = time.perf_counter(), time.process_time()
        call()
        walls.append(time.perf_counter() - wall)
        works.append(time.process_time() - work)
    return statistics.median(walls), statistics.median(works)


def measure(side: str, label: str, threads: int) -> Times:
    """One side at one size, on fixed random tokens."""
    recipe = recipes()[label]
    shape = (recipe.batch.sequences, recipe.model.context_length + 1)
    tokens = np.random.default_rng(0).integers(0, recipe.model.vocab_size, shape)
    return step_times(SIDES[side](recipe, tokens, threads))


if __name__ == "__main__":
    print(*measure(sys.argv[1], sys.argv[2], int(sys.argv[3])))
