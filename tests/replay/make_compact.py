"""The tiny run in its compact layout; as in make_run.py, a part that was changed first makes a consistent lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from auditkit.formats import zstd
from auditkit.formats.bits import f32_bits
from auditkit.formats.compact import CompactRecords, CompactRow
from auditkit.formats.digest import content_digest
from auditkit.formats.record import RecordRow
from auditkit.formats.run import DataSpec, Ids
from auditkit.formats.skips import rates
from auditkit.formats.stream import batch_digest
from auditkit.model.state import document
from auditkit.numerics.schedule import learning_rate
from tests.replay import make_run
from tests.replay.make_run import Parts

LayoutRows = list[CompactRow]


def data_spec(parts: Parts) -> DataSpec:
    """The data section with windows of ids in place of frames."""
    return replace(parts.data, kind="windows", ids=Ids(len(parts.ids), content_digest(parts.ids), "ids.bin.zst"))


def steps_of(parts: Parts) -> LayoutRows:
    """What the training alone can tell of each step."""
    return [
        CompactRow(document(after, parts.recipe).root(), result.gradient, f32_bits(float(result.norm)), result.leaves)
        for after, result in zip(parts.states[1:], parts.results, strict=True)
    ]


def batches_of(parts: Parts) -> list[np.ndarray]:
    """The batch of each step, cut from the ids one window at a time."""
    return [make_run.batch(parts.ids, parts.data, parts.recipe, number) for number in range(len(parts.results))]


def rows_of(parts: Parts, steps: Sequence[CompactRow]) -> tuple[RecordRow, ...]:
    """The full rows that a verifier must derive, by scalar arithmetic of our own."""
    targets = parts.recipe.batch.sequences * parts.recipe.model.context_length
    losses = [np.float32(sum(leaf.loss_sum for leaf in row.leaves) / (targets << 32)) for row in steps]
    return CompactRecords(parts.recipe.batch.micro_batches, tuple(steps)).rows(
        batches=[batch_digest(tokens) for tokens in batches_of(parts)],
        losses=[f32_bits(float(loss)) for loss in losses],
        rates=rates(
            parts.recipe, steps, [f32_bits(learning_rate(parts.recipe.schedule, n)) for n in range(len(steps))]
        ),
    )


def publish(parts: Parts, folder: Path, change: Callable[[LayoutRows], None] = lambda steps: None) -> Path:
    """Write a compact run folder in which everything follows from the parts and from the rows after `change`."""
    folder.mkdir(parents=True, exist_ok=True)
    steps = steps_of(parts)
    change(steps)
    files = {
        "records.bin": CompactRecords(parts.recipe.batch.micro_batches, tuple(steps)).encode(),
        "ids.bin.zst": zstd.compress(parts.ids),
        "corpus.json": parts.corpus.encode(),
        "corpus.txt.zst": zstd.compress(b"".join(parts.texts.values())),
        "tokenizer.json": parts.tokenizer,
    }
    return make_run.write(parts, folder, data_spec(parts), rows_of(parts, steps), files)
