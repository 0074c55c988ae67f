"""Shards of bounded size, written block by block, and read again to be checked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from auditkit.errors import BadArtifact
from auditkit.formats.blocks import BlockIndex, BlockRow, decode_block
from auditkit.formats.limits import LIMITS
from auditkit.formats.shards import Shard, ShardedCorpus, SourceShards, shard_paths
from trainer.disk import read_bytes, sync_file, writing
from trainer.progress import progress

CORPUS_FOLDER = "corpus"
SHARD_BYTES = 1 << 28  # of text: about 100 MB compressed


class ShardWriter:
    """Writes the shards of one source below a folder; `finish` says what they are."""

    def __init__(self, root: Path, source: str, most: int = SHARD_BYTES) -> None:
        self._root, self._source, self._most = root, source, most
        self._shards: list[Shard] = []
        self._rows: list[BlockRow] = []
        self._file: BinaryIO | None = None
        self._raw = self._packed = 0  # bytes of the shard so far

    def add(self, frame: bytes, row: BlockRow) -> None:
        """Append a block; a shard ends where the next block would make it longer than allowed."""
        if self._rows and (self._raw + row.raw_length > self._most or len(self._rows) == LIMITS.shard_blocks):
            self._end()
        if self._file is None:
            path = self._root / shard_paths(CORPUS_FOLDER, self._source, len(self._shards))[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("xb")
        self._file.write(frame)
        self._rows.append(replace(row, offset=self._packed))
        self._raw += row.raw_length
        self._packed += len(frame)

    def finish(self) -> SourceShards:
        """End the last shard; BadArtifact if nothing was written."""
        if self._rows:
            self._end()
        return SourceShards(self._source, tuple(self._shards))

    def close(self) -> None:
        """Close what an error left open."""
        if self._file is not None:
            self._file.close()

    def _end(self) -> None:
        assert self._file is not None
        with self._file as file:
            sync_file(file)
        index = BlockIndex(tuple(self._rows))
        path = self._root / shard_paths(CORPUS_FOLDER, self._source, len(self._shards))[1]
        with path.open("xb") as file:
            file.write(index.encode())
            sync_file(file)
        self._shards.append(index.shard())
        self._rows, self._file, self._raw, self._packed = [], None, 0, 0


def shard_files(corpus: ShardedCorpus) -> list[str]:
    """The paths of all shards and their indexes, relative to the work folder."""
    return [
        path
        for source in corpus.sources
        for number in range(len(source.shards))
        for path in shard_paths(CORPUS_FOLDER, source.name, number)
    ]


def check_shards(root: Path, corpus: ShardedCorpus) -> None:
    """Every block of every shard is the one committed to; raises `BadArtifact` naming file and block."""
    with progress("checking text", sum(len(source.shards) for source in corpus.sources)) as report:
        done = 0
        for source in corpus.sources:
            for number, shard in enumerate(source.shards):
                text, beside = (root / path for path in shard_paths(CORPUS_FOLDER, source.name, number))
                _check_shard(text, beside, shard)
                done += 1
                report(done, text.name)


def _check_shard(text: Path, beside: Path, shard: Shard) -> None:
    index = BlockIndex.parse(read_bytes(beside))
    if index.shard() != shard:
        raise BadArtifact(f"{beside}: not the shard that the corpus index names")
    with writing(text), text.open("rb") as file:
        for number, row in enumerate(index.rows):
            try:
                decode_block(file.read(row.length), row)
            except BadArtifact as error:
                raise BadArtifact(f"{text}, block {number}: {error.message}") from error
        if file.read(1):
            raise BadArtifact(f"{text}: holds more than its blocks")
