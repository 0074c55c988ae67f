"""The corpus index of declared sources: sums, names of files, and whether it fits the manifest."""

from __future__ import annotations

import dataclasses

import pytest

from auditkit.errors import BadArtifact
from auditkit.formats.shards import ShardedCorpus, SourceShards, shard_paths
from tests.formats.sources import DATA, SHARDS


def test_tokens_and_offsets() -> None:
    web, books = SHARDS.sources
    assert (web.tokens, books.tokens) == (48, 30)
    assert web.token_offsets() == [0, 18, 48]


def test_names_of_files_follow_from_source_and_number() -> None:
    assert shard_paths("corpus", "web", 12) == ("corpus/web/00012.zst", "corpus/web/00012.idx")


def test_it_fits_its_manifest() -> None:
    SHARDS.check_fits(DATA)


@pytest.mark.parametrize(
    ("sources", "words"),
    [
        (SHARDS.sources[:1], 'source missing, where the manifest has "books"'),
        ((*SHARDS.sources, SHARDS.sources[0]), 'source "web", where the manifest has missing'),
        (SHARDS.sources[::-1], 'source "books", where the manifest has "web"'),
        ((SourceShards("web", SHARDS.sources[0].shards[:1]), SHARDS.sources[1]), "has 18 tokens, the manifest says 48"),
    ],
)
def test_other_sources_are_refused(sources: tuple[SourceShards, ...], words: str) -> None:
    with pytest.raises(BadArtifact, match=words):
        ShardedCorpus(sources).check_fits(DATA)


def test_a_corpus_made_in_code_is_checked_as_well() -> None:
    with pytest.raises(BadArtifact, match="corpus: no sources"):
        ShardedCorpus(())
    with pytest.raises(BadArtifact, match='source "web" has no shards'):
        SourceShards("web", ())
    with pytest.raises(BadArtifact, match="corpus: tokens of a shard"):
        dataclasses.replace(SHARDS.sources[0].shards[0], tokens=0)
