"""What `publish` checks once more before it writes: a disk may have failed, or a hand slipped, since the training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import zstandard

from auditkit.errors import BadArtifact
from auditkit.formats.corpus import CorpusIndex, Document
from auditkit.formats.digest import Digest, Hasher
from auditkit.formats.leaves import micro_root
from auditkit.formats.limits import LIMITS
from auditkit.formats.recipe import Recipe
from auditkit.formats.record import RecordRow
from auditkit.formats.run import LEAVES, RECORDS, STREAM, STREAM_INDEX
from auditkit.formats.shards import ShardedCorpus
from auditkit.formats.stream import MAGIC as INDEX_MAGIC
from auditkit.formats.stream import ROW_BYTES, StreamIndex, batch_digest, decode_frame
from auditkit.model.state import document, initial_state
from auditkit.numerics.cross_entropy import mean_losses
from auditkit.numerics.schedule import learning_rates
from auditkit.replay.windows import Windows
from trainer.data.shard_files import check_shards, shard_files
from trainer.disk import read_bytes
from trainer.prepared import Prepared
from trainer.progress import progress
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


def check_steps(work: Work, recipe: Recipe, rows: Sequence[RecordRow], batches: Windows) -> None:
    """Each record fits leaves, recipe and tokens, and those follow from the corpus; raises `BadArtifact`."""
    parts = read_leaves(work.folder, len(rows), recipe.batch.micro_batches)
    targets = recipe.batch.sequences * recipe.model.context_length
    losses = mean_losses([sum(leaf.loss_sum for leaf in leaves) for leaves in parts], targets).view(np.uint32).tolist()
    rates = learning_rates(recipe.schedule, 0, len(rows)).view(np.uint32).tolist()
    index = StreamIndex.parse(read_bytes(work.folder / STREAM_INDEX)[: len(INDEX_MAGIC) + len(rows) * ROW_BYTES])
    with (work.folder / STREAM).open("rb") as file, progress("checking steps", len(rows)) as report:
        for step, (row, leaves, place) in enumerate(zip(rows, parts, index.rows, strict=True)):
            if micro_root(leaves) != row.micro_root:
                raise BadArtifact(f"{LEAVES}: the leaves of step {step} are not those of its record")
            if row.loss != losses[step]:
                raise BadArtifact(f"{RECORDS}: record {step}: its loss does not follow from its leaves")
            if row.lr != rates[step]:
                raise BadArtifact(f"{RECORDS}: record {step}: its lr does not follow from the recipe's schedule")
            expected = batches.tokens(step)  # (sequences, context_length + 1)
            dtype = f"U{8 * expected.dtype.itemsize}"
            tokens = decode_frame(file.read(place.length), place.raw_length, dtype, expected.shape, digest=place.digest)
            if not np.array_equal(tokens, expected):
                raise BadArtifact(f"{STREAM}: the tokens of step {step} do not follow from the corpus")
            if batch_digest(expected) != row.batch:
                raise BadArtifact(f"{RECORDS}: record {step}: its batch digest is not that of the step's tokens")
            report(step + 1, "")


def check_states(work: Work, recipe: Recipe, rows: Sequence[RecordRow], steps: Sequence[int]) -> dict[int, Digest]:
    """Each state is whole, of this recipe, and the one its record leads to; returns the roots by step."""
    roots: dict[int, Digest] = {}
    with progress("checking states", len(steps)) as report:
        for done, step in enumerate(steps, start=1):
            stored = StoredState.open(work.state(step))
            found = stored.document
            for _ in stored.tensors():  # reading checks every byte
                pass
            if (found.step, found.recipe) != (step, recipe.digest()):
                raise BadArtifact(f"{stored.folder}: a state of another step or recipe")
            expected = rows[step - 1].state_after if step else document(initial_state(recipe), recipe).root()
            if found.root() != expected:
                raise BadArtifact(f"{stored.folder}: state root {found.root()}, expected {expected}")
            roots[step] = expected
            report(done, f"step {step}")
    return roots
