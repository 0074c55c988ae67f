"""How long the parts of a step take: its micro-batches, rounding the weights, the update, the digest of the state."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from auditkit.formats.recipe import Recipe
from auditkit.measure.clock import Clock, clock_of
from auditkit.measure.energy import meter_of
from auditkit.measure.profile import Line, Log, timed_device, timed_ops
from auditkit.measure.stages import Stages
from auditkit.measure.subject import Subject, tokens_of
from auditkit.model.network import prepare
from auditkit.model.state import State, state_digests
from auditkit.replay.backend import Backend, CudaBackend
from auditkit.replay.planned import Planned
from auditkit.replay.recorded import AFTER, worthwhile

ENOUGH = 3.0  # seconds of micro-batches
MOST_ROUNDS = 64
FEW_ROUNDS = {False: 3, True: 1}  # of single micro-batches, of groups
COUNTER_SECONDS = 1.0  # a card's counter moves ten to fifty times a second: shorter is too coarse


@dataclass(frozen=True)
class StepTimes:
    """Seconds of the parts of a step that were measured.

    micro_batch  gradient, leaf and sum of one, in the middle of a step; `counted` of them
    prepare      weights to fixed point, once a step; 0 where a plan does it within the micro-batches
    joules       that the device used for one, where it says and the time is long enough for its counter
    update       from the last micro-batch to the new state: rounding, norm, digest of the gradient, AdamW
    digest       of all tensors of the new state; 0 where a plan makes it within the update
    parts, waits under a plan that works in pieces: of all `counted`, by part, and how long work waited for copies there
    """

    micro_batch: float
    prepare: float
    update: float
    digest: float
    counted: int
    peak_bytes: int | None
    joules: float | None = None
    parts: tuple[Line, ...] = ()
    waits: tuple[Line, ...] = ()

    def step(self, micro_batches: int) -> float:
        """Seconds of a whole step of so many micro-batches, computed from these parts."""
        return self.prepare + micro_batches * self.micro_batch + self.update + self.digest


def measure_parts(subject: Subject, state: State, rounds: int | None = None) -> StepTimes:
    """Run a short step of `rounds` + 1 times the micro-batches that are computed together, after one that warms up;
    without `rounds` of so many that they take a few seconds. Where a group's forward pass comes beside the backward
    pass of the one before, one group more is run: the last one has none beside it, and is not counted.
    """
    clock = clock_of(subject.inner)
    stages = Stages(clock)
    backend = subject.planned(stage=stages.begin)
    _one_step(backend, state, subject.part(1))  # loads the kernels
    if rounds is None:
        rounds = _rounds(subject, _one_step(backend, state, subject.part(1)))
    last = (rounds + 1) * subject.together
    recipe = subject.part(last + subject.follows)
    if subject.cuda and worthwhile(recipe):
        for _ in range(AFTER + 1):  # until steps are played from a recording
            _one_step(backend, state, recipe)
    prepare_seconds = 0.0 if subject.layout.plan.pieces else _prepare(subject, state, clock)
    marks: list[Any] = []
    used: list[float | None] = []
    meter = meter_of(subject.inner)

    def told(done: int) -> None:
        marks.append(clock.mark())
        if done in (subject.together, last):
            used.append(meter())
        if done == subject.together:
            stages.restart()
        if done == last:
            stages.stop()

    def one() -> tuple[Any, Any]:
        new, _ = backend.step(state, tokens_of(recipe), recipe, on_micro_batch=told)
        updated = clock.mark()
        state_digests(new, recipe, backend.ops).root(new.step)
        return updated, clock.mark()

    with _watched(subject.inner, stages):
        updated, hashed = backend.on_device(one)
    counted = marks[:last]
    parts, waits = stages.lines(counted[-1])
    seconds = clock.seconds(counted[subject.together - 1], counted[-1])
    return StepTimes(
        micro_batch=_between(counted, subject.together, clock),
        prepare=prepare_seconds,
        update=clock.seconds(marks[-1], updated),
        digest=clock.seconds(updated, hashed),
        counted=max(1, len(counted) - subject.together),
        peak_bytes=peak(subject.inner),
        joules=_joules(used, seconds, len(counted) - subject.together),
        parts=tuple(parts),
        waits=tuple(waits),
    )


@contextmanager
def _watched(backend: Backend, stages: Stages) -> Iterator[None]:
    """Let `stages` note how long a card's work waits for copies."""
    if not isinstance(backend, CudaBackend):
        yield
        return
    transfers = backend.ops.device.transfers
    before, transfers.watch = transfers.watch, stages.wait
    try:
        yield
    finally:
        transfers.watch = before


def _joules(used: list[float | None], seconds: float, micro_batches: int) -> float | None:
    """Joules of a micro-batch from a counter before and after some of them; None where nobody says, or too early."""
    before, after = used
    if before is None or after is None or seconds < COUNTER_SECONDS:
        return None
    return (after - before) / micro_batches


def _one_step(backend: Planned, state: State, recipe: Recipe) -> float:
    """Take a step and wait for it; its seconds."""
    began = time.perf_counter()
    new, _ = backend.step(state, tokens_of(recipe), recipe)
    backend.on_device(lambda: state_digests(new, recipe, backend.ops))
    return time.perf_counter() - began


def _rounds(subject: Subject, seconds: float) -> int:
    """How many groups of micro-batches are enough, where a step of a single micro-batch takes so long."""
    return min(MOST_ROUNDS, max(FEW_ROUNDS[subject.together > 1], math.ceil(ENOUGH / (seconds * subject.together))))


def _between(marks: list[Any], together: int, clock: Clock) -> float:
    """Seconds of a micro-batch: the median of those that come one by one, else the mean over whole groups."""
    if len(marks) <= together:
        raise ValueError("a step of one group shows no time of a micro-batch")  # a programming error, never data
    if together == 1:
        return statistics.median(clock.seconds(a, b) for a, b in zip(marks, marks[1:], strict=False))
    return clock.seconds(marks[together - 1], marks[-1]) / (len(marks) - together)


def _prepare(subject: Subject, state: State, clock: Clock) -> float:
    """Seconds in which the weights are rounded to fixed point, the median of three times."""
    ops, recipe = subject.inner.ops, subject.recipe

    def one() -> float:
        begin = clock.mark()
        prepare(state.params, recipe, ops)
        return clock.seconds(begin, clock.mark())

    return statistics.median(subject.inner.on_device(one) for _ in range(3))


def peak(backend: Backend) -> int | None:
    """Bytes of the card that the pool holds: the most that was needed at a time; None on a CPU."""
    if not isinstance(backend, CudaBackend):
        return None
    pool = getattr(backend.ops.device, "pool", None)  # an emulated device has none
    return None if pool is None else max(int(pool.total_bytes()), int(getattr(pool, "peak", 0)))


@dataclass(frozen=True)
class Profile:
    """Where the time of one micro-batch, and of what comes after the last, goes: by op and by kernel.

    wall: seconds of the micro-batch while it was profiled; `together` of them were, the lines are of all of them.
    """

    wall: float
    together: int
    ops: list[Line]
    kernels: list[Line]
    after: list[Line]
    after_kernels: list[Line]


def profile(subject: Subject, state: State) -> Profile:
    """Profile the second group of micro-batches of a step, with what comes beside it, and the update."""
    clock = clock_of(subject.inner)
    by_op, by_kernel = Log(clock), Log(clock)
    backend = subject.planned(profiled(subject.inner, by_op, by_kernel))
    together = subject.layout.plan.group if subject.layout.plan.pieces else 1  # nothing is timed side by side
    recipe = subject.part(2 * together + subject.follows)
    marks: list[Any] = []

    def told(_done: int) -> None:
        marks.append(clock.mark())
        by_op.cut()
        by_kernel.cut()

    def one() -> None:
        new, _ = backend.step(state, tokens_of(recipe), recipe, on_micro_batch=told)
        state_digests(new, recipe, backend.ops).root(new.step)

    backend.on_device(one)
    return Profile(
        wall=clock.seconds(marks[together - 1], marks[2 * together - 1]),
        together=together,
        ops=by_op.lines(together),  # the section that ends with the first mark of the second group
        kernels=by_kernel.lines(together),
        after=by_op.lines(-1),
        after_kernels=by_kernel.lines(-1),
    )


def profiled(backend: Backend, by_op: Log, by_kernel: Log) -> Backend:
    """The back end with every op timed, and on a card every kernel."""
    if not isinstance(backend, CudaBackend):
        return Backend(timed_ops(backend.ops, by_op), 1, backend.device)
    ops: Any = timed_ops(type(backend.ops)(timed_device(backend.ops.device, by_kernel)), by_op)
    return CudaBackend(ops, 1, backend.device)
