"""The second replay before a mismatch: a machine that disagrees with itself says nothing about the publisher.

One flipped bit must not read as an accusation, wherever it is. So nothing of the first replay is used again: the
manifest is parsed anew, records and leaves are read anew, the inputs come from their files again (a state that was
computed on the way is copied), and they are digested before and after. What a single fault spoils, one of these
comparisons shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from auditkit.errors import AuditkitError, MachineFault
from auditkit.formats.digest import Digest
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.record import StepRecord
from auditkit.formats.stream import batch_digest
from auditkit.formats.timeline import Segment
from auditkit.model.state import State, document
from auditkit.numerics.arrays import F32, IntArray
from auditkit.replay.backend import Backend
from auditkit.replay.machine import HINT
from auditkit.replay.outcome import Broken, Computed, Fingerprint, Stopped, differences, replay
from auditkit.replay.report import FieldDifference
from auditkit.replay.run import Run
from auditkit.replay.start import start_state


@dataclass(frozen=True)
class Confirmed:
    """A replay whose repetition gave the same: what it gave, from which state, and where the record says otherwise."""

    outcome: Computed | Stopped
    state: State
    differences: tuple[FieldDifference, ...]


def confirm(
    run: Run,
    backend: Backend,
    number: int,
    start: int,
    state: State,
    tokens: IntArray,
    first: Fingerprint,
    *,
    work_key: bytes | None = None,
) -> Confirmed:
    """Repeat a replay of step `number` that did not give what its record says, from inputs that are read again.

    `state` and `tokens` are those of the first replay; `start` is the step of the published state it is reached from.

    MachineFault: the self-test fails, an input has changed in memory, or the two replays differ. The errors of reading
    the run again.
    """
    backend.self_test()
    fresh = afresh(run, number)
    record = fresh.record(number)
    held(backend, record, fresh.segment(number), state, tokens)
    with backend.anew() as other:
        state = _again(fresh, other, number, start, state)
        tokens = fresh.tokens(number)
        held(other, record, fresh.segment(number), state, tokens)
        segment = fresh.segment(number)
        second = replay(other, state, tokens, segment.recipe, work_key=work_key, cursor=segment.cursor)
    held(backend, record, segment, state, tokens)
    require_same(first, second.fingerprint)
    if isinstance(second, Broken):  # twice in the same place: no bit was flipped, this program is wrong
        raise second.error
    if isinstance(second, Stopped):
        return Confirmed(second, state, ())
    return Confirmed(second, state, differences(record, leaves(fresh, number), second))


def require_same(first: Fingerprint, second: Fingerprint) -> None:
    """MachineFault: two replays of the same step differ."""
    if not first.agrees(second):
        message = f"two replays of the same step differ: {first.describe()} and {second.describe()}"
        raise MachineFault(message, hint=HINT)


def afresh(run: Run, number: int) -> Run:
    """The run read again, whose record of step `number` is the one that was compared with.

    MachineFault: it is not, so a bit was flipped in memory since.
    """
    fresh = run.afresh()
    if fresh.record(number) != run.record(number):
        raise MachineFault(f"record {number} changed in memory while it was in use", hint=HINT)
    return fresh


def held(backend: Backend, record: StepRecord, segment: Segment, state: State, tokens: IntArray) -> None:
    """Hash the inputs of a replay where they lie. MachineFault: they are no longer those that the record names."""
    found = document(state, segment.recipe, backend.ops, cursor=segment.cursor).root()
    if found != record.state_before:
        message = f"the start state changed in memory while it was in use: {record.state_before} became {found}"
        raise MachineFault(message, hint=HINT)
    held_tokens(record, segment, tokens)


def held_record(record: StepRecord, digest: Digest) -> None:
    """MachineFault: a record that was compared with is no longer the one whose digest was taken before."""
    if record.digest() != digest:
        raise MachineFault(f"record {record.step} changed in memory while it was in use", hint=HINT)


def held_tokens(record: StepRecord, segment: Segment, tokens: IntArray) -> None:
    """The same of the tokens alone."""
    found = batch_digest(tokens, segment.data.dtype)
    if found != record.batch:
        message = f"the tokens changed in memory while they were in use: {record.batch} became {found}"
        raise MachineFault(message, hint=HINT)


def leaves(run: Run, number: int) -> tuple[MicroBatchLeaf, ...]:
    """The published leaves of a step; none where they cannot be had, for the record has their root."""
    try:
        return run.leaves(number)
    except AuditkitError:
        return ()


def _again(fresh: Run, backend: Backend, number: int, start: int, state: State) -> State:
    """The start state once more: in other memory; where there may be no room for both, in place of the first."""
    published = number == start
    again = start_state(fresh, start, hold=backend.holds)[0] if published else _on_host(backend, state)
    if published or backend.holds:  # else it is read from the first, and a plan for several steps has room for both
        backend.let_go(state)
    return backend.place(again)


def copied_in(backend: Backend, state: State) -> State:
    """A state that was computed here, in other memory of the same back end."""
    return backend.place(_on_host(backend, state))


def _on_host(backend: Backend, state: State) -> State:
    """The state in other memory, on the host; what comes from a device is a copy already."""
    host = backend.host(state)
    return copied(host) if host is state else host


def copied(state: State) -> State:
    """The state in memory of its own; one that is not in memory is read, and checked, each time anyway."""
    if not state.held:
        return state
    return replace(state, params=_copies(state.params), adam_m=_copies(state.adam_m), adam_v=_copies(state.adam_v))


def _copies(arrays: Mapping[str, F32]) -> dict[str, F32]:
    return {name: np.array(array) for name, array in arrays.items()}
