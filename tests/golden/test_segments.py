"""The golden run of four segments: made again byte for byte, and what the formats say of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from auditkit.formats.fields import Fields
from auditkit.formats.run import Change, DataSpec, run_id
from auditkit.formats.segment import SegmentRecord, data_digest
from auditkit.formats.timeline import Timeline, check_changes
from auditkit.replay.windows import Windows
from tests.golden import make_segments
from tests.golden.make_segments import FIRST, NAME, SEGMENTS, STEPS
from tests.same_bits import assert_same_bits

GOLDEN: dict[str, Any] = json.loads(make_segments.FILE.read_text(encoding="ascii"))


def test_the_generator_makes_the_committed_bytes() -> None:
    assert make_segments.encode() == make_segments.FILE.read_bytes()


def timeline(kind: str) -> Timeline:
    """The run's segments, as its manifest would say them."""
    specs = [DataSpec.from_fields(Fields(data.value(kind), "data")) for _, _, data, _ in SEGMENTS]
    changes = [
        Change(start, recipe, spec, GOLDEN["begun"][str(start)])
        for (start, recipe, _, _), spec in zip(SEGMENTS[1:], specs[1:], strict=True)
    ]
    check_changes(FIRST, specs[0], changes, STEPS)
    return Timeline.of(FIRST, specs[0], GOLDEN["states"]["0"], changes, STEPS)


@pytest.mark.parametrize("kind", ["frames", "windows"])
def test_names_and_places(kind: str) -> None:
    made = timeline(kind)
    assert run_id(NAME, FIRST, made.segments[0].data) == GOLDEN["runs"][kind]["run_id"]
    assert made.entries == GOLDEN["runs"][kind]["log_size"] == STEPS + 3
    assert [segment.sequence for segment in made.segments] == [0, 12, 0, 0]


def test_the_segment_records_are_those_of_the_formats() -> None:
    made = timeline("frames")
    for text, segment in zip(GOLDEN["segments"], made.later, strict=True):
        record = SegmentRecord.parse(text.encode("ascii"))
        assert (record.step, record.recipe, record.sequence) == (
            segment.start,
            segment.recipe.digest(),
            segment.sequence,
        )
        assert record.data == data_digest(segment.data)
        assert record.state_before == GOLDEN["states"][str(segment.start)]
        assert record.state_after == GOLDEN["begun"][str(segment.start)]


def test_the_batches_are_those_of_the_windows() -> None:
    for (start, recipe, data, _), segment in zip(SEGMENTS, timeline("frames").segments, strict=True):
        windows = Windows.of(segment.data, data.ids, recipe.batch.sequences, segment.cursor)
        for step in range(start, segment.stop):
            expected = make_segments.batch(data, segment.sequence_at(step), recipe.batch.sequences)
            assert_same_bits(windows.tokens(step), expected)
