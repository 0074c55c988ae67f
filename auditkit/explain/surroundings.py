"""What lies around a step: the published state after it, the state and gradient before it, other batches."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from auditkit.errors import AuditkitError
from auditkit.explain import sums
from auditkit.explain.bench import Bench, Variant
from auditkit.explain.findings import Story
from auditkit.explain.subject import Start, reach
from auditkit.explain.sums import Parts
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.model.state import State
from auditkit.numerics.arrays import I64, IntArray
from auditkit.replay.backend import Backend
from auditkit.replay.plan import intervals
from auditkit.replay.published import StoredState, open_state
from auditkit.replay.run import Run
from auditkit.store.progress import Progress

NEAR, NEAR_QUICK = 64, 4  # steps that are replayed to reach the state of a step before


class Surroundings:
    """Each is looked for when first asked for; what cannot be had is None, and the story says so."""

    def __init__(
        self, run: Run, start: Start, backend: Backend, progress: Progress, story: Story, *, quick: bool
    ) -> None:
        self.run, self.start, self.backend, self.progress, self.story = run, start, backend, progress, story
        self._near = NEAR_QUICK if quick else NEAR

    @functools.cached_property
    def published(self) -> StoredState | None:
        """The published state after the step, if there is one that can be read."""
        if self.start.step + 1 not in self.run.published:
            return None
        try:
            stored = open_state(self.run, self.start.step + 1)
            stored.verify()
        except AuditkitError as error:
            self.story.notes.append(f"the state after the step cannot be read: {error.message}")
            return None
        return stored

    @functools.cached_property
    def leaves(self) -> Sequence[MicroBatchLeaf]:
        """The published leaves of the step, or none."""
        try:
            return self.run.leaves(self.start.step)
        except AuditkitError as error:
            self.story.notes.append(f"the leaves of the micro-batches cannot be read: {error.message}")
            return ()

    def tokens(self, step: int) -> IntArray | None:
        """The batch of another step."""
        try:
            return self.run.tokens(step) if 0 <= step < self.run.size else None
        except AuditkitError:
            return None

    def after(self) -> State | None:
        """The published state after the step."""
        return self.published.load(self.run.recipe) if self.published else None

    def previous(self) -> State | None:
        """The state before the step before."""
        return self._before.state if self._before else None

    @functools.cached_property
    def _before(self) -> Start | None:
        step = self.start.step - 1
        if step < 0:
            return None
        far = step - intervals([step], self.run.published)[0].start
        if far > self._near:
            self.story.not_tried.append(f"what needs state {step}: it is {far} steps from a published one")
            return None
        try:
            return reach(self.run, step, self.backend, self.progress)
        except AuditkitError as error:
            self.story.not_tried.append(f"what needs state {step}: {error.message}")
            return None

    def older(self) -> list[I64] | None:
        """The gradient sums of the step before."""
        return self._older

    @functools.cached_property
    def _older(self) -> list[I64] | None:
        before = self._before
        if before is None:
            return None
        bench = Bench(before, self.backend, 0, self.progress)
        return sums.total_of(Parts(bench, [Variant.of(before)] * bench.count))
