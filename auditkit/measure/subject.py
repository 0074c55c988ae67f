"""What is measured: a model's step on one back end, under the plan of a verification, from a state made here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from auditkit.formats.recipe import BatchConfig, Recipe
from auditkit.kernels import normal
from auditkit.kernels.backend import CudaOps
from auditkit.kernels.device import Array
from auditkit.model.params import ParamSpec, init_params, parameter_table
from auditkit.model.state import State, seeded_state
from auditkit.numerics.arrays import F32, IntArray
from auditkit.replay import machine
from auditkit.replay.backend import Backend, CudaBackend
from auditkit.replay.layout import Layout, choose_layout
from auditkit.replay.placing import limit_card, limits_of
from auditkit.replay.planned import Planned
from auditkit.replay.predict import Profile
from auditkit.store.progress import Clock, SystemClock


class StoppedClock(SystemClock):
    """A clock on which no time passes: under it nothing is kept on the disk for a process that goes on."""

    def now(self) -> float:
        """The same moment, always."""
        return 0.0


@dataclass(frozen=True)
class Subject:
    """A recipe on a back end under a layout; `inner` is the back end without it."""

    recipe: Recipe
    inner: Backend
    layout: Layout
    folder: Path  # for what a plan puts on the disk

    @property
    def cuda(self) -> bool:
        """Whether it runs on a card."""
        return isinstance(self.inner, CudaBackend)

    @property
    def together(self) -> int:
        """Micro-batches that are computed together, so that they are told of together."""
        plan = self.layout.plan
        return plan.group if plan.pieces else self.workers

    @property
    def follows(self) -> int:
        """Micro-batches whose forward pass is to come beside the backward pass of the last that is measured."""
        return self.together if self.layout.plan.beside else 0

    @property
    def workers(self) -> int:
        """Threads that compute micro-batches side by side."""
        plan = self.layout.plan
        return self.inner.threads if plan.pieces else max(1, min(self.inner.threads, plan.workers))

    def planned(
        self,
        inner: Backend | None = None,
        clock: Clock | None = None,
        stage: Callable[[str], None] = lambda _: None,
    ) -> Planned:
        """The back end of a verification under the plan; inner: another one in its place, e.g. one that is profiled."""
        inner = inner or self.inner
        return Planned(
            inner.ops,
            self.workers,
            inner.device,
            inner.chosen,
            inner=inner,
            layout=self.layout,
            shapes={spec.name: spec.shape for spec in parameter_table(self.recipe.model)},
            cache=lambda: self.folder,
            clock=clock or StoppedClock(),
            stage=stage,
        )

    def state(self) -> State:
        """State 0 of the recipe where the plan wants it, by a card's own kernels where there is one."""
        if not self.layout.plan.pieces:
            return self._held()
        seeded = seeded_state(self.recipe)
        if self.layout.plan.params == "disk" or not isinstance(self.inner, CudaBackend):
            return self.planned().place(seeded)
        ops = self.inner.ops

        def make() -> dict[str, F32]:
            made = ((spec.name, made_on(ops, spec, self.recipe)) for spec in self._specs)
            return {name: self.inner.waiting(ops.host(array)) for name, array in made}

        return State(0, self.inner.on_device(make), seeded.adam_m, seeded.adam_v)

    def _held(self) -> State:
        inner, specs = self.inner, self._specs
        if not isinstance(inner, CudaBackend):
            params = init_params(self.recipe)
            return State(0, params, *({s.name: np.zeros(s.shape, np.float32) for s in specs} for _ in range(2)))
        ops = inner.ops

        def make() -> State:
            moments = ({s.name: ops.device.zeros(s.shape, np.float32) for s in specs} for _ in range(2))
            return State(0, {s.name: made_on(ops, s, self.recipe) for s in specs}, *moments)

        return inner.on_device(make)

    @property
    def _specs(self) -> tuple[ParamSpec, ...]:
        return parameter_table(self.recipe.model)

    def part(self, micro_batches: int) -> Recipe:
        """The recipe with a step of so many micro-batches."""
        size = self.recipe.batch.micro_batch_sequences
        return replace(self.recipe, batch=BatchConfig(micro_batches * size, size))


def subject_of(
    recipe: Recipe, backend: Backend, memory: int | None, folder: Path, profile: Profile | None = None
) -> Subject:
    """The plan for what may be used, by a machine's profile or the declared one. Unsupported: nothing fits."""
    found = limits_of(backend, memory, machine.free_disk(folder))
    cuda = isinstance(backend, CudaBackend)
    layout = choose_layout([recipe], found, cuda=cuda, threads=backend.threads, profile=profile)
    pieces = layout.plan.pieces
    limit_card(backend, found.memory, wanted=memory is not None or pieces, at_once=pieces)
    return Subject(recipe, backend, layout, folder)


def made_on(ops: CudaOps, spec: ParamSpec, recipe: Recipe) -> Array:
    """The initial value of a parameter, made on the card: the bits of `init_params`."""
    if spec.kind == "norm":
        return ops.place(np.ones(spec.shape, np.float32))
    std = recipe.init.residual_std if spec.kind == "residual" else recipe.init.std
    return normal.normal(ops.device, recipe.init.seed, spec.name, spec.shape, np.float32(std))


def tokens_of(recipe: Recipe, seed: int = 1) -> IntArray:
    """Random tokens of a step, (S, T + 1) int64."""
    shape = (recipe.batch.sequences, recipe.model.context_length + 1)
    return np.random.default_rng(seed).integers(0, recipe.model.vocab_size, shape)
