"""What a run publishes of each step: rows of records, tokens and micro-batch leaves, in either layout of its files.

With data of kind "frames" records, leaves and tokens are stored; with kind "windows" only what nothing else gives, and
the rest is derived here.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from auditkit.errors import BadArtifact
from auditkit.formats.compact import CompactRecords, parse_all
from auditkit.formats.data_spec import DataSpec
from auditkit.formats.leaves import MicroBatchLeaf, micro_root, parse_leaves
from auditkit.formats.record import RecordFile, RecordRow
from auditkit.formats.run import LEAVES, RECORDS, STREAM, STREAM_INDEX
from auditkit.formats.skips import rates
from auditkit.formats.stream import StreamIndex, batch_digest, check_tokens, decode_frame, decode_ids
from auditkit.formats.timeline import Segment
from auditkit.numerics.cross_entropy import mean_losses
from auditkit.numerics.schedule import learning_rates
from auditkit.replay.windows import Windows

if TYPE_CHECKING:
    from auditkit.replay.run import Run


class Steps(Protocol):
    """One layout."""

    def rows(self) -> Sequence[RecordRow]:
        """The rows of all steps. BadArtifact: not as many as the log has."""

    def tokens(self, step: int) -> NDArray[Any]:
        """The tokens of one step, (sequences, context_length + 1), ids below the vocabulary size."""

    def leaves(self, step: int) -> tuple[MicroBatchLeaf, ...]:
        """The micro-batch leaves of one step. BadArtifact: not those under the record's root."""


class StoredSteps:
    """Data of kind "frames": a row a step, leaves beside it, and a token frame, each read when needed."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def rows(self) -> Sequence[RecordRow]:
        """See Steps."""
        rows = RecordFile.parse(self._run.read(RECORDS)).rows
        check_count(self._run, len(rows))
        return rows

    @cached_property
    def index(self) -> StreamIndex:
        """Where each step's tokens lie. BadArtifact: fewer frames than steps, or not the length of stream.bin."""
        run = self._run
        index = StreamIndex.parse(run.read(STREAM_INDEX))
        if len(index.rows) < run.size:
            raise BadArtifact(
                f"{STREAM_INDEX} holds {len(index.rows)} frames, the manifest's log has {run.size} records"
            )
        size = run.manifest.artifact(STREAM).size
        if index.total_length != size:
            raise BadArtifact(f"{STREAM_INDEX} describes {index.total_length} bytes, {STREAM} has {size}")
        return index

    def tokens(self, step: int) -> NDArray[Any]:
        """See Steps."""
        run, row, segment = self._run, self.index.rows[step], self._run.segment(step)
        shape = (segment.recipe.batch.sequences, segment.data.context_length + 1)

        def decode(data: bytes) -> NDArray[Any]:
            try:
                tokens = decode_frame(data, row.raw_length, segment.data.dtype, shape, digest=row.digest)
                check_tokens(tokens, run.recipe.model.vocab_size)
            except BadArtifact as error:
                raise BadArtifact(f"{STREAM}, frame of step {step}: {error.message}", hint=error.hint) from error
            return tokens

        return decode(run.range(STREAM, row.offset, row.length, decode))

    def leaves(self, step: int) -> tuple[MicroBatchLeaf, ...]:
        """See Steps."""
        record = self._run.record(step)

        def parse(data: bytes) -> tuple[MicroBatchLeaf, ...]:
            leaves = parse_leaves(data, record.micro_batches)
            found = micro_root(leaves)
            if found != record.micro_root:
                message = f"{LEAVES}: the leaves of step {step} have root {found}, its record says {record.micro_root}"
                raise BadArtifact(message)
            return leaves

        return parse(self._run.range(LEAVES, *self._run.timeline.leaf_span(step), parse))


class DerivedSteps:
    """Data of kind "windows": compact records and the ids, both read whole; everything else follows from them."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._ids: dict[str, NDArray[Any]] = {}  # by the path of their file
        self._windows: dict[int, Windows] = {}  # by the number of the segment

    def ids(self, data: DataSpec) -> NDArray[Any]:
        """The ids of all documents, (count,) read-only. BadArtifact: not those of the manifest, or out of range."""
        ids = data.ids
        assert ids is not None  # the kind is that of the whole run
        if ids.path not in self._ids:
            try:
                self._ids[ids.path] = decode_ids(
                    self._run.read(ids.path),
                    count=ids.count,
                    dtype=data.dtype,
                    vocab_size=self._run.recipe.model.vocab_size,
                    digest=ids.digest,
                )
            except BadArtifact as error:
                raise BadArtifact(f"{ids.path}: {error.message}", hint=error.hint) from error
        return self._ids[ids.path]

    def _windows_of(self, segment: Segment) -> Windows:
        if segment.number not in self._windows:
            sequences = segment.recipe.batch.sequences
            self._windows[segment.number] = Windows.of(segment.data, self.ids(segment.data), sequences, segment.cursor)
        return self._windows[segment.number]

    @cached_property
    def _compact(self) -> tuple[CompactRecords, ...]:
        """The rows of each segment."""
        segments = self._run.timeline.segments
        layout = [(segment.stop - segment.start, segment.recipe.batch.micro_batches) for segment in segments]
        return parse_all(self._run.read(RECORDS), layout)

    def rows(self) -> Sequence[RecordRow]:
        """See Steps."""
        segments = zip(self._run.timeline.segments, self._compact, strict=True)
        return [row for segment, compact in segments for row in self._rows(segment, compact)]

    def _rows(self, segment: Segment, compact: CompactRecords) -> Sequence[RecordRow]:
        recipe = segment.recipe
        targets = recipe.batch.sequences * recipe.model.context_length
        losses = mean_losses([row.loss_sum for row in compact.steps], targets)
        scheduled = learning_rates(recipe.schedule, segment.start, segment.stop).view(np.uint32).tolist()
        batches = self._windows_of(segment).batches(segment.stop, segment.start)
        return compact.rows(
            batches=[batch_digest(tokens) for tokens in batches],
            losses=losses.view(np.uint32).tolist(),
            rates=rates(recipe, compact.steps, scheduled),
        )

    def tokens(self, step: int) -> NDArray[Any]:
        """See Steps."""
        return self._windows_of(self._run.segment(step)).tokens(step)

    def leaves(self, step: int) -> tuple[MicroBatchLeaf, ...]:
        """See Steps; their root is the record's, which was derived from them."""
        segment = self._run.segment(step)
        return self._compact[segment.number].steps[step - segment.start].leaves


def check_count(run: Run, found: int) -> None:
    """Refuse records of another number of steps; BadArtifact."""
    if found != run.size:
        raise BadArtifact(f"{RECORDS} holds {found} records, the manifest's log has {run.size}")
