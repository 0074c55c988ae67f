"""Samples of a run with segments: the three steps of samples.py, of which each but the first begins one."""

from __future__ import annotations

import dataclasses

import numpy as np

from auditkit.formats import compact, run
from auditkit.formats.chain import chain, log_entries
from auditkit.formats.digest import content_digest
from auditkit.formats.leaves import MAGIC, MicroBatchLeaf, micro_root
from auditkit.formats.record import RecordFile, log_root
from auditkit.formats.segment import SegmentRecord
from auditkit.formats.stream import FrameRow, StreamIndex, batch_digest
from auditkit.formats.timeline import Change, Timeline
from tests.formats import samples
from tests.formats.samples import DATA, RECIPE, STEPS, WINDOWS_DATA, digest_of

# Another learning rate and another number of micro-batches, then other data, of shorter sequences.
LOWER = dataclasses.replace(
    RECIPE,
    schedule=dataclasses.replace(RECIPE.schedule, peak_lr=5e-4, total_steps=20),
    batch=dataclasses.replace(RECIPE.batch, micro_batch_sequences=1),
)
SHORT = dataclasses.replace(LOWER, model=dataclasses.replace(LOWER.model, context_length=4))
MORE = dataclasses.replace(
    DATA,
    context_length=4,
    corpus=run.Corpus(digest_of("more"), "MIT", "more/corpus.json", "more/corpus.txt.zst", "Others"),
    seed=9,
    windows=5,
)
CHANGES = (Change(1, LOWER, DATA, digest_of("state 1 again")), Change(2, SHORT, MORE, digest_of("state 2 again")))
LEAVES = tuple(
    tuple(MicroBatchLeaf((step + 1) << 32, digest_of(f"leaf {step} {i}")) for i in range(parts))
    for step, parts in enumerate((2, 3, 3))
)
LEAVES_BIN = MAGIC + b"".join(leaf.encode() for step in LEAVES for leaf in step)
BATCHES = (*samples.BATCHES[:2], np.arange(15, dtype=np.uint16).reshape(3, 5))
STREAM = StreamIndex(
    tuple(FrameRow(40 * i, 40, batch.nbytes, content_digest(batch)) for i, batch in enumerate(BATCHES))
)
RECORDS = RecordFile(
    tuple(
        dataclasses.replace(row, micro_root=micro_root(leaves), batch=batch_digest(batch))
        for row, leaves, batch in zip(samples.RECORDS.rows, LEAVES, BATCHES, strict=True)
    )
)
TIMELINE = Timeline.of(RECIPE, DATA, digest_of("state 0"), CHANGES, STEPS)
CHAIN = chain(RECORDS.rows, TIMELINE, samples.RUN_ID)
ENTRIES = tuple(log_entries(CHAIN, TIMELINE))
SEGMENT = ENTRIES[3]
assert isinstance(SEGMENT, SegmentRecord)


def _artifacts(listed: tuple[run.Artifact, ...], changed: dict[str, bytes], *more: run.Artifact) -> list[run.Artifact]:
    """The files of samples.py with other ones among them."""
    kept = [artifact for artifact in listed if artifact.path not in changed]
    made = [run.Artifact(path, len(data), content_digest(data)) for path, data in changed.items()]
    more = (*more, run.Artifact("more/corpus.json", 200, MORE.corpus.digest))
    return [*kept, *made, *more, run.Artifact("more/corpus.txt.zst", 30, digest_of("more text"))]


def _sorted(artifacts: list[run.Artifact]) -> tuple[run.Artifact, ...]:
    return tuple(sorted(artifacts, key=lambda artifact: artifact.path))


RUN = dataclasses.replace(
    samples.RUN,
    log=run.Log(len(ENTRIES), log_root(ENTRIES)),
    artifacts=_sorted(
        _artifacts(
            samples.RUN.artifacts,
            {"leaves.bin": LEAVES_BIN, "records.bin": RECORDS.encode(), "stream.idx": STREAM.encode()},
        )
    ),
    changes=CHANGES,
)

# The same in the other layout: ids of both corpora, and rows of 148 bytes, then of 188.
MORE_IDS = np.arange(23, dtype=np.uint16)
WINDOWS_MORE = dataclasses.replace(
    MORE, kind="windows", ids=run.Ids(23, content_digest(MORE_IDS), "more/ids.bin.zst")
)  # 22 // 4 are 5 windows
WINDOWS_CHANGES = (
    dataclasses.replace(CHANGES[0], data=WINDOWS_DATA),
    dataclasses.replace(CHANGES[1], data=WINDOWS_MORE),
)
COMPACT = tuple(
    compact.CompactRecords(
        len(leaves[0]),
        tuple(
            compact.CompactRow(row.state_after, row.gradient, row.norm, parts)
            for row, parts in zip(rows, leaves, strict=True)
        ),
    )
    for rows, leaves in ((RECORDS.rows[:1], LEAVES[:1]), (RECORDS.rows[1:], LEAVES[1:]))
)
COMPACT_BIN = compact.encode_all(COMPACT)
WINDOWS_RUN = dataclasses.replace(
    samples.WINDOWS_RUN,
    log=dataclasses.replace(samples.WINDOWS_RUN.log, size=5),
    artifacts=_sorted(
        _artifacts(
            samples.WINDOWS_RUN.artifacts,
            {"records.bin": COMPACT_BIN},
            run.Artifact("more/ids.bin.zst", 60, digest_of("more ids")),
        )
    ),
    changes=WINDOWS_CHANGES,
)
