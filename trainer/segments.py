"""The segments of the run in a work folder: what holds from which step on, and how far the run goes.

The first segment is that of `recipe.json`, `prepared.json` and `settings.json`. All later ones are in one file,
`segments.json`, which is replaced at once, so that a change is declared or is not. Data of a later segment lie in a
folder within the work folder, unless they are those of an earlier one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from auditkit.errors import BadArtifact, UsageError
from auditkit.formats import canonical
from auditkit.formats.canonical import shown
from auditkit.formats.data_spec import DataSpec
from auditkit.formats.digest import ZERO_DIGEST, Digest
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from auditkit.formats.recipe import Recipe
from auditkit.formats.timeline import Change, Segment, Timeline, check_changes
from auditkit.replay.drawn import check_end
from auditkit.replay.windows import Windows
from trainer import prepared
from trainer.batches import open_batches
from trainer.disk import read_bytes, write_atomic
from trainer.prepared import Prepared
from trainer.states import StoredState
from trainer.work import Settings, Work

FORMAT = "auditkit/trainer-segments/v1"
WHAT = "segments.json"
_HOME = re.compile(r"data-[1-9][0-9]{0,3}")


def is_home(name: str) -> bool:
    """Whether a name within a work folder is one of a folder of data: data-1, data-2, .."""
    return _HOME.fullmatch(name) is not None


@dataclass(frozen=True)
class Stage:
    """What one segment is trained with: from step `step` on, by `recipe`, on `prepared` data that lie in `home`.

    `steps` is where the run ends if no further segment begins before. `home` is a folder in the work folder, "" for
    that itself; `state` is the root of the state that the segment begins from, zeros for the first.
    """

    step: int
    steps: int
    recipe: Recipe
    prepared: Prepared
    home: str = ""
    state: Digest = ZERO_DIGEST

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """An item of segments.json; raises `BadArtifact`."""
        home = fields.raw("home")
        if type(home) is not str or (home and not is_home(home)):
            raise BadArtifact(f"{fields.name('home')}: {shown(str(home))} is no folder of data")
        stage = cls(
            step=fields.integer("step", 1, LIMITS.steps - 1),
            steps=fields.integer("steps", 1, LIMITS.steps, "steps"),
            recipe=Recipe.from_value(fields.raw("recipe"), fields.name("recipe")),
            prepared=Prepared.from_fields(fields.fields("prepared")),
            home=home,
            state=fields.digest("state"),
        )
        fields.done()
        return stage

    def to_value(self) -> dict[str, canonical.Value]:
        """The JSON object."""
        return {
            "home": self.home,
            "prepared": self.prepared.to_value(),
            "recipe": self.recipe.to_value(),
            "state": self.state,
            "step": self.step,
            "steps": self.steps,
        }

    def change(self, data: DataSpec) -> Change:
        """The item of the manifest, with its data section in the layout that is published."""
        return Change(self.step, self.recipe, data, self.state)


@dataclass(frozen=True)
class Course:
    """A run as it is declared in a work folder: its stages, and what `settings.json` says."""

    work: Work
    stages: tuple[Stage, ...]
    own: Settings

    @classmethod
    def begin(cls, work: Work, recipe: Recipe, data: Prepared, settings: Settings) -> Self:
        """A run of one segment. Raises `UsageError` if data or recipe do not fit."""
        data.check_recipe(recipe)
        made = cls(work, (Stage(0, settings.steps, recipe, data),), settings)
        made.check_data()
        return made

    @classmethod
    def load(cls, work: Work) -> Self:
        """The run of a work folder; raises `UsageError` if there is none, `BadArtifact` if a file of it has changed."""
        later = read_bytes(work.segments) if work.segments.is_file() else b""
        return cls.parse(work, work.load_recipe(), work.load_settings(), later)

    @classmethod
    def parse(cls, work: Work, recipe: Recipe, settings: Settings, later: bytes) -> Self:
        """The run of a first segment and the bytes of segments.json, b"" without; raises as `load`."""
        data = prepared.load(work)
        data.check_recipe(recipe)
        first = Stage(0, settings.steps, recipe, data)
        if not later:
            return cls(work, (first,), settings)
        fields = Fields(canonical.loads(later, what=WHAT, limit=LIMITS.manifest_bytes), WHAT)
        fields.choice("format", FORMAT)
        stages = tuple(map(Stage.from_fields, fields.rows("segments", 1, LIMITS.segments)))
        fields.done()
        made = cls(work, (first, *stages), settings)
        check_changes(recipe, data.data, made.changes, made.steps)
        for stage in stages:
            stage.prepared.check_recipe(stage.recipe)
            prepared.check_files(made.home(stage), stage.prepared)
        return made

    def encode_later(self) -> bytes:
        """The bytes of segments.json; b"" for a run of one segment."""
        if len(self.stages) == 1:
            return b""
        value = {"format": FORMAT, "segments": [stage.to_value() for stage in self.stages[1:]]}
        return canonical.dumps(value, what=WHAT)

    def save_later(self) -> None:
        """Replace segments.json at once, or take it away."""
        later = self.encode_later()
        if later:
            write_atomic(self.work.segments, later)
        else:
            self.work.segments.unlink(missing_ok=True)

    def with_steps(self, steps: int, keep: tuple[int, ...] = ()) -> Course:
        """The same run with another end, saved; states `keep` are to be kept besides the others."""
        *before, last = self.stages
        made = replace(self, stages=(*before, replace(last, steps=steps)))
        made.check_data()
        own = replace(self.own, keep_states=tuple(sorted({*self.own.keep_states, *keep})))
        made = replace(made, own=own if before else replace(own, steps=steps))
        if made.own != self.own:
            self.work.save_settings(made.own)
        if before:
            made.save_later()
        return made

    def until(self, steps: int) -> Course:
        """The run up to a step that it has come to: segments that begin there or later have no step yet."""
        *before, last = (stage for stage in self.stages if stage.step < steps)
        return replace(self, stages=(*before, replace(last, steps=steps)))

    @property
    def steps(self) -> int:
        """Where the run ends."""
        return self.stages[-1].steps

    @property
    def changes(self) -> list[Change]:
        """The segments after the first, as a manifest would list them."""
        return [stage.change(stage.prepared.data) for stage in self.stages[1:]]

    @cached_property
    def timeline(self) -> Timeline:
        """The segments with their places in data, leaves and log."""
        return timeline(self.stages, [stage.prepared.data for stage in self.stages], ZERO_DIGEST, self.steps)

    @property
    def settings(self) -> Settings:
        """How far to train and which states to keep: those from which a segment begins as well."""
        begun = (stage.step for stage in self.stages[1:])
        return Settings(self.steps, self.own.state_every, tuple(sorted({*self.own.keep_states, *begun})))

    def settings_of(self, segment: Segment) -> Settings:
        """The settings for the training of one segment, whose last state is the next one's first."""
        return replace(self.settings, steps=segment.stop)

    def home(self, stage: Stage) -> Work:
        """Where the data of a stage lie."""
        return Work(self.work.folder / stage.home) if stage.home else self.work

    def homes(self) -> list[Stage]:
        """A stage for each folder of data, the first that uses it."""
        return list({stage.home: stage for stage in reversed(self.stages)}.values())[::-1]

    def batches(self, segment: Segment) -> Windows:
        """The batches of a segment's steps; raises `BadArtifact` if its ids have changed since they were prepared."""
        stage = self.stages[segment.number]
        return open_batches(self.home(stage), stage.prepared, stage.recipe.batch.sequences, segment.cursor)

    def check_data(self) -> None:
        """Refuse more steps than the declared data have; raises `UsageError` naming the source that ends."""
        for segment in self.timeline.segments:
            try:
                check_end(segment.data, segment.sequence_at(segment.stop))
            except BadArtifact as error:
                steps, each = segment.stop - segment.start, segment.recipe.batch.sequences
                raise UsageError(
                    f"{error.message} ({steps} steps of {each})", hint="fewer --steps, or more --epochs when preparing"
                ) from error

    def check_state(self, stored: StoredState, step: int) -> None:
        """A stored state is the one that the step before left; raises `BadArtifact` naming what it is of."""
        document, segment = stored.document, self.timeline.left_by(step)
        if document.step != step:
            raise BadArtifact(f"{stored.folder}: holds the state of step {document.step}")
        if document.recipe != segment.recipe.digest():
            raise BadArtifact(f"{stored.folder}: a state of another recipe")
        if (document.sequence, document.seed) != (segment.sequence_at(step), segment.recipe.init.seed):
            raise BadArtifact(f"{stored.folder}: a state of another seed or place in the data")


def timeline(stages: Iterable[Stage], data: Iterable[DataSpec], state0: Digest, steps: int) -> Timeline:
    """The segments of some stages, with their data sections in the layout that is published."""
    (first, spec), *later = zip(stages, data, strict=True)
    return Timeline.of(first.recipe, spec, state0, [stage.change(section) for stage, section in later], steps)


def check_begun(course: Course, stored: StoredState) -> None:
    """Where a segment begins with a stored state, it begins from the root that was declared; raises `BadArtifact`."""
    segment = course.timeline.begun(stored.document.step)
    if segment is not None and begun_root(stored, segment) != segment.state:
        raise BadArtifact(
            f"{course.work.segments}: not the segment that was declared for step {segment.start}: state {segment.start}"
            f" becomes {begun_root(stored, segment)}, declared was {segment.state}"
        )


def begun_root(stored: StoredState, segment: Segment) -> Digest:
    """The root of a stored state as a segment begins from it: same tensors, other recipe and place in the data."""
    document = replace(stored.document, recipe=segment.recipe.digest(), sequence=segment.sequence)
    return document.root()
