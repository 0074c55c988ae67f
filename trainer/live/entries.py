"""The log of a run that grows: its next entries, from the rows of the next steps alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from auditkit.formats import merkle
from auditkit.formats.chain import segment_record
from auditkit.formats.digest import ZERO_DIGEST, Digest
from auditkit.formats.record import RecordRow, StepRecord, expand
from auditkit.formats.run import Log
from auditkit.formats.segment import LogEntry
from auditkit.formats.timeline import Timeline


class GrowingLog:
    """The entries so far, of which only the right edge of their tree and the last record are kept."""

    def __init__(self, run_id: Digest) -> None:
        self.run_id = run_id
        self._frontier = merkle.Frontier()
        self._last: StepRecord | None = None

    @property
    def log(self) -> Log:
        """What the manifest says of it."""
        return Log(self._frontier.size, self._frontier.root().hex())

    @property
    def steps(self) -> int:
        """Steps whose records it has."""
        return 0 if self._last is None else self._last.step + 1

    def extend(self, timeline: Timeline, rows: Sequence[RecordRow]) -> list[bytes]:
        """Add the records of the next steps, given their rows, and of segments that begin there; returns the entries.

        `timeline` may be any that begins with the segments so far and has these steps.
        """
        found = [entry.encode() for entry in self._next(timeline, rows)]
        for entry in found:
            self._frontier.append(merkle.leaf_hash(entry))
        return found

    def _next(self, timeline: Timeline, rows: Sequence[RecordRow]) -> Iterator[LogEntry]:
        first = self.steps
        for segment in timeline.segments:
            begin, stop = max(first, segment.start), min(first + len(rows), segment.stop)
            if begin >= stop:
                continue
            previous, state = ZERO_DIGEST, segment.state
            if self._last is not None and begin > segment.start:
                previous, state = self._last.digest(), self._last.state_after
            elif self._last is not None:
                begun = segment_record(segment, self._last)
                yield begun
                previous = begun.digest()
            for record in expand(
                rows[begin - first : stop - first],
                run_id=self.run_id,
                numerics=segment.recipe.numerics.version,
                micro_batches=segment.recipe.batch.micro_batches,
                state0=state,
                first=begin,
                previous=previous,
            ):
                yield record
                self._last = record
