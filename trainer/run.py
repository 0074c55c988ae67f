"""Train from step 0, or go on from the last complete state to the same bits as if nothing had happened."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.cli import console
from auditkit.errors import AuditkitError, BadArtifact, MachineFault, Unsupported, UsageError
from auditkit.formats import record
from auditkit.formats.recipe import Recipe
from auditkit.formats.run import RECORDS
from auditkit.formats.timeline import Segment
from auditkit.model.state import State, initial_state
from auditkit.replay.backend import choose
from auditkit.verdict import Verdict
from trainer import lock, prepared, recipe_toml, witness
from trainer.disk import remove_temporaries, write_atomic
from trainer.held import CHECK_EVERY
from trainer.live.session import Session
from trainer.live.settings import NOT_PUBLISHED, LiveOptions
from trainer.log import RunLog, read_rows
from trainer.loop import Training
from trainer.parallel.place import launched
from trainer.plot import plot_loss
from trainer.runner import OneProcess, Runner
from trainer.segments import Course, check_begun
from trainer.skips import MOST, Skips
from trainer.states import StoredState, complete_steps
from trainer.stop import StopRequest, watch_signals
from trainer.work import Settings, Work


@dataclass(frozen=True)
class Machine:
    """On what to compute, and with how much patience; no bit depends on it.

    threads   None for all processors, divided among the ranks of this machine
    backend   what carries arrays between ranks: "gloo", "nccl", or "" for the one that fits the devices
    wait      seconds that a rank waits for another one that is alive but does not come
    check     memory is checked every so many steps, 0: never
    max_skips so many skipped steps on end stop the run
    """

    threads: int | None = None
    device: str = "cpu"
    backend: str = ""
    wait: float = 1800.0
    check: int = CHECK_EVERY
    max_skips: int = MOST


@dataclass(frozen=True)
class RunOptions:
    """What the user chooses besides the recipe; `steps` None means the recipe's total. No bit depends on them."""

    steps: int | None
    state_every: int
    keep_states: tuple[int, ...]
    machine: Machine = Machine()
    publication: LiveOptions = NOT_PUBLISHED


Ended = tuple[int, str]  # the exit code, and a summary for people
Open = Callable[[Course, Segment], Runner[Any]]  # who computes a segment; raises where it cannot be computed here


def start(recipe_path: Path, folder: Path, options: RunOptions) -> Ended:
    """Train by a recipe file in a prepared work folder; returns the exit code and a summary for people.

    Raises `UsageError` if the folder holds a run already or recipe, options and data do not fit.
    """
    session = Session(options.publication)
    return session.ended(
        _on(options.machine, folder, lambda runner: _start(recipe_path, folder, options, runner, session))
    )


def resume(folder: Path, *, steps: int | None, machine: Machine, publication: LiveOptions = NOT_PUBLISHED) -> Ended:
    """Go on from the last complete state, up to `steps` if given; returns the exit code and a summary for people.

    Raises `UsageError` if there is no run, `BadArtifact` if a file of it was damaged.
    """
    session, skips = Session(publication), Skips(machine.max_skips)
    return session.ended(_on(machine, folder, lambda runner: _resume(folder, steps, runner, session, skips)))


def _on(machine: Machine, folder: Path, lead: Callable[[Open], Ended]) -> Ended:
    """Run `lead` in this process, or, started by torchrun, on the rank that leads the others."""
    place = launched()
    if place is not None:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # else a lost rank is followed by pages of C++ frames
        from trainer.parallel.launch import on_ranks  # brings torch

        return on_ranks(place, machine, folder, lead)
    threads = machine.threads or os.cpu_count() or 1

    def alone(_: Course, segment: Segment) -> Runner[Any]:
        backend = choose(machine.device, threads)
        return OneProcess(backend, segment.recipe, segment.cursor, check_every=machine.check)

    return lead(alone)


def _start(recipe_path: Path, folder: Path, options: RunOptions, open_runner: Open, session: Session) -> Ended:
    with lock.hold(folder), session:
        work = Work(folder)
        data = prepared.load(work)
        recipe = recipe_toml.load(recipe_path)
        data.check_recipe(recipe)
        if work.recipe.exists():
            raise UsageError(
                f"{folder}: a run was started here already",
                hint=f"python -m trainer resume {folder}, or prepare another",
            )
        course = Course.begin(work, recipe, data, _settings(recipe, options))
        runner = open_runner(course, course.timeline.segments[0])  # before anything says that the run was started
        session.begin(course)
        work.save_settings(course.own)
        write_atomic(work.recipe, recipe.encode())
        return _go_on(course, open_runner, session, Skips(options.machine.max_skips), runner)


def _resume(folder: Path, steps: int | None, open_runner: Open, session: Session, skips: Skips) -> Ended:
    with lock.hold(folder), session:
        course = Course.load(Work(folder))
        keep = session.remember(course)
        if steps is not None and steps != course.steps:
            course = _with_steps(course, steps, keep)
        session.go_on(course)
        return _go_on(course, open_runner, session, skips)


def _settings(recipe: Recipe, options: RunOptions) -> Settings:
    steps = recipe.schedule.total_steps if options.steps is None else options.steps
    check_steps(recipe, steps)
    beyond = [step for step in options.keep_states if step > steps]
    if beyond:
        raise UsageError(f"state {beyond[0]} cannot be kept: the run ends at step {steps}")
    return Settings(steps, options.state_every, options.keep_states)


def _with_steps(course: Course, steps: int, keep: tuple[int, ...]) -> Course:
    last = course.stages[-1]
    check_steps(last.recipe, steps)
    done = max(complete_steps(course.work.states), default=0)
    if steps < done:
        raise UsageError(f"{steps} steps are fewer than the {done} that are done")
    if steps <= last.step:
        raise UsageError(f"{steps} steps are none of the segment that begins with step {last.step}")
    return course.with_steps(steps, keep)


def check_steps(recipe: Recipe, steps: int) -> None:
    """Refuse more steps than a recipe's schedule has; raises `UsageError`."""
    total = recipe.schedule.total_steps
    if steps > total:
        raise UsageError(
            f"{steps} steps are more than the {total} of the recipe's schedule",
            hint="another total_steps is another recipe: start another run with it, or declare it (trainer change)",
        )


def _go_on(
    course: Course, open_runner: Open, session: Session, skips: Skips, runner: Runner[Any] | None = None
) -> Ended:
    """Train from the last complete state to the end, segment by segment; `runner` is that of the first one."""
    work = course.work
    remove_temporaries(work.folder)
    work.states.mkdir(exist_ok=True)
    remove_temporaries(work.states)
    session.start()
    with watch_signals() as stop:
        while True:
            segment = course.timeline.segment(max(complete_steps(work.states), default=0))
            found = runner or open_runner(course, segment)
            summary = _segment(course, segment, found, stop, session, skips)
            if summary:
                session.trained(stopped=bool(stop) or max(complete_steps(work.states)) < course.steps)
                return exit_code(stop), summary
            runner = None


def _segment(
    course: Course, segment: Segment, runner: Runner[Any], stop: StopRequest, session: Session, skips: Skips
) -> str:
    """Train one segment from the last complete state; the summary at the end or when stopped, else an empty text."""
    batches = course.batches(segment)
    runner.self_test()  # MachineFault: such a machine would publish what nobody else can repeat
    training = Training(course.work, course.settings_of(segment), batches, runner, session.completed, skips)
    state, log = _recover(training, course)
    try:
        with log:
            state = training.train(state, log, stop)
    except (MachineFault, Unsupported):
        console.tell(f"what was complete is kept; python -m trainer resume {course.work.folder} goes on, on any device")
        raise
    goes_on = segment.stop < course.steps and state.step == segment.stop and not runner.stops(bool(stop))
    return "" if goes_on else _finish(training, state, course.steps)


def exit_code(stop: StopRequest) -> int:
    """How a training ends that came to its end, or was asked to stop."""
    return Verdict.INTERRUPTED.code if stop.signal is signal.SIGINT else Verdict.MATCH.code


def _recover(training: Training[Any], course: Course) -> tuple[Any, RunLog]:
    """The last complete state, with all files cut to it; or state 0, if the run did not come that far."""
    work, before = training.work, course.timeline.leaves_before
    steps = complete_steps(work.states)
    if not steps:
        return _begin(training, course.stages[0].recipe)
    folder = work.state(steps[-1])
    try:
        stored = StoredState.open(folder)
        course.check_state(stored, steps[-1])
        check_begun(course, stored)
        state = training.runner.load(stored)
        rows = read_rows(work.folder, state.step)
        if rows and rows[-1].state_after != stored.document.root():
            raise BadArtifact(f"{folder}: not the state that record {state.step - 1} leads to")
        witness.check(work.folder, rows, before)
        segment = course.timeline.segment(state.step)
        training.skips.recall(segment.recipe, rows[segment.start :])
        return state, RunLog.reopen(work.folder, state.step, before)
    except AuditkitError as error:
        error.hint = (
            error.hint or f"this is no trace of a killed run; without {folder} it goes on from an earlier state"
        )
        raise


def _begin(training: Training[Any], recipe: Recipe) -> tuple[Any, RunLog]:
    work = training.work
    records = work.folder / RECORDS
    if records.is_file() and records.stat().st_size > len(record.MAGIC):
        # State 0 is completed before the first record is written, so somebody took the states away.
        raise BadArtifact(f"{work.folder}: there are records but no state", hint="put the states back, or prepare anew")
    state = training.runner.first(lambda: first_state(recipe))
    log = RunLog.create(work.folder)
    training.save(state, log)
    training.runner.settle()  # records without any state would be a run whose states somebody took away
    return state, log


def first_state(recipe: Recipe) -> State:
    """State 0 of a recipe, NumPy arrays. Raises `UsageError` if it is not finite."""
    with np.errstate(over="ignore"):  # told below, in words
        state = initial_state(recipe)
    for name, array in state.params.items():
        if not np.isfinite(array).all():
            raise UsageError(f"parameter {name} of state 0 is not finite", hint="lower init.std and init.residual_std")
    return state


def _finish(training: Training[Any], state: Any, last: int) -> str:
    work = training.work
    try:
        plot_loss(work.metrics, work.loss_plot, title=f"{work.folder.resolve().name}: {state.step} of {last} steps")
    except AuditkitError as error:  # a run is not worth less for a missing picture
        console.tell(f"no loss plot: {error.message}; {error.hint}")
    if state.step < last:
        console.tell(f"stopped; python -m trainer resume {work.folder} goes on")
    return f"step {state.step} of {last}\nstate {training.runner.root(state)}"
