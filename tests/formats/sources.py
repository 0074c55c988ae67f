"""Samples of data with declared sources: a block, a block index, a corpus index, and manifests of both kinds."""

from __future__ import annotations

import dataclasses

from auditkit.formats import run
from auditkit.formats.blocks import Block, BlockDocument, BlockIndex, BlockRow
from auditkit.formats.data_spec import Source
from auditkit.formats.digest import content_digest
from auditkit.formats.shards import ShardedCorpus, SourceShards, shard_paths
from tests.formats import samples
from tests.formats.samples import digest_of

BLOCK = Block(
    (BlockDocument("web/a.jsonl.zst:1", 5, 3), BlockDocument("web/a.jsonl.zst:2", 0, 1), BlockDocument("b.txt", 7, 5)),
    "hello, café".encode(),
)
RAW = BLOCK.encode()

# The lengths of frames are made up, so that the vectors do not depend on a version of zstd.
BLOCKS = BlockIndex(
    (BlockRow(0, 90, len(RAW), 3, BLOCK.tokens, content_digest(RAW)), BlockRow(90, 40, 300, 2, 9, digest_of("block 1")))
)
SECOND = BlockIndex((BlockRow(0, 70, 200, 1, 30, digest_of("block 2")),))

SHARDS = ShardedCorpus(
    (SourceShards("web", (BLOCKS.shard(), SECOND.shard())), SourceShards("books", (SECOND.shard(),)))
)

DATA = dataclasses.replace(
    samples.DATA,
    corpus=run.Corpus(content_digest(SHARDS.encode()), "CC0-1.0 AND MIT", "corpus.json", "corpus", "Two sources"),
    sources=(
        Source("web", "Pages", "CC0-1.0", 48, 3, 0),
        Source("books", "Books", "MIT", 30, 1, 4),
    ),
    tokenizer=dataclasses.replace(samples.DATA.tokenizer, library="tokenizers 0.21.0", one_in=1),
    windows=8,  # 5 and 3, of 8 tokens
)
WINDOWS_DATA = dataclasses.replace(DATA, kind="windows", ids=run.Ids(78, digest_of("ids"), "ids.bin.zst"))


def shard_artifacts() -> list[run.Artifact]:
    """The files of all shards."""
    found = []
    for source, indexes in (("web", (BLOCKS, SECOND)), ("books", (SECOND,))):
        for number, index in enumerate(indexes):
            text, beside = shard_paths("corpus", source, number)
            found.append(run.Artifact(text, index.text_bytes, digest_of(text)))
            found.append(run.Artifact(beside, len(index.encode()), content_digest(index.encode())))
    return found


def _artifacts(listed: tuple[run.Artifact, ...]) -> tuple[run.Artifact, ...]:
    """The files of a run of one corpus with those of the shards in place of its text."""
    corpus = run.Artifact("corpus.json", len(SHARDS.encode()), DATA.corpus.digest)
    kept = [artifact for artifact in listed if not artifact.path.startswith("corpus")]
    return tuple(sorted([*kept, corpus, *shard_artifacts()], key=lambda artifact: artifact.path))


RUN = dataclasses.replace(samples.RUN, data=DATA, artifacts=_artifacts(samples.RUN.artifacts))
WINDOWS_RUN = dataclasses.replace(
    samples.WINDOWS_RUN, data=WINDOWS_DATA, artifacts=_artifacts(samples.WINDOWS_RUN.artifacts)
)
