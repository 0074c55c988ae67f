"""What a replay takes: its time, by a short calibration on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from auditkit.formats.recipe import BatchConfig, Recipe
from auditkit.model.params import parameter_count, parameter_table
from auditkit.model.state import State, state_digests
from auditkit.numerics.arrays import F32
from auditkit.replay.backend import Backend
from auditkit.replay.layout import Layout

CALIBRATION_LAYERS = 2
CALIBRATION_TOKENS = 512  # of one micro-batch: enough for the matrix products to run at their usual speed

Clock = Callable[[], float]


@dataclass(frozen=True)
class Speed:
    """This machine's speed at one recipe: seconds of one step's gradients, of its update, and of a state's digest."""

    gradients: float
    update: float
    digest: float

    @property
    def step(self) -> float:
        """Seconds of a whole step."""
        return self.gradients + self.update + self.digest

    def under(self, layout: Layout, micro_batches: int) -> Speed:
        """The same with what a plan makes again, and for what it brings and takes away as if nothing overlapped."""
        return replace(self, gradients=self.gradients * layout.factor + layout.traffic * micro_batches)


def calibrate(recipe: Recipe, backend: Backend, *, clock: Clock = time.perf_counter) -> Speed:
    """Time one small step of the same shape, with few layers and short sequences, and scale it to the recipe.

    Takes about as long as a micro-batch of a few hundred tokens in one layer or two, in each worker.
    """
    small = _small(recipe, backend.threads)
    state = backend.place(_random_state(small))
    tokens = np.random.default_rng(0).integers(
        0, small.model.vocab_size, (small.batch.sequences, small.model.context_length + 1)
    )
    backend.step(state, tokens, small)  # loads the BLAS and warms the caches
    marks: list[float] = []
    began = clock()
    new, _ = backend.step(state, tokens, small, on_micro_batch=lambda _done: marks.append(clock()))
    updated = clock()
    state_digests(new, small, backend.ops).root(new.step)
    hashed = clock()
    parameters = parameter_count(recipe.model) / parameter_count(small.model)
    rounds = -(-recipe.batch.micro_batches // backend.threads) * backend.threads
    whole = replace(recipe.batch, sequences=rounds * recipe.batch.micro_batch_sequences)
    work = _operations(replace(recipe, batch=whole)) / _operations(small)
    return Speed((marks[-1] - began) * work, (updated - marks[-1]) * parameters, (hashed - updated) * parameters)


def _small(recipe: Recipe, threads: int) -> Recipe:
    """The same widths and vocabulary in a short, shallow model, with one micro-batch for each worker."""
    model = recipe.model
    context = min(model.context_length, CALIBRATION_TOKENS)
    small = replace(
        model,
        num_layers=min(model.num_layers, CALIBRATION_LAYERS),
        context_length=context,
        sliding_window=min(model.sliding_window, context),
    )
    count = max(1, min(recipe.batch.micro_batch_sequences, CALIBRATION_TOKENS // context))
    return replace(recipe, model=small, batch=BatchConfig(sequences=count * threads, micro_batch_sequences=count))


def _operations(recipe: Recipe) -> float:
    """Multiplications of the matrix products of one step's gradients: forward once, backward twice."""
    model = recipe.model
    tokens = recipe.batch.sequences * model.context_length
    matrices = sum(float(np.prod(spec.shape)) for spec in parameter_table(model) if spec.kind in ("matrix", "residual"))
    head = float(model.vocab_size * model.hidden_size)
    span = min(model.sliding_window or model.context_length, model.context_length)
    attention = 2.0 * model.num_layers * model.num_heads * model.head_dim * span
    return 3.0 * tokens * (matrices + head + attention)


def _random_state(recipe: Recipe) -> State:
    """Weights of the usual size, from any generator: only their number and magnitude matter for the time."""
    generator = np.random.default_rng(0)

    def tensor(shape: tuple[int, ...]) -> F32:
        return generator.standard_normal(shape, dtype=np.float32) * np.float32(recipe.init.std)

    params = {spec.name: tensor(spec.shape) for spec in parameter_table(recipe.model)}
    zeros = {name: np.zeros_like(array) for name, array in params.items()}
    return State(0, params, zeros, dict(zeros))
