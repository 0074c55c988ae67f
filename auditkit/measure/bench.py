"""All measurements of `auditkit bench`, one after the other: rates, parts of a step, ops, torch in its own process."""

from __future__ import annotations

import gc
import tempfile
from dataclasses import dataclass
from pathlib import Path

from auditkit.errors import Unavailable, UsageError
from auditkit.measure.floor import floor_of
from auditkit.measure.models import DEFAULT, recipe_of
from auditkit.measure.profile import Line
from auditkit.measure.rates import measure_rates
from auditkit.measure.report import Report
from auditkit.measure.subject import Subject, subject_of
from auditkit.measure.times import MOST_ROUNDS, StepTimes, measure_parts, profile
from auditkit.measure.torch_times import Asked, TorchTimes, installed, measure_any
from auditkit.replay.backend import Backend, CudaBackend
from auditkit.store.progress import Progress

ON_CPU = "tiny"  # where no model is named: a larger one takes minutes on a processor
# What torch is asked for, kind and compiling. Compiling for a processor takes longer than it gains here.
KINDS = {True: (("bfloat16", "whole"), ("float32", "layer")), False: (("float32", "off"),)}


@dataclass(frozen=True)
class Options:
    """model: a name, or None for one that the device measures in a minute; micro_batch: sequences of one; memory: bytes
    that may be used where the ops compute; torch: whether to measure it beside; ops: whether to say where time goes.
    """

    model: str | None = None
    micro_batch: int | None = None
    memory: int | None = None
    rounds: int | None = None
    torch: bool = True
    ops: bool = False


def bench(options: Options, backend: Backend, progress: Progress) -> Report:
    """Measure on a back end.

    Raises UsageError for a model or number that there is not, Unsupported for a model that does not fit, MachineFault
    where the self-test fails: what a broken device takes means nothing.
    """
    cuda = isinstance(backend, CudaBackend)
    model = options.model or (DEFAULT if cuda else ON_CPU)
    recipe = recipe_of(model, options.micro_batch)
    if options.rounds is not None and not 1 <= options.rounds <= MOST_ROUNDS:
        raise UsageError(f"{options.rounds} rounds are outside 1..{MOST_ROUNDS}")
    progress.start("measuring", 3 + options.ops + options.torch, "parts")
    try:
        backend.self_test()
        progress.advance(1)
        with tempfile.TemporaryDirectory(prefix="auditkit-bench-") as folder:
            subject = subject_of(recipe, backend, options.memory, Path(folder))
            rates = measure_rates(backend, cuda)
            progress.advance(1)
            times, lines = _parts(subject, options, progress)
        floor = floor_of(recipe, cuda, rates)
        torch, missing = _torch(model, subject, options, progress)
    finally:
        progress.finish()
    plan, need = subject.layout.plan.describe(), subject.layout.need.memory
    return Report(
        model, recipe, backend.device, plan, backend.threads, need, rates, times, floor, torch, missing, lines
    )


def _parts(subject: Subject, options: Options, progress: Progress) -> tuple[StepTimes, tuple[Line, ...]]:
    """Times of the parts, and of the ops if they are asked for; the state is gone afterwards."""
    state = subject.state()
    times = measure_parts(subject, state, options.rounds)
    progress.advance(1)
    if not options.ops:
        return times, ()
    lines = tuple(profile(subject, state).ops)
    progress.advance(1)
    return times, lines


def _torch(
    model: str, subject: Subject, options: Options, progress: Progress
) -> tuple[tuple[TorchTimes, ...], tuple[str, ...]]:
    """Torch's times, and why some are missing."""
    if not options.torch:
        return (), ("torch was not asked",)
    if not installed():
        return (), ("torch is not installed",)
    device, backend = "cpu", subject.inner
    gc.collect()
    if isinstance(backend, CudaBackend):
        device = f"cuda:{backend.ops.device.index}"
        backend.on_device(backend.ops.device.release)
    found, missing = [], []
    size = subject.recipe.batch.micro_batch_sequences
    for kind, compiled in KINDS[subject.cuda]:
        try:
            times, why = measure_any(Asked(model, size, kind, compiled, device, backend.threads))
            found.append(times)
            missing += [f"torch {kind} {why}"] if why else []
        except Unavailable as error:
            missing.append(f"torch {kind}: {error.message}")
    progress.advance(1)
    return tuple(found), tuple(missing)
