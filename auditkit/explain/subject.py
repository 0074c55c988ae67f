"""The step under examination: what it began from, checked, and what is published of it."""

from __future__ import annotations

from dataclasses import dataclass

from auditkit.errors import BadArtifact, MismatchError
from auditkit.formats.cursor import Cursor
from auditkit.formats.digest import Digest
from auditkit.formats.recipe import Recipe
from auditkit.formats.stream import batch_digest
from auditkit.model.state import State
from auditkit.numerics.arrays import IntArray
from auditkit.replay.backend import Backend
from auditkit.replay.boundary import entered_in_memory
from auditkit.replay.outcome import Computed, replay
from auditkit.replay.plan import intervals
from auditkit.replay.run import Run
from auditkit.replay.start import start_state
from auditkit.store.progress import Progress


@dataclass(frozen=True)
class Start:
    """What a step begins from: the state before it (NumPy arrays, the right root) and its batch (the right digest)."""

    run_id: Digest
    step: int
    recipe: Recipe
    cursor: Cursor
    root: Digest
    batch: Digest
    state: State
    tokens: IntArray


def reach(run: Run, step: int, backend: Backend, progress: Progress) -> Start:
    """The start of a step, from the nearest published state at or before it, every record on the way checked.

    Raises Unavailable, BadArtifact and Unsupported as a verification does; MismatchError: a step on the way does not
    match, so that this one is not reached.
    """
    interval = intervals([step], run.published)[0]
    state, _ = start_state(run, interval.start)
    state = backend.place(state)
    progress.start("reach the step", step - interval.start, "steps")
    try:
        for number in range(interval.start, step):
            state = _next(run, backend, state, number, interval.start)
            progress.advance(1)
    finally:
        progress.finish()
    root = _enter(run, backend, state, step, interval.start)
    segment, tokens = run.segment(step), _tokens(run, step)
    batch = run.record(step).batch
    return Start(run.run_id, step, segment.recipe, segment.cursor, root, batch, backend.host(state), tokens)


def _enter(run: Run, backend: Backend, state: State, step: int, start: int) -> Digest:
    begun = run.timeline.begun(step)
    if begun is not None and step != start:
        return entered_in_memory(run, backend, state, begun)
    return run.record(step).state_before


def _tokens(run: Run, step: int) -> IntArray:
    tokens: IntArray = run.tokens(step)
    found, recorded = batch_digest(tokens, run.segment(step).data.dtype), run.record(step).batch
    if found != recorded:
        raise BadArtifact(f"the tokens of step {step} have batch digest {found}, its record says {recorded}")
    return tokens


def _next(run: Run, backend: Backend, state: State, step: int, start: int) -> State:
    _enter(run, backend, state, step, start)
    segment = run.segment(step)
    found = replay(backend, state, _tokens(run, step), segment.recipe, cursor=segment.cursor)
    if not isinstance(found, Computed) or found.root != run.record(step).state_after:
        raise MismatchError(
            f"step {step} on the way does not match its record, so that no later one is reached",
            hint=f"auditkit explain --step {step}",
        )
    return found.state
