"""The compact layout of a run: records without what can be derived, and the ids instead of a stored token stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from auditkit.errors import BadArtifact, UsageError
from auditkit.formats import zstd
from auditkit.formats.compact import CompactRecords, CompactRow, encode_all
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.limits import LIMITS
from auditkit.formats.record import RecordRow
from auditkit.formats.run import WINDOWS, DataSpec, Ids
from auditkit.formats.skips import rates
from auditkit.formats.stream import batch_digest, token_bytes
from auditkit.formats.timeline import Segment
from auditkit.numerics.cross_entropy import mean_losses
from auditkit.numerics.schedule import learning_rates
from auditkit.replay.windows import Windows
from trainer.prepared import Prepared, open_ids
from trainer.segments import Course
from trainer.witness import read_leaves
from trainer.work import Work

IDS = "ids.bin.zst"
_LEVEL = 19  # of zstd: compressed once and downloaded often


def data_spec(prepared: Prepared, home: str = "") -> DataSpec:
    """The data section of a compact run: windows of ids, which its digest names, and no stream.

    `home` is the folder of data that a later segment has brought.
    """
    path = f"{home}/{IDS}" if home else IDS
    return replace(prepared.data, kind=WINDOWS, ids=Ids(prepared.tokens, prepared.ids, path))


def encode_ids(work: Work, prepared: Prepared) -> bytes:
    """The ids as one zstd file; raises `BadArtifact` if they have changed, `UsageError` if they are too many."""
    size = prepared.tokens * token_bytes(prepared.data.dtype)
    if size > LIMITS.ids_bytes:
        most = f"{size} bytes of ids, a compact run has at most {LIMITS.ids_bytes}"
        raise UsageError(most, hint="publish without --compact: then a verifier reads the tokens of its steps only")
    return zstd.compress(open_ids(work, prepared), level=_LEVEL)


def encode_records(course: Course, rows: Sequence[RecordRow]) -> bytes:
    """The compact records of the steps of `rows`, from which a verifier derives exactly these rows.

    Raises `BadArtifact` naming step and field where another value would be derived.
    """
    leaves = read_leaves(course.work.folder, len(rows), course.timeline.leaves_before)
    parts = []
    for segment in course.timeline.segments:
        own = slice(segment.start, segment.stop)
        parts.append(derivable(segment, course.batches(segment), segment.start, rows[own], leaves[own]))
    return encode_all(parts)


def derivable(
    segment: Segment,
    batches: Windows,
    first: int,
    rows: Sequence[RecordRow],
    leaves: Sequence[tuple[MicroBatchLeaf, ...]],
) -> CompactRecords:
    """The compact records of consecutive steps of one segment, the first of which is `first`.

    Raises `BadArtifact` naming step and field where a verifier would derive another value.
    """
    recipe, steps = segment.recipe, range(first, first + len(rows))
    own = (CompactRow(row.state_after, row.gradient, row.norm, parts) for row, parts in zip(rows, leaves, strict=True))
    compact = CompactRecords(recipe.batch.micro_batches, tuple(own))
    scheduled = learning_rates(recipe.schedule, first, steps.stop).view(np.uint32).tolist()
    losses = mean_losses([row.loss_sum for row in compact.steps], recipe.batch.sequences * recipe.model.context_length)
    derived = compact.rows(
        batches=[batch_digest(tokens) for tokens in batches.batches(steps.stop, first)],
        losses=losses.view(np.uint32).tolist(),
        rates=rates(recipe, compact.steps, scheduled),
    )
    for step, row, other in zip(steps, rows, derived, strict=True):
        if row != other:
            wrong = next(field.name for field in fields(row) if getattr(row, field.name) != getattr(other, field.name))
            raise BadArtifact(f"record {step}: its {wrong} does not follow from leaves, ids and recipe")
    return compact
