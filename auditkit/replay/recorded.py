"""Recorded gradients: the launches of a micro-batch of a small model, played as one CUDA graph.

A small model's step is hundreds of kernels of a few microseconds each, and launching them one by one takes many times
as long as running them. What is recorded is `auditkit.model.step.gradient_sums` itself.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from auditkit.errors import Unsupported
from auditkit.formats.recipe import Recipe
from auditkit.kernels.backend import CudaOps
from auditkit.kernels.recording import Recording
from auditkit.model.network import prepare
from auditkit.model.params import parameter_count, parameter_table
from auditkit.model.state import State
from auditkit.model.step import Gradients, GradSum, gradient_sums
from auditkit.numerics.arrays import IntArray

AFTER = 2  # steps of one shape that are launched directly before they are recorded
MOST_PARAMETERS = 1 << 22  # a recording keeps its memory; larger models gain nothing
MOST_TOKENS = 1 << 14  # of a micro-batch


class RecordedGradients:
    """The recording of one recipe: parameters and tokens are copied in, the sums are read from where they are
    written.
    """

    def __init__(self, ops: CudaOps, recipe: Recipe) -> None:
        model, device = recipe.model, ops.device
        shape = (recipe.batch.micro_batch_sequences, model.context_length)
        total_targets = recipe.batch.sequences * model.context_length
        self._device = device
        self._params = {s.name: device.zeros(s.shape, np.float32) for s in parameter_table(model)}
        self._inputs, self._targets = device.zeros(shape, np.uint32), device.zeros(shape, np.uint32)
        ops.rope_table(model.context_length, model.head_dim, model.rope_theta)  # uploaded now, kept by the ops

        def run() -> GradSum:
            prepared = prepare(self._params, recipe, ops)
            return gradient_sums(prepared, self._inputs, self._targets, total_targets, recipe, ops, exact=False)

        self._recording = Recording(device, run)

    def load(self, state: State) -> None:
        """Take over the parameters of a state."""
        for name, held in self._params.items():
            self._device.copy(held, state.params[name])

    def __call__(self, tokens: IntArray) -> GradSum:
        """The gradient of a micro-batch (s, T + 1), as `grads` makes it if not exact; valid until the next call."""
        self._device.write(self._inputs, tokens[:, :-1].astype(np.uint32))
        self._device.write(self._targets, tokens[:, 1:].astype(np.uint32))
        self._recording.play()
        return cast(GradSum, self._recording.result)


class Recorder:
    """Decides when a step's gradients are worth recording, and keeps the last recording."""

    def __init__(self) -> None:
        self._recipe: Recipe | None = None
        self._steps = 0
        self._recorded: RecordedGradients | None = None
        self._no_room = False

    def forget(self) -> None:
        """Begin anew: launch directly, then record again."""
        self._recipe, self._steps, self._recorded = None, 0, None

    def give_up(self) -> bool:
        """Launch steps of this recipe directly from now on; whether that is another way than before."""
        found, self._recorded, self._no_room = self.recording, None, True
        return found

    @property
    def recording(self) -> bool:
        """Whether steps are played from a recording now."""
        return self._recorded is not None

    def gradients(self, ops: CudaOps, state: State, recipe: Recipe) -> Gradients | None:
        """Recorded gradients for this state, or None where launching directly is as good."""
        if recipe != self._recipe:
            self._recipe, self._steps, self._recorded, self._no_room = recipe, 0, None, False
        self._steps += 1
        if self._steps <= AFTER or self._no_room or not worthwhile(recipe):
            return None
        if self._recorded is None:
            try:
                self._recorded = RecordedGradients(ops, recipe)
            except Unsupported:  # a recording keeps its memory; the step without one has fitted before
                self._no_room = True
                return None
        self._recorded.load(state)
        return self._recorded


def worthwhile(recipe: Recipe) -> bool:
    """Whether steps of this recipe are so small that a recording gains time."""
    batch = recipe.batch
    even = batch.sequences % batch.micro_batch_sequences == 0
    tokens = batch.micro_batch_sequences * recipe.model.context_length
    return even and tokens <= MOST_TOKENS and parameter_count(recipe.model) <= MOST_PARAMETERS
