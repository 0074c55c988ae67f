"""The chain of all records of a run, through all of its segments, and the log that they make."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from auditkit.formats.digest import ZERO_DIGEST, Digest
from auditkit.formats.record import RecordRow, StepRecord, expand
from auditkit.formats.segment import LogEntry, SegmentRecord, data_digest
from auditkit.formats.timeline import Segment, Timeline


def chain(rows: Sequence[RecordRow], timeline: Timeline, run_id: Digest) -> list[StepRecord]:
    """The records of all steps, a row for each: the first of a later segment names the segment's record before it."""
    records: list[StepRecord] = []
    for segment in timeline.segments:
        previous = segment_record(segment, records[-1]).digest() if segment.number else ZERO_DIGEST
        records += expand(
            rows[segment.start : segment.stop],
            run_id=run_id,
            numerics=segment.recipe.numerics.version,
            micro_batches=segment.recipe.batch.micro_batches,
            state0=segment.state,
            first=segment.start,
            previous=previous,
        )
    return records


def segment_record(segment: Segment, before: StepRecord) -> SegmentRecord:
    """The record of a later segment, given the record of the last step of the one before."""
    return SegmentRecord(
        run=before.run,
        step=segment.start,
        previous=before.digest(),
        recipe=segment.recipe.digest(),
        data=data_digest(segment.data),
        sequence=segment.sequence,
        state_before=before.state_after,
        state_after=segment.state,
    )


def log_entries(records: Iterable[StepRecord], timeline: Timeline) -> Iterator[LogEntry]:
    """The entries of the log, given the records of all steps in order."""
    before: StepRecord | None = None
    for record in records:
        segment = timeline.begun(record.step)
        if segment is not None and before is not None:
            yield segment_record(segment, before)
        yield record
        before = record
