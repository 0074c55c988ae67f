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
from auditkit.formats.compact import CompactRecords
from auditkit.formats.leaves import MicroBatchLeaf, micro_root, parse_leaves, span
from auditkit.formats.record import RecordFile, RecordRow
from auditkit.formats.run import LEAVES, RECORDS, STREAM, STREAM_INDEX, Ids
from auditkit.formats.stream import StreamIndex, batch_digest, check_tokens, decode_frame, decode_ids
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
        run, row = self._run, self.index.rows[step]
        shape = (run.recipe.batch.sequences, run.manifest.data.context_length + 1)

        def decode(data: bytes) -> NDArray[Any]:
            try:
                tokens = decode_frame(data, row.raw_length, run.manifest.data.dtype, shape, digest=row.digest)
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

        return parse(self._run.range(LEAVES, *span(step, record.micro_batches), parse))


class DerivedSteps:
    """Data of kind "windows": compact records and the ids, both read whole; everything else follows from them."""

    def __init__(self, run: Run, ids: Ids) -> None:
        self._run = run
        self._ids = ids

    @cached_property
    def ids(self) -> NDArray[Any]:
        """The ids of all documents, (count,) read-only. BadArtifact: not those of the manifest, or out of range."""
        data = self._run.manifest.data
        try:
            return decode_ids(
                self._run.read(self._ids.path),
                count=self._ids.count,
                dtype=data.dtype,
                vocab_size=self._run.recipe.model.vocab_size,
                digest=self._ids.digest,
            )
        except BadArtifact as error:
            raise BadArtifact(f"{self._ids.path}: {error.message}", hint=error.hint) from error

    @cached_property
    def _windows(self) -> Windows:
        return Windows.of(self._run.manifest.data, self.ids, self._run.recipe.batch.sequences)

    @cached_property
    def _compact(self) -> CompactRecords:
        parts = self._run.recipe.batch.micro_batches
        compact = CompactRecords.parse(self._run.read(RECORDS), micro_batches=parts)
        check_count(self._run, len(compact.steps))
        return compact

    def rows(self) -> Sequence[RecordRow]:
        """See Steps."""
        recipe, steps = self._run.recipe, self._compact.steps
        losses = mean_losses([row.loss_sum for row in steps], recipe.batch.sequences * recipe.model.context_length)
        rates = learning_rates(recipe.schedule, 0, len(steps))
        return self._compact.rows(
            batches=[batch_digest(tokens) for tokens in self._windows.batches(len(steps))],
            losses=losses.view(np.uint32).tolist(),
            rates=rates.view(np.uint32).tolist(),
        )

    def tokens(self, step: int) -> NDArray[Any]:
        """See Steps."""
        return self._windows.tokens(step)

    def leaves(self, step: int) -> tuple[MicroBatchLeaf, ...]:
        """See Steps; their root is the record's, which was derived from them."""
        return self._compact.steps[step].leaves


def check_count(run: Run, found: int) -> None:
    """Refuse records of another number of steps; BadArtifact."""
    if found != run.size:
        raise BadArtifact(f"{RECORDS} holds {found} records, the manifest's log has {run.size}")
