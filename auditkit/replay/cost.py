"""What a replay costs: memory by a formula, time by a short calibration on this machine."""

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

CALIBRATION_LAYERS = 2
CALIBRATION_TOKENS = 512  # of one micro-batch: enough for the matrix products to run at their usual speed
BASE_BYTES = 90 * 10**6  # interpreter, NumPy and the BLAS's buffers, measured

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


def parameter_bytes(recipe: Recipe) -> int:
    """Bytes that a replay holds for the parameters alone, whatever its micro-batches are (see `memory_bytes`)."""
    fold = recipe.numerics.fold
    return (40 + (4 * (len(fold) + 2) if fold else 12)) * parameter_count(recipe.model)


def memory_bytes(recipe: Recipe, threads: int) -> int:
    """Peak bytes of a replay, roughly: what is held at the same time, by the size of its arrays.

    A parameter: the state before (12 bytes: weight and two moments) and after (12), its fixed-point rows both ways as
    float64 (16), the sum of gradients (8) and its rounding (4), or, with a fold, a sum a level (4 each) and one more
    and the next term; in each worker its gradient (8) and a product (8).
    A token in a worker: logits, their gradient and fixed-point rows (40 bytes per entry of the vocabulary), and what
    the backward pass needs of each layer.
    """
    model = recipe.model
    workers = max(1, min(threads, recipe.batch.micro_batches))
    tokens = recipe.batch.micro_batch_sequences * model.context_length
    span = min(model.sliding_window or model.context_length, model.context_length)
    layer = 12 * model.num_heads * span + 4 * (8 * model.hidden_size + 5 * model.ffn_size)
    token = 40 * model.vocab_size + model.num_layers * layer
    return BASE_BYTES + parameter_bytes(recipe) + parameter_count(model) * 16 * workers + workers * tokens * token


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
