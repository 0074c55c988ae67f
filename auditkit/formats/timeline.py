"""The segments of a run: stretches of steps under one recipe and one data section, and what may change between them.

A run has one segment unless `segments` of run.json lists more. Steps are counted through all of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats import canonical
from auditkit.formats.canonical import shown
from auditkit.formats.cursor import Cursor
from auditkit.formats.data_spec import DataSpec, check_data
from auditkit.formats.digest import Digest, check_digest
from auditkit.formats.fields import Fields
from auditkit.formats.leaves import LEAF_BYTES
from auditkit.formats.leaves import MAGIC as LEAVES_MAGIC
from auditkit.formats.limits import LIMITS
from auditkit.formats.recipe import Recipe
from auditkit.formats.schema import Int

# What every segment has in common with the first. The model's sizes decide names and shapes of the tensors, the kind of
# optimiser which moments there are, the version what all numbers mean; `init` was used up by state 0, and its seed
# names the random numbers in every state document.
FIXED = {
    "model": (
        "vocab_size",
        "hidden_size",
        "num_layers",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "ffn_size",
        "tied_head",
        "qk_norm",
    ),
    "optimizer": ("kind",),
    "numerics": ("version",),
    "init": ("seed", "std", "residual_std"),
}


@dataclass(frozen=True, slots=True)
class Change:
    """An item of `segments` in run.json: from step `step` on, recipe and data are these.

    `state` is the root of the state that this step begins from: the tensors that the step before left, under the new
    recipe and at the place in the new data.
    """

    step: int
    recipe: Recipe
    data: DataSpec
    state: Digest

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """The item of a JSON object; BadArtifact naming the field."""
        change = cls(
            step=fields.integer("step", 1, LIMITS.steps - 1),
            recipe=Recipe.from_value(fields.raw("recipe"), fields.name("recipe")),
            data=DataSpec.from_fields(fields.fields("data")),
            state=fields.digest("state"),
        )
        fields.done()
        return change

    def to_value(self) -> dict[str, canonical.Value]:
        """The JSON object."""
        return {
            "data": self.data.to_value(),
            "recipe": self.recipe.to_value(),
            "state": self.state,
            "step": self.step,
        }


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps `start` to `stop` - 1 of a run, which begin from the state of root `state`.

    Before step `start`, `sequence` sequences of `data` were consumed; number 0 is the run's first segment.
    """

    number: int
    start: int
    stop: int
    recipe: Recipe
    data: DataSpec
    sequence: int
    state: Digest

    @property
    def cursor(self) -> Cursor:
        """Where the segment begins in its data."""
        return Cursor(self.start, self.sequence)

    def sequence_at(self, step: int) -> int:
        """The sequences of its data that are consumed before a step, or after the last one where that is `stop`."""
        return self.cursor.at(step, self.recipe.batch.sequences)


@dataclass(frozen=True, slots=True)
class Timeline:
    """All segments of a run, in order, each beginning where the one before ends."""

    segments: tuple[Segment, ...]

    @classmethod
    def of(cls, recipe: Recipe, data: DataSpec, state: Digest, changes: Sequence[Change], steps: int) -> Self:
        """The segments of a run of `steps` steps that begins with recipe, data and the state of root `state`."""
        found: list[Segment] = []
        ends = [*(change.step for change in changes), steps]
        for number, stop in enumerate(ends):
            if not number:
                found.append(Segment(0, 0, stop, recipe, data, 0, state))
                continue
            change, before = changes[number - 1], found[-1]
            # Data that stay as they are go on; others are read from their beginning, also those of an earlier segment.
            sequence = before.sequence_at(before.stop) if change.data == before.data else 0
            found.append(Segment(number, change.step, stop, change.recipe, change.data, sequence, change.state))
        return cls(tuple(found))

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.segments[-1].stop

    @property
    def entries(self) -> int:
        """Number of entries of the log: a record a step, and one for each segment but the first."""
        return self.steps + len(self.segments) - 1

    @property
    def later(self) -> tuple[Segment, ...]:
        """The segments that begin with a change: all but the first."""
        return self.segments[1:]

    def segment(self, step: int) -> Segment:
        """The segment of a step."""
        return self.segments[bisect_right(self.segments, step, key=lambda segment: segment.start) - 1]

    def left_by(self, step: int) -> Segment:
        """The segment of the step that left state `step`; of state 0, which no step left, the first one."""
        return self.segment(max(0, step - 1))

    def begun(self, step: int) -> Segment | None:
        """The segment, if there is one, that begins with a change before step `step`."""
        segment = self.segment(step)
        return segment if segment.number and segment.start == step else None

    def entry(self, step: int) -> int:
        """The place of a step's record in the log; that of a segment record is one before its first step's."""
        return step + self.segment(step).number

    def leaves_before(self, step: int) -> int:
        """How many micro-batch leaves the steps before `step` have; `step` may be the number of steps."""
        return sum(
            (min(step, segment.stop) - segment.start) * segment.recipe.batch.micro_batches
            for segment in self.segments
            if segment.start < step
        )

    def leaf_span(self, step: int) -> tuple[int, int]:
        """Offset and length, in bytes, of the leaves of one step within `leaves.bin`."""
        begin = len(LEAVES_MAGIC) + self.leaves_before(step) * LEAF_BYTES
        return begin, self.segment(step).recipe.batch.micro_batches * LEAF_BYTES


def check_changes(recipe: Recipe, data: DataSpec, changes: Sequence[Change], steps: int) -> None:
    """Every change lies within the run, changes something, and leaves tensors, vocabulary and layout as they are.

    `recipe` and `data` are those of the first segment. BadArtifact naming the item of `segments`.
    """
    if len(changes) > LIMITS.segments:
        raise BadArtifact(f"run.segments: {len(changes)} items, at most {LIMITS.segments} are allowed")
    start, before = 0, (recipe, data)
    for number, change in enumerate(changes):
        what = f"run.segments[{number}]"
        if change.step <= start:
            raise BadArtifact(f"{what}.step: {change.step} is not above {start}, where the segment before begins")
        if change.step >= steps:
            raise BadArtifact(f"{what}.step: {change.step} is beyond the last step {steps - 1} of the run")
        check_within_schedule(before[0], change.step, f"{what}.step")
        check_digest(change.state, f"{what}.state")
        DataSpec.from_fields(Fields(change.data.to_value(), f"{what}.data"))  # the same checks as for a parsed one
        check_change((recipe, data), (change.recipe, change.data), what)
        check_data(change.data, change.recipe, f"{what}.data")
        if (change.recipe, change.data) == before:
            raise BadArtifact(f"{what}: recipe and data are those of the segment before, so that nothing changes")
        start, before = change.step, (change.recipe, change.data)
    _check_ids_files([data, *(change.data for change in changes)])


def check_within_schedule(recipe: Recipe, steps: int, what: str) -> None:
    """Refuse steps beyond the total of the recipe's schedule; BadArtifact."""
    Int(1, recipe.schedule.total_steps, "steps of the schedule").check(steps, what)


def check_change(first: tuple[Recipe, DataSpec], new: tuple[Recipe, DataSpec], what: str = "segment") -> None:
    """Refuse a recipe and data whose state would not be made of the first segment's tensors and tokens.

    BadArtifact naming the field.
    """
    for section, keys in FIXED.items():
        for key in keys:
            here, there = (getattr(getattr(recipe, section), key) for recipe in (new[0], first[0]))
            if here != there:
                raise BadArtifact(
                    f"{what}.recipe.{section}.{key}: {here}, but the run began with {there}",
                    hint="tensors, initialisation and version of the numerics are those of the whole run",
                )
    data, begun = new[1], first[1]
    for name, found, right in (
        ("kind", data.kind, begun.kind),
        ("end_of_text", str(data.end_of_text), str(begun.end_of_text)),
        ("tokenizer.digest", data.tokenizer.digest, begun.tokenizer.digest),
        ("tokenizer.path", data.tokenizer.path, begun.tokenizer.path),
    ):
        if found != right:
            raise BadArtifact(
                f"{what}.data.{name}: {found}, but the run began with {right}",
                hint="one run has one tokenizer and one layout of its files",
            )


def _check_ids_files(specs: Sequence[DataSpec]) -> None:
    """One file of ids cannot hold different ones."""
    known: dict[str, tuple[int, Digest]] = {}
    for number, data in enumerate(specs):
        if data.ids is None:
            continue
        ids = (data.ids.count, data.ids.digest)
        if known.setdefault(data.ids.path, ids) != ids:
            where = f"run.segments[{number - 1}].data.ids"
            raise BadArtifact(f"{where}: {shown(data.ids.path)} holds other ids in an earlier segment")
