"""The corpus index of data with declared sources: the shards of each, in the order in which their ids are joined.

A shard is a file of zstd blocks (formats/blocks.py) of bounded size, and beside it an index of them; both have names
that follow from source and number, so that nothing here depends on how well a library compresses.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats import canonical
from auditkit.formats.canonical import shown
from auditkit.formats.data_spec import DataSpec
from auditkit.formats.digest import Digest, check_digest
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from auditkit.formats.paths import check_segment
from auditkit.formats.schema import Int

FORMAT = "auditkit/corpus/v2"

_COUNT = Int(1, LIMITS.file_bytes, "")
_BLOCKS = Int(1, LIMITS.shard_blocks, "blocks")


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard: its shard root, how many blocks, documents and ids, and `size` bytes of blocks before compression."""

    digest: Digest
    blocks: int
    documents: int
    size: int
    tokens: int

    def __post_init__(self) -> None:
        check_digest(self.digest, "corpus: shard digest")
        _BLOCKS.check(self.blocks, "corpus: blocks of a shard")
        for name in ("documents", "size", "tokens"):
            _COUNT.check(getattr(self, name), f"corpus: {name} of a shard")

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """The shard of a JSON object; BadArtifact naming the field."""
        shard = cls(
            digest=fields.digest("digest"),
            blocks=fields.integer("blocks", 1, LIMITS.shard_blocks, "blocks"),
            documents=fields.integer("documents", 1, LIMITS.file_bytes, "documents"),
            size=fields.integer("size", 1, LIMITS.file_bytes, "bytes"),
            tokens=fields.integer("tokens", 1, LIMITS.file_bytes, "tokens"),
        )
        fields.done()
        return shard

    def to_value(self) -> dict[str, canonical.Value]:
        """The JSON object."""
        return {name: getattr(self, name) for name in ("blocks", "digest", "documents", "size", "tokens")}


@dataclass(frozen=True, slots=True)
class SourceShards:
    """The shards of one source, in order."""

    name: str
    shards: tuple[Shard, ...]

    def __post_init__(self) -> None:
        check_segment(self.name, "corpus: source name")
        if not self.shards:
            raise BadArtifact(f"corpus: source {shown(self.name)} has no shards")

    @property
    def tokens(self) -> int:
        """Ids of all documents."""
        return sum(shard.tokens for shard in self.shards)

    def token_offsets(self) -> list[int]:
        """Where the ids of each shard begin, and where the last ones end: one more than shards."""
        return list(itertools.accumulate((shard.tokens for shard in self.shards), initial=0))


@dataclass(frozen=True, slots=True)
class ShardedCorpus:
    """All sources in the order of the manifest."""

    sources: tuple[SourceShards, ...]

    def __post_init__(self) -> None:
        if not self.sources:
            raise BadArtifact("corpus: no sources")
        count = sum(len(source.shards) for source in self.sources)
        if count > LIMITS.corpus_shards:
            raise BadArtifact(f"corpus: {count} shards, at most {LIMITS.corpus_shards} are allowed")

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The index of canonical JSON; BadArtifact naming the field."""
        fields = Fields(canonical.loads(data, what="corpus", limit=LIMITS.corpus_index_bytes), "corpus")
        fields.format(FORMAT)
        sources = []
        for row in fields.rows("sources", 1, LIMITS.sources):
            shards = tuple(map(Shard.from_fields, row.rows("shards", 1, LIMITS.corpus_shards)))
            sources.append(SourceShards(check_segment(row.raw("name"), row.name("name")), shards))
            row.done()
        fields.done()
        return cls(tuple(sources))

    def encode(self) -> bytes:
        """Canonical JSON."""
        sources = [{"name": s.name, "shards": [shard.to_value() for shard in s.shards]} for s in self.sources]
        return canonical.dumps({"format": FORMAT, "sources": sources}, what="corpus")

    def check_fits(self, data: DataSpec) -> None:
        """The sources are those of the manifest, with as many ids; BadArtifact naming the first that is not."""
        _check_names([source.name for source in self.sources], [source.name for source in data.sources])
        for found, declared in zip(self.sources, data.sources, strict=True):
            if found.tokens != declared.tokens:
                raise BadArtifact(
                    f"corpus: source {shown(found.name)} has {found.tokens} tokens, the manifest says {declared.tokens}"
                )


def shard_paths(folder: str, source: str, number: int) -> tuple[str, str]:
    """The path of a shard and that of its index, below the folder of the corpus."""
    return f"{folder}/{source}/{number:05d}.zst", f"{folder}/{source}/{number:05d}.idx"


def _check_names(found: Sequence[str], declared: Sequence[str]) -> None:
    for name, other in itertools.zip_longest(found, declared):
        if name != other:
            raise BadArtifact(f"corpus: source {_named(name)}, where the manifest has {_named(other)}")


def _named(name: str | None) -> str:
    return "missing" if name is None else shown(name)
