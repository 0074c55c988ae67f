"""The state that a replay begins from (check 4): its bytes, its document, its root, and for step 0 the seed."""

from __future__ import annotations

from dataclasses import replace

from auditkit.errors import BadArtifact, MachineFault, MismatchError
from auditkit.formats.digest import Digest
from auditkit.model.state import State, document, initial_state, seeded_state
from auditkit.replay.boundary import entered
from auditkit.replay.compare import TensorDifference
from auditkit.replay.machine import HINT
from auditkit.replay.published import StoredState, open_state
from auditkit.replay.run import Run


class SeedMismatch(MismatchError):
    """the published state 0 is not the one that follows from the seed"""

    def __init__(self, published: Digest, computed: Digest, difference: TensorDifference | None) -> None:
        super().__init__(f"state 0 is not what the seed gives: published {published}, computed {computed}")
        self.published = published
        self.computed = computed
        self.difference = difference


def start_state(run: Run, step: int, *, hold: bool = True) -> tuple[State, str]:
    """State `step` of a run, from its published files, and what was compared, in words.

    Its root must be the one of the manifest and of the records, and state 0 must follow from the seed alone. Where a
    segment begins with the step, it must become what the segment's record says.

    hold: whether the state is brought into memory; else its tensors are read, and checked, when they are asked for.

    Raises Unavailable, BadArtifact, Unsupported; for a state 0 that the seed does not give, SeedMismatch, MachineFault.
    """
    # 4 start state root
    opened = open_state(run, step)
    root, recorded = opened.document.root(), run.state_before(step)
    if root != recorded:
        raise BadArtifact(f"state {step} has root {root}, the records say {recorded}")
    segment = run.timeline.begun(step)
    if segment is not None:
        root = entered(run, opened.document, segment, run.record(step).state_before)
        return _opened(opened, run, hold), f"{root}, the published state under what changes before step {step}"
    if step:
        return _opened(opened, run, hold), f"{root}, published"
    # The bytes are not needed for the replay, but whoever loads state 0 relies on them.
    opened.verify()
    state = initial_state(run.recipe) if hold else seeded_state(run.recipe)
    made = document(state, run.recipe)
    if made.root() != root:
        _refuse_seed(run, state, made.root())
    if not hold:
        state = replace(state, found={entry.order: entry.digest for entry in made.tensors})
    return state, f"{root}, published and derived from the seed alone"


def _opened(opened: StoredState, run: Run, hold: bool) -> State:
    return opened.load(run.recipe) if hold else opened.reader(run.recipe)


def _refuse_seed(run: Run, state: State, computed: Digest) -> None:
    """The error for a state 0 that the seed does not give, once both sides were read and derived again."""
    fresh = run.afresh()
    again = document(initial_state(fresh.recipe) if state.held else seeded_state(fresh.recipe), fresh.recipe).root()
    if again != computed:
        raise MachineFault(f"two derivations of state 0 from the seed differ: {computed} and {again}", hint=HINT)
    published = open_state(fresh, 0)
    if published.document.root() == again:
        raise MachineFault("the published state 0, read again, is what the seed gives", hint=HINT)
    raise SeedMismatch(fresh.state0, computed, published.first_difference(state))
