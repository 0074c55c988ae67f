"""What `publish` checks once more before it writes: a disk may have failed, or a hand slipped, since the training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
import zstandard
from numpy.typing import NDArray

from auditkit.errors import BadArtifact
from auditkit.formats.corpus import CorpusIndex, Document
from auditkit.formats.digest import Digest, Hasher
from auditkit.formats.leaves import MicroBatchLeaf, micro_root
from auditkit.formats.limits import LIMITS
from auditkit.formats.recipe import Recipe
from auditkit.formats.record import RecordRow
from auditkit.formats.run import LEAVES, RECORDS, STREAM, STREAM_INDEX
from auditkit.formats.shards import ShardedCorpus
from auditkit.formats.skips import rates
from auditkit.formats.stream import MAGIC as INDEX_MAGIC
from auditkit.formats.stream import ROW_BYTES, FrameRow, StreamIndex, batch_digest, decode_frame
from auditkit.formats.timeline import Segment
from auditkit.model.state import document, initial_state
from auditkit.numerics.cross_entropy import mean_losses
from auditkit.numerics.schedule import learning_rates
from trainer.data.shard_files import check_shards, shard_files
from trainer.disk import read_bytes
from trainer.prepared import Prepared
from trainer.progress import progress
from trainer.segments import Course, check_begun
from trainer.states import StoredState
from trainer.witness import read_leaves
from trainer.work import CORPUS, TEXT, TOKENIZER, Work

_CHUNK = 1 << 20


def corpus_files(work: Work, prepared: Prepared) -> list[str]:
    """The paths of corpus index, text and tokenizer, relative to the work folder."""
    if not prepared.data.sources:
        return [CORPUS, TEXT, TOKENIZER]
    return [CORPUS, *shard_files(ShardedCorpus.parse(read_bytes(work.corpus))), TOKENIZER]


def check_text(work: Work, prepared: Prepared) -> None:
    """The compressed text is what the index names, byte for byte; raises `BadArtifact` naming document or block."""
    if prepared.data.sources:
        check_shards(work.folder, ShardedCorpus.parse(read_bytes(work.corpus)))
        return
    corpus = CorpusIndex.parse(read_bytes(work.corpus))
    decompressor = zstandard.ZstdDecompressor(max_window_size=LIMITS.zstd_window_bytes)
    try:
        with work.text.open("rb") as file, decompressor.stream_reader(file, read_across_frames=True) as reader:
            for entry in corpus.documents:
                _check_document(entry, reader, work)
            if reader.read(1):
                raise BadArtifact(f"{work.text}: holds more than the documents of the index")
    except zstandard.ZstdError as error:
        raise BadArtifact(f"{work.text}: {str(error).lower()}") from error


def _check_document(entry: Document, reader: zstandard.ZstdDecompressionReader, work: Work) -> None:
    hasher = Hasher()
    while hasher.size < entry.size and (chunk := reader.read(min(_CHUNK, entry.size - hasher.size))):
        hasher.update(chunk)
    if (hasher.size, hasher.hexdigest()) != (entry.size, entry.digest):
        raise BadArtifact(f"{work.text}: document {entry.name!r} is not the one that corpus.json names")


def check_steps(course: Course, rows: Sequence[RecordRow]) -> None:
    """Each record fits leaves, recipe and tokens, and those follow from the corpus; raises `BadArtifact`."""
    folder = course.work.folder
    parts = read_leaves(folder, len(rows), course.timeline.leaves_before)
    index = StreamIndex.parse(read_bytes(folder / STREAM_INDEX)[: len(INDEX_MAGIC) + len(rows) * ROW_BYTES])
    with (folder / STREAM).open("rb") as file, progress("checking steps", len(rows)) as report:
        for segment in course.timeline.segments:
            first, stop = segment.start, segment.stop
            numbers = _derived(segment, rows[first:stop], parts[first:stop])
            batches = course.batches(segment)
            for step, (loss, rate) in zip(range(first, stop), numbers, strict=True):
                row = rows[step]
                if micro_root(parts[step]) != row.micro_root:
                    raise BadArtifact(f"{LEAVES}: the leaves of step {step} are not those of its record")
                if row.loss != loss:
                    raise BadArtifact(f"{RECORDS}: record {step}: its loss does not follow from its leaves")
                if row.lr != rate:
                    raise BadArtifact(f"{RECORDS}: record {step}: its lr does not follow from the recipe's schedule")
                _check_tokens(file, index.rows[step], batches.tokens(step), step, row)
                report(step + 1, "")


def _derived(
    segment: Segment, rows: Sequence[RecordRow], parts: Sequence[Sequence[MicroBatchLeaf]]
) -> Iterator[tuple[int, int]]:
    """Loss and learning rate of each step of a segment, as bit patterns."""
    recipe = segment.recipe
    targets = recipe.batch.sequences * recipe.model.context_length
    losses = mean_losses([sum(leaf.loss_sum for leaf in leaves) for leaves in parts], targets).view(np.uint32)
    scheduled = learning_rates(recipe.schedule, segment.start, segment.stop).view(np.uint32).tolist()
    return zip(losses.tolist(), rates(recipe, rows, scheduled), strict=True)


def _check_tokens(file: BinaryIO, place: FrameRow, expected: NDArray[Any], step: int, row: RecordRow) -> None:
    """The next frame of the stream holds `expected` (sequences, context_length + 1), as the record says."""
    dtype = f"U{8 * expected.dtype.itemsize}"
    tokens = decode_frame(file.read(place.length), place.raw_length, dtype, expected.shape, digest=place.digest)
    if not np.array_equal(tokens, expected):
        raise BadArtifact(f"{STREAM}: the tokens of step {step} do not follow from the corpus")
    if batch_digest(expected) != row.batch:
        raise BadArtifact(f"{RECORDS}: record {step}: its batch digest is not that of the step's tokens")


def check_states(course: Course, rows: Sequence[RecordRow], steps: Sequence[int]) -> dict[int, Digest]:
    """Each state is whole, of its recipe, and the one its record leads to; returns the roots by step.

    Also those from which a segment begins, whose tensors are read only if they are among `steps`.
    """
    roots: dict[int, Digest] = {}
    begun = [segment.start for segment in course.timeline.later]
    with progress("checking states", len(steps)) as report:
        for step in sorted({*steps, *begun}):
            stored = StoredState.open(course.work.state(step))
            if step in steps:
                for _ in stored.tensors():  # reading checks every byte
                    pass
            course.check_state(stored, step)
            expected = rows[step - 1].state_after if step else _first_root(course.stages[0].recipe)
            if stored.document.root() != expected:
                raise BadArtifact(f"{stored.folder}: state root {stored.document.root()}, expected {expected}")
            check_begun(course, stored)
            if step in steps:
                roots[step] = expected
                report(len(roots), f"step {step}")
    return roots


def _first_root(recipe: Recipe) -> Digest:
    return document(initial_state(recipe), recipe).root()
