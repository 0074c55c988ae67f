"""The plan of a verification: what this machine has, or may use, against what the steps need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from auditkit.errors import MachineFault, Unsupported
from auditkit.formats.digest import Digest
from auditkit.formats.recipe import Recipe
from auditkit.kernels.device import Device
from auditkit.model.params import parameter_table
from auditkit.replay import machine
from auditkit.replay.backend import Backend, CudaBackend
from auditkit.replay.layout import Layout, Limits, choose_layout
from auditkit.replay.plan import Interval, following
from auditkit.replay.planned import Planned
from auditkit.replay.run import Run
from auditkit.store.progress import Clock, Progress, SystemClock

MARGIN = 0.9  # of what is free, where nobody says how much may be used


def recipes_of(run: Run, plan: Sequence[Interval]) -> dict[Recipe, int]:
    """The steps that are replayed, by a recipe of the same shape: other numbers in it cost nothing."""
    found: dict[object, tuple[Recipe, int]] = {}
    for segment in run.timeline.segments:
        steps = sum(len(range(max(i.start, segment.start), min(i.stop, segment.stop))) for i in plan)
        if steps:
            shape = (segment.recipe.model, segment.recipe.batch, segment.recipe.numerics)
            recipe, before = found.get(shape, (segment.recipe, 0))
            found[shape] = recipe, before + steps
    return dict(found.values())


def limits(run: Run, backend: Backend, memory: int | None) -> Limits:
    """What may be used: `memory` bytes where the ops compute, or most of what is free there."""
    return limits_of(backend, memory, _free_disk(run))


def limits_of(backend: Backend, memory: int | None, disk: int | None) -> Limits:
    """The same where it is known how many bytes of disk may be used."""
    free = machine.free_memory()
    host = None if free is None else int(free * MARGIN)
    if isinstance(backend, CudaBackend):
        return Limits(_free_on(backend.ops.device) if memory is None else memory, host, disk)
    return Limits(host if memory is None else memory, None, disk)


def limit_card(backend: Backend, allowed: int | None, *, wanted: bool, at_once: bool = False) -> None:
    """Let a card's arrays have so much, if that is wanted, or if an earlier verification had a limit: it is not this
    one's. What is kept from step to step goes before, tables as well as recordings, which lie in memory of their own
    and read those tables. at_once: as Device.limit.
    """
    if allowed is None or not isinstance(backend, CudaBackend):
        return
    device = backend.ops.device
    if wanted or device.is_limited:
        backend.recorder.forget()
        backend.ops.forget()
        device.limit(allowed, at_once=at_once)


def _free_on(device: Device) -> int | None:
    try:
        return int(device.memory(limited=False)[0] * MARGIN)
    except MachineFault:  # it is lost, which every step will tell
        return None


def _free_disk(run: Run) -> int | None:
    try:
        return machine.free_disk(run.store.cache.folder)
    except Unsupported:  # there is no cache here, and a plan that needs none is as good
        return 0


def layout_of(run: Run, plan: Sequence[Interval], backend: Backend, found: Limits) -> Layout:
    """How the steps of a verification are taken with so much. Unsupported: they cannot be, with what would."""
    recipes = list(recipes_of(run, plan))
    cuda, more = isinstance(backend, CudaBackend), following(plan)
    return choose_layout(recipes, found, cuda=cuda, threads=backend.threads, following=more)


def planned(
    run: Run,
    plan: Sequence[Interval],
    backend: Backend,
    memory: int | None,
    progress: Progress,
    *,
    program: Callable[[], Digest] | None = None,
    clock: Clock | None = None,
) -> Planned:
    """The back end under the plan of a verification. Raises Unsupported."""
    found = limits(run, backend, memory)
    layout = layout_of(run, plan, backend, found)
    pieces = layout.plan.pieces
    limit_card(backend, found.memory, wanted=memory is not None or pieces, at_once=pieces)

    def again(first: Layout) -> Layout:
        # of the disk as before: what lies there now is the first replay's, which its plan has counted
        left = replace(found, host=limits(run, backend, found.memory).host)
        return beside(first, left, lambda: layout_of(run, plan, backend, left))

    more: dict[str, Any] = {} if program is None else {"program": program}
    return Planned(
        backend.ops,
        backend.threads if layout.plan.pieces else max(1, min(backend.threads, layout.plan.workers)),
        backend.device,
        backend.chosen,
        inner=backend,
        layout=layout,
        shapes={spec.name: spec.shape for spec in parameter_table(run.recipe.model)},
        cache=lambda: Path(run.store.cache.folder),
        progress=progress,
        clock=clock or SystemClock(),
        again=again,
        **more,
    )


def beside(first: Layout, left: Limits, choose: Callable[[], Layout]) -> Layout:
    """The layout of a second replay, for which the first one's page-locked memory is not there: that of the first if it
    fits what is `left`, else the one to `choose`. The first as well where there is none, or none in pieces: what a plan
    counts is an upper bound, and each block of main memory is asked for before it is used.
    """
    if not first.plan.pieces or left.fit(first.need):
        return first
    try:
        layout = choose()
    except Unsupported:
        return first
    return layout if layout.plan.pieces else first
