"""The documents behind a step where the text of the corpus lies in blocks: only those that the step needs are read.

What is not read is not checked: the numbers of ids of the documents before say where a window begins. They are
committed to, and each is derived when a step that touches its document is. The tokens of the step itself are those of
committed documents in any case.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from auditkit.errors import BadArtifact
from auditkit.formats.blocks import Block, BlockDocument, BlockIndex, BlockRow, decode_block
from auditkit.formats.canonical import shown
from auditkit.formats.shards import ShardedCorpus, shard_paths
from auditkit.formats.timeline import Segment
from auditkit.replay.derive import Derived, compare_windows, copy_ids, encoder_of, same_count
from auditkit.replay.drawn import order_of
from auditkit.replay.run import Run
from auditkit.replay.sources import Passage, Sequence
from auditkit.store.progress import Progress

_INDEXES = 64  # of shards, kept parsed: a shard of 512 blocks takes about 0.1 MB


@dataclass(frozen=True, order=True)
class _Place:
    """One block: its source, its shard, its number there; `begin` is its first token among those of the source."""

    source: int
    shard: int
    block: int
    begin: int
    row: BlockRow = field(compare=False)


@dataclass(frozen=True)
class _Found:
    """A document in a block that is needed: its text, its first token, and the rows of the batch that reach into it."""

    document: BlockDocument
    text: bytes
    begin: int
    rows: tuple[int, ...]


class BlockCorpus:
    """The corpus of a segment's data with declared sources."""

    def __init__(self, run: Run, segment: Segment) -> None:
        """Reads the corpus index. BadArtifact: it does not fit the manifest; Unavailable."""
        self._run, self._segment = run, segment
        self._data = segment.data
        self._corpus = ShardedCorpus.parse(run.read(self._data.corpus.path))
        self._corpus.check_fits(self._data)
        self._offsets = [source.token_offsets() for source in self._corpus.sources]
        self._index = lru_cache(_INDEXES)(self._read_index)

    def sequences(self, step: int) -> tuple[Sequence, ...]:
        """Where each sequence of a step's batch comes from, with the documents that its blocks name."""
        bare = self._drawn(step)
        passages: list[list[Passage]] = [[] for _ in bare]
        for found in self._documents(bare):
            for row in found.rows:
                begin, end = self._within(bare[row], found)
                passages[row].append(Passage(found.document.name, begin, end))
        return tuple(replace(sequence, passages=tuple(p)) for sequence, p in zip(bare, passages, strict=True))

    def derive(self, step: int, sources: tuple[Sequence, ...], progress: Progress) -> Derived:
        """Tokenise the documents behind a step again and compare with its published tokens.

        Incomplete: the tokenizers library is not installed. BadArtifact: a block is not the one committed to.
        MismatchError: another number of tokens in a document, or other tokens, with the first differing index.
        """
        encoder = encoder_of(self._run)
        published = self._run.tokens(step)
        windows = np.full((len(sources), self._data.context_length + 1), -1, np.int64)
        documents = tokens = 0
        progress.start("tokenise", sum(place.row.raw_length for place in self._needed(sources)), "bytes")
        try:
            for found in self._documents(sources, progress):
                ids = np.append(next(encoder.ids([_decoded(found)])), self._data.end_of_text)
                same_count(found.document.name, found.document.tokens, ids.size, encoder.library)
                for row in found.rows:
                    copy_ids(windows[row], ids, found.begin - sources[row].begin)
                documents += 1
                tokens += ids.size
        finally:
            progress.finish()
        compare_windows(published, windows, sources, encoder.library)
        return Derived(encoder.library, documents, tokens)

    def _drawn(self, step: int) -> tuple[Sequence, ...]:
        """The sequences of a step, without what is behind them."""
        width, first = self._data.context_length, self._segment.sequence_at(step)
        drawn = order_of(self._data).drawn(first, self._segment.sequence_at(step + 1))
        rows = zip(drawn.source.tolist(), drawn.epoch.tolist(), drawn.window.tolist(), strict=True)
        return tuple(
            Sequence(first + number, epoch, window, window * width, (), self._data.sources[source].name)
            for number, (source, epoch, window) in enumerate(rows)
        )

    def _needed(self, sequences: tuple[Sequence, ...]) -> dict[_Place, list[int]]:
        """The blocks that some sequences reach into, in the order of the corpus, each with the rows that do."""
        numbers = {source.name: number for number, source in enumerate(self._data.sources)}
        found: dict[_Place, list[int]] = {}
        for row, sequence in enumerate(sequences):
            end = sequence.begin + self._data.context_length + 1
            for place in self._places(numbers[sequence.source], sequence.begin, end):
                found.setdefault(place, []).append(row)
        return dict(sorted(found.items()))

    def _places(self, source: int, begin: int, end: int) -> Iterator[_Place]:
        """The blocks that hold tokens begin to end - 1 of a source."""
        shards = self._offsets[source]
        shard = bisect.bisect_right(shards, begin) - 1
        while shard + 1 < len(shards) and shards[shard] < end:
            index = self._index(source, shard)
            offsets = index.token_offsets()
            block = max(0, bisect.bisect_right(offsets, begin - shards[shard]) - 1)
            while block + 1 < len(offsets) and shards[shard] + offsets[block] < end:
                yield _Place(source, shard, block, shards[shard] + offsets[block], index.rows[block])
                block += 1
            shard += 1

    def _documents(self, sequences: tuple[Sequence, ...], progress: Progress | None = None) -> Iterator[_Found]:
        """The documents that some sequences reach into, in order; one block is in memory at a time."""
        for place, rows in self._needed(sequences).items():
            begin = place.begin
            for document, text in self._block(place).texts():
                end = begin + document.tokens
                reached = (r for r in rows if sequences[r].begin < end and begin < self._end(sequences[r]))
                touching = tuple(reached)
                if touching:
                    yield _Found(document, text, begin, touching)
                begin = end
            if progress is not None:
                progress.advance(place.row.raw_length)

    def _end(self, sequence: Sequence) -> int:
        return sequence.begin + self._data.context_length + 1

    def _within(self, sequence: Sequence, found: _Found) -> tuple[int, int]:
        """The part of a document that a sequence holds, counted from the document's first token."""
        begin, end = sequence.begin - found.begin, self._end(sequence) - found.begin
        return max(0, begin), min(found.document.tokens, end)

    def _block(self, place: _Place) -> Block:
        """One block, by a byte range. BadArtifact: not the one of the index, wherever it is served; Unavailable."""
        row = place.row
        path, _ = self._paths(place.source, place.shard)

        def decode(data: bytes) -> Block:
            try:
                return decode_block(data, row)
            except BadArtifact as error:
                raise BadArtifact(f"{path}, block {place.block}: {error.message}", hint=error.hint) from error

        return decode(self._run.range(path, row.offset, row.length, decode))

    def _read_index(self, source: int, shard: int) -> BlockIndex:
        """The index of a shard. BadArtifact: not the one that the corpus index commits to, or of another file."""
        text, path = self._paths(source, shard)
        index = BlockIndex.parse(self._run.read(path))
        if index.shard() != self._corpus.sources[source].shards[shard]:
            raise BadArtifact(f"{path}: not the shard that {self._data.corpus.path} names")
        if index.text_bytes != self._run.manifest.artifact(text).size:
            size = self._run.manifest.artifact(text).size
            raise BadArtifact(f"{path} describes {index.text_bytes} bytes, {text} has {size}")
        return index

    def _paths(self, source: int, shard: int) -> tuple[str, str]:
        return shard_paths(self._data.corpus.text, self._corpus.sources[source].name, shard)


def _decoded(found: _Found) -> str:
    try:
        return found.text.decode("utf-8")
    except UnicodeDecodeError as error:
        name = shown(found.document.name)
        raise BadArtifact(f"document {name} is not UTF-8 at byte {error.start}") from error
