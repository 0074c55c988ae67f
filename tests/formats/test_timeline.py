"""Segments of a run: where their steps lie in data, leaves and log, and what may change between them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact
from auditkit.formats.digest import ZERO_DIGEST
from auditkit.formats.leaves import LEAF_BYTES, MAGIC
from auditkit.formats.recipe import Recipe
from auditkit.formats.run import DataSpec, RunManifest
from auditkit.formats.timeline import FIXED, Change, Timeline, check_change, check_changes
from auditkit.model.params import parameter_table
from tests.formats import strategies
from tests.formats.samples import DATA, RECIPE, RUN, digest_of
from tests.formats.segmented import CHANGES, LOWER, MORE, SHORT, TIMELINE
from tests.formats.segmented import RUN as SEGMENTED

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "formats.md").read_text(encoding="utf-8")
LONG = dataclasses.replace(RECIPE, schedule=dataclasses.replace(RECIPE.schedule, total_steps=1000))


def changed(recipe: Recipe, section: str, **values: Any) -> Recipe:
    """A recipe with other values in one section."""
    return dataclasses.replace(recipe, **{section: dataclasses.replace(getattr(recipe, section), **values)})


def fields_of(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """(section, key) of every field."""
    for section in dataclasses.fields(recipe):
        yield from ((section.name, key.name) for key in dataclasses.fields(getattr(recipe, section.name)))


def test_a_run_without_changes_is_one_segment() -> None:
    timeline = RUN.timeline()
    assert len(timeline.segments) == 1
    assert (timeline.steps, timeline.entries, timeline.later) == (3, 3, ())
    assert [timeline.entry(step) for step in range(3)] == [0, 1, 2]
    assert all(timeline.begun(step) is None for step in range(3))
    assert timeline.segments[0].state == RUN.states[0].root
    assert RUN.steps == RUN.log.size


def test_segments_know_their_steps_entries_and_leaves() -> None:
    assert [(s.number, s.start, s.stop) for s in TIMELINE.segments] == [(0, 0, 1), (1, 1, 2), (2, 2, 3)]
    assert SEGMENTED.timeline() == TIMELINE
    assert (TIMELINE.steps, TIMELINE.entries, SEGMENTED.log.size) == (3, 5, 5)
    assert [TIMELINE.entry(step) for step in range(3)] == [0, 2, 4]
    assert [TIMELINE.segment(step).recipe for step in range(4)] == [RECIPE, LOWER, SHORT, SHORT]
    assert [TIMELINE.left_by(step).recipe for step in range(4)] == [RECIPE, RECIPE, LOWER, SHORT]
    assert TIMELINE.begun(0) is None
    assert TIMELINE.begun(1) is TIMELINE.segments[1]
    assert [TIMELINE.leaves_before(step) for step in range(4)] == [0, 2, 5, 8]
    assert TIMELINE.leaf_span(2) == (len(MAGIC) + 5 * LEAF_BYTES, 3 * LEAF_BYTES)


def test_the_cursor_goes_on_in_unchanged_data_and_begins_anew_in_others() -> None:
    """Three sequences a step at first, then five, then other data, then the first ones again."""
    more = changed(LONG, "batch", sequences=5)
    other = dataclasses.replace(DATA, seed=4)
    states = [digest_of(f"state {n}") for n in range(4)]
    changes = [Change(4, more, DATA, states[1]), Change(6, more, other, states[2]), Change(7, LONG, DATA, states[3])]
    timeline = Timeline.of(LONG, DATA, states[0], changes, 10)
    found = [timeline.segment(step).sequence_at(step) for step in range(10)]
    assert found == [0, 3, 6, 9, 12, 17, 0, 0, 3, 6]
    assert [segment.sequence_at(segment.stop) for segment in timeline.segments] == [12, 22, 5, 9]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.data())
def test_leaves_and_entries_are_counted_as_one_by_one(lengths: list[int], data: st.DataObject) -> None:
    parts = [data.draw(st.integers(1, 3)) for _ in lengths]
    recipes = [changed(LONG, "batch", sequences=3, micro_batch_sequences=-(-3 // p)) for p in parts]
    starts = [sum(lengths[:n]) for n in range(len(lengths))]
    changes = [Change(start, r, DATA, ZERO_DIGEST) for start, r in zip(starts[1:], recipes[1:], strict=True)]
    timeline = Timeline.of(recipes[0], DATA, ZERO_DIGEST, changes, sum(lengths))
    leaves = entries = 0
    for number, length in enumerate(lengths):
        entries += number > 0
        for _ in range(length):
            step = entries - number
            assert (timeline.segment(step).number, timeline.entry(step)) == (number, entries)
            assert timeline.leaves_before(step) == leaves
            leaves += recipes[number].batch.micro_batches
            entries += 1
    assert (timeline.entries, timeline.leaves_before(timeline.steps)) == (entries, leaves)


@given(strategies.recipes(), strategies.recipes())
def test_recipes_that_may_follow_each_other_have_the_same_tensors(recipe: Recipe, other: Recipe) -> None:
    sections = {
        section: dataclasses.replace(
            getattr(other, section), **{key: getattr(getattr(recipe, section), key) for key in keys}
        )
        for section, keys in FIXED.items()
        if section != "model"
    }
    model = dataclasses.replace(
        recipe.model,
        context_length=other.model.context_length,
        sliding_window=other.model.sliding_window,
        rope_theta=other.model.rope_theta,
        norm_eps=other.model.norm_eps,
    )
    new = dataclasses.replace(other, model=model, **sections)
    check_change((recipe, DATA), (new, DATA))
    small = dataclasses.replace(recipe.model, num_layers=1), dataclasses.replace(new.model, num_layers=1)
    assert parameter_table(small[0]) == parameter_table(small[1])


@pytest.mark.parametrize(("section", "key"), list(fields_of(RECIPE)))
def test_the_page_decides_of_every_field_of_a_recipe(section: str, key: str) -> None:
    """A field that is new must be decided as well."""
    table = PAGE.split("**What may change.**")[1].split("**The segment record**")[0]
    rows = re.findall(r"^\| (`.*`) \| (yes|no) \|", table, re.MULTILINE)
    said = {}
    for names, answer in rows:
        first, *rest = re.findall(r"`([a-z0-9_.]+)`", names)
        prefix = first.partition(".")[0]
        said |= {name: answer for name in (first, *(prefix + name if name[0] == "." else name for name in rest))}
    assert said[f"{section}.{key}"] == ("no" if key in FIXED.get(section, ()) else "yes")


def test_a_fixed_field_is_one_of_a_recipe() -> None:
    assert {(section, key) for section, keys in FIXED.items() for key in keys} <= set(fields_of(RECIPE))


def test_changes_made_in_code_are_checked_as_well() -> None:
    def made(*changes: Change) -> RunManifest:
        return dataclasses.replace(SEGMENTED, changes=changes)

    first, second = CHANGES
    with pytest.raises(BadArtifact, match=r"run\.segments\[0\]\.step: 0 is not above 0, where"):
        made(dataclasses.replace(first, step=0), second)
    with pytest.raises(BadArtifact, match=r"run\.segments\[1\]\.state: not a digest"):
        made(first, dataclasses.replace(second, state="x"))
    with pytest.raises(BadArtifact, match=r"run\.segments\[1\]\.data\.corpus\.license"):
        made(first, dataclasses.replace(second, data=dataclasses.replace(MORE, corpus=_without_license(MORE))))
    with pytest.raises(BadArtifact, match=r"run\.segments: 1025 items, at most 1024 are allowed"):
        check_changes(RECIPE, DATA, [first] * 1025, 5000)


def _without_license(data: DataSpec) -> Any:
    return dataclasses.replace(data.corpus, license="")


def test_a_change_leaves_the_run_its_name() -> None:
    assert SEGMENTED.run_id() == RUN.run_id()
    assert SEGMENTED.digest() != RUN.digest()
