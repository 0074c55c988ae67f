"""Where a segment of a run begins: the tensors that the step before left, under another recipe or place in the data.

Only the document changes, so the root that the segment's record claims follows from the document of the state before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from auditkit.errors import BadArtifact, MachineFault
from auditkit.formats.digest import Digest
from auditkit.formats.state import StateDocument
from auditkit.formats.timeline import Segment
from auditkit.model.state import State, document
from auditkit.replay.backend import Backend
from auditkit.replay.machine import HINT
from auditkit.replay.run import Run


def entered(run: Run, left: StateDocument, segment: Segment, claimed: Digest) -> Digest:
    """The root from which a segment begins, given the document of the state that the step before left.

    BadArtifact: the record claims another root, with the likely reason.
    """
    root = replace(left, recipe=segment.recipe.digest(), sequence=segment.sequence).root()
    if root != claimed:
        raise BadArtifact(
            f"the segment record of step {segment.start} says that state {segment.start} becomes {claimed},"
            f" but under the segment's recipe, {segment.sequence} sequences into its data, it becomes {root}",
            hint=_reason(run, left, segment, claimed),
        )
    return root


def entered_in_memory(run: Run, backend: Backend, state: State, segment: Segment) -> Digest:
    """The same for a state that was computed here, whose tensors are hashed again.

    MachineFault: they are no longer those that the step before left.
    """
    before = run.timeline.left_by(segment.start)
    held = document(state, before.recipe, backend.ops, cursor=before.cursor)
    left = run.state_before(segment.start)
    if held.root() != left:
        raise MachineFault(f"the state changed in memory while it was in use: {left} became {held.root()}", hint=HINT)
    return entered(run, held, segment, run.record(segment.start).state_before)


def _reason(run: Run, left: StateDocument, segment: Segment, claimed: Digest) -> str:
    """What the claimed root would fit, if it is something likely."""
    for changed, reason in _readings(run, left, segment):
        if changed.root() == claimed:
            return f"that is its root {reason}"
    return "recipe, data or step of the segment in run.json are not those of the training, or the tensors are not"


def _readings(run: Run, left: StateDocument, segment: Segment) -> Iterator[tuple[StateDocument, str]]:
    yield left, "as the step before left it: nothing was changed"
    before = run.timeline.left_by(segment.start)
    consumed = {
        segment.start * segment.recipe.batch.sequences: "as if all steps had been taken with the new batch",
        0: "with the data read from their beginning",
        before.sequence_at(segment.start): "with the data cursor of the segment before",
    }
    recipes = {segment.recipe.digest(): ""}
    for other in run.timeline.segments:
        recipes.setdefault(other.recipe.digest(), f"under the recipe of the segment from step {other.start} on")
    for recipe, under in recipes.items():
        for sequence, how in consumed.items():
            said = " and ".join(text for text in (under, how if sequence != segment.sequence else "") if text)
            yield replace(left, recipe=recipe, sequence=sequence), said
    for step in (segment.start - 1, segment.start + 1):
        made = replace(left, step=step, recipe=segment.recipe.digest(), sequence=segment.sequence)
        yield made, f"as state {step}: the step of the segment is another"
