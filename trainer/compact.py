"""The compact layout of a run: records without what can be derived, and the ids instead of a stored token stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from auditkit.errors import BadArtifact, UsageError
from auditkit.formats import zstd
from auditkit.formats.compact import CompactRecords, CompactRow
from auditkit.formats.leaves import LeavesFile, span
from auditkit.formats.limits import LIMITS
from auditkit.formats.recipe import Recipe
from auditkit.formats.record import RecordRow
from auditkit.formats.run import LEAVES, WINDOWS, DataSpec, Ids
from auditkit.formats.stream import batch_digest, token_bytes
from auditkit.numerics.cross_entropy import mean_losses
from auditkit.numerics.schedule import learning_rates
from auditkit.replay.windows import Windows
from trainer.disk import read_bytes
from trainer.prepared import Prepared, open_ids
from trainer.work import Work

IDS = "ids.bin.zst"
_LEVEL = 19  # of zstd: compressed once and downloaded often


def data_spec(prepared: Prepared) -> DataSpec:
    """The data section of a compact run: windows of ids, which its digest names, and no stream."""
    return replace(prepared.data, kind=WINDOWS, ids=Ids(prepared.tokens, prepared.ids, IDS))


def encode_ids(work: Work, prepared: Prepared) -> bytes:
    """The ids as one zstd file; raises `BadArtifact` if they have changed, `UsageError` if they are too many."""
    size = prepared.tokens * token_bytes(prepared.data.dtype)
    if size > LIMITS.ids_bytes:
        most = f"{size} bytes of ids, a compact run has at most {LIMITS.ids_bytes}"
        raise UsageError(most, hint="publish without --compact: then a verifier reads the tokens of its steps only")
    return zstd.compress(open_ids(work, prepared), level=_LEVEL)


def encode_records(work: Work, recipe: Recipe, rows: Sequence[RecordRow], batches: Windows) -> bytes:
    """The compact records of the steps of `rows`, from which a verifier derives exactly these rows.

    Raises `BadArtifact` naming step and field where another value would be derived.
    """
    count = recipe.batch.micro_batches
    end = sum(span(len(rows) - 1, count))
    leaves = LeavesFile.parse(read_bytes(work.folder / LEAVES)[:end], micro_batches=count).steps
    steps = (
        CompactRow(row.state_after, row.gradient, row.norm, parts) for row, parts in zip(rows, leaves, strict=True)
    )
    compact = CompactRecords(count, tuple(steps))
    losses = mean_losses([row.loss_sum for row in compact.steps], recipe.batch.sequences * recipe.model.context_length)
    derived = compact.rows(
        batches=[batch_digest(tokens) for tokens in batches.batches(len(rows))],
        losses=losses.view(np.uint32).tolist(),
        rates=learning_rates(recipe.schedule, 0, len(rows)).view(np.uint32).tolist(),
    )
    for step, (row, other) in enumerate(zip(rows, derived, strict=True)):
        if row != other:
            wrong = next(field.name for field in fields(row) if getattr(row, field.name) != getattr(other, field.name))
            raise BadArtifact(f"record {step}: its {wrong} does not follow from leaves, ids and recipe")
    return compact.encode()
