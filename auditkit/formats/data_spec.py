"""The data section of the run manifest: which corpus, which tokenizer, which windows, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats import canonical, stream
from auditkit.formats.canonical import shown
from auditkit.formats.digest import Digest
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from auditkit.formats.paths import check_segment
from auditkit.formats.recipe import Recipe

FRAMES, WINDOWS = "frames", "windows"  # kinds of data: a stored token stream, or ids that its windows are cut from
FEISTEL = "feistel"  # the order of data with declared sources (SPEC.md section 6.8.1)

_MOST_WINDOWS = 1 << 40


@dataclass(frozen=True, slots=True)
class Corpus:
    """The corpus: index file and its digest, licence and title, and its text.

    `text` is a file; with declared sources a folder, in which the shards of each source lie.
    """

    digest: Digest
    license: str
    path: str
    text: str
    title: str


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """The tokenizer file and its digest; with declared sources also which library made the ids, and the file.

    It was trained on one document in `one_in` of the corpus (SPEC.md section 6.8.3); 0: it was taken as it is.
    """

    digest: Digest
    path: str
    library: str = ""
    one_in: int = 0


@dataclass(frozen=True, slots=True)
class Ids:
    """All token ids of the corpus: how many, BLAKE3 of their little-endian bytes, and their file (zstd)."""

    count: int
    digest: Digest
    path: str


@dataclass(frozen=True, slots=True)
class Source:
    """One source of a corpus: `tokens` ids of all its documents, drawn from by `weight`, at most `epochs` times.

    `epochs` 0 is no limit.
    """

    name: str
    title: str
    license: str
    tokens: int
    weight: int
    epochs: int

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """The source of a JSON object; BadArtifact naming the field."""
        source = cls(
            name=check_segment(fields.raw("name"), fields.name("name")),
            title=fields.text("title"),
            license=fields.text("license"),
            tokens=fields.integer("tokens", 2, LIMITS.file_bytes, "tokens"),
            weight=fields.integer("weight", 1, LIMITS.source_weights),
            epochs=fields.integer("epochs", 0, _MOST_WINDOWS),
        )
        fields.done()
        return source

    def to_value(self) -> dict[str, canonical.Value]:
        """The JSON object."""
        return {name: getattr(self, name) for name in ("epochs", "license", "name", "title", "tokens", "weight")}


@dataclass(frozen=True, slots=True)
class DataSpec:
    """What the stream is made of: `windows` windows of context_length+1 tokens, shuffled by `seed` in each epoch.

    With kind "frames" the stream is published, with kind "windows" the `ids` are, and every batch is cut from them.
    Without `sources` the corpus is one, in the sorted order of SPEC.md section 6.8; with them `windows` counts those of
    all, and sequences are drawn from them by weight (6.8.2), from each in its own order (6.8.1).
    """

    context_length: int
    corpus: Corpus
    dtype: str
    end_of_text: int
    kind: str
    seed: int
    tokenizer: Tokenizer
    windows: int
    ids: Ids | None = None
    sources: tuple[Source, ...] = ()

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """The data section of a JSON object; BadArtifact naming the field."""
        corpus = fields.fields("corpus")
        kind = fields.choice("kind", FRAMES, WINDOWS)
        mixed = fields.has("sources")
        if mixed:
            fields.choice("order", FEISTEL)
        data = cls(
            context_length=fields.integer("context_length", 1, 1 << 20, "tokens"),
            corpus=Corpus(
                digest=corpus.digest("digest"),
                license=corpus.text("license"),
                path=corpus.path("path"),
                text=corpus.path("text"),
                title=corpus.text("title"),
            ),
            dtype=fields.choice("dtype", *stream.TOKEN_DTYPES),
            end_of_text=fields.integer("end_of_text", 0, (1 << 20) - 1),
            kind=kind,
            seed=fields.integer("seed"),
            tokenizer=_tokenizer(fields.fields("tokenizer"), mixed),
            windows=fields.integer("windows", 1, _MOST_WINDOWS),
            ids=_ids(fields.fields("ids")) if kind == WINDOWS else None,
            sources=tuple(map(Source.from_fields, fields.rows("sources", 1, LIMITS.sources))) if mixed else (),
        )
        corpus.done()
        fields.done()
        _check_sources(data, fields.what)
        return data

    def to_value(self) -> dict[str, canonical.Value]:
        """The JSON object."""
        corpus, ids = self.corpus, self.ids
        more: dict[str, canonical.Value] = {}
        if ids is not None:
            more["ids"] = {"count": ids.count, "digest": ids.digest, "path": ids.path}
        if self.sources:
            more |= {"order": FEISTEL, "sources": [source.to_value() for source in self.sources]}
        return {
            **more,
            "context_length": self.context_length,
            "corpus": {
                "digest": corpus.digest,
                "license": corpus.license,
                "path": corpus.path,
                "text": corpus.text,
                "title": corpus.title,
            },
            "dtype": self.dtype,
            "end_of_text": self.end_of_text,
            "kind": self.kind,
            "seed": self.seed,
            "tokenizer": _tokenizer_value(self.tokenizer, bool(self.sources)),
            "windows": self.windows,
        }

    def windows_of(self, source: Source) -> int:
        """Windows of one source: each begins where the one before has its last target."""
        return (source.tokens - 1) // self.context_length


def check_data(data: DataSpec, recipe: Recipe, what: str = "run.data") -> None:
    """Data and recipe must fit each other: context length, token dtype, end-of-text id; and the windows the ids."""
    model = recipe.model
    if data.context_length != model.context_length:
        raise BadArtifact(f"{what}.context_length: {data.context_length}, but the recipe says {model.context_length}")
    if data.dtype != stream.dtype_for(model.vocab_size):
        raise BadArtifact(
            f"{what}.dtype: {data.dtype}, but a vocabulary of {model.vocab_size}"
            f" is stored as {stream.dtype_for(model.vocab_size)}"
        )
    if data.end_of_text >= model.vocab_size:
        raise BadArtifact(f"{what}.end_of_text: {data.end_of_text} is outside a vocabulary of {model.vocab_size}")
    if data.ids is not None:
        _check_ids(data, data.ids, what)


def _tokenizer(fields: Fields, mixed: bool) -> Tokenizer:
    tokenizer = Tokenizer(digest=fields.digest("digest"), path=fields.path("path"))
    if mixed:
        one_in = fields.integer("one_in", 0, LIMITS.sampled_documents)
        tokenizer = Tokenizer(tokenizer.digest, tokenizer.path, fields.text("library"), one_in)
    fields.done()
    return tokenizer


def _tokenizer_value(tokenizer: Tokenizer, mixed: bool) -> dict[str, canonical.Value]:
    more: dict[str, canonical.Value] = {"library": tokenizer.library, "one_in": tokenizer.one_in} if mixed else {}
    return {"digest": tokenizer.digest, "path": tokenizer.path, **more}


def _ids(fields: Fields) -> Ids:
    ids = Ids(fields.integer("count", 2, LIMITS.ids_bytes, "ids"), fields.digest("digest"), fields.path("path"))
    fields.done()
    return ids


def _check_ids(data: DataSpec, ids: Ids, what: str) -> None:
    size = ids.count * stream.token_bytes(data.dtype)
    if size > LIMITS.ids_bytes:
        raise BadArtifact(f"{what}.ids.count: {size} bytes of ids, at most {LIMITS.ids_bytes} are allowed")
    if data.sources:
        tokens = sum(source.tokens for source in data.sources)
        if tokens != ids.count:
            raise BadArtifact(f"{what}.ids.count: {ids.count}, but the sources have {tokens} tokens")
        return
    windows = (ids.count - 1) // data.context_length
    if data.windows != windows:
        raise BadArtifact(f"{what}.windows: {data.windows}, but {ids.count} ids make {windows}")


def _check_sources(data: DataSpec, where: str) -> None:
    """Names differ where case is ignored, each source has a window, and weights and windows add up."""
    if not data.sources:
        return
    names: dict[str, str] = {}
    for source in data.sources:
        what = f"{where}.sources: {shown(source.name)}"
        if source.name.lower() in names:
            raise BadArtifact(f"{what} and {shown(names[source.name.lower()])} are one name where case is ignored")
        names[source.name.lower()] = source.name
        if not data.windows_of(source):
            raise BadArtifact(f"{what}: {source.tokens} tokens, a window needs {data.context_length + 1}")
        if data.windows_of(source) > _MOST_WINDOWS:
            raise BadArtifact(f"{what}: {data.windows_of(source)} windows, at most {_MOST_WINDOWS} are allowed")
    weights = sum(source.weight for source in data.sources)
    if weights > LIMITS.source_weights:
        raise BadArtifact(f"{where}.sources: weights sum to {weights}, at most {LIMITS.source_weights} are allowed")
    windows = sum(map(data.windows_of, data.sources))
    if data.windows != windows:
        raise BadArtifact(f"{where}.windows: {data.windows}, but the sources have {windows}")
