"""The corpus index: the documents behind the token stream, in order, with their sizes in bytes and in tokens."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats import canonical
from auditkit.formats.canonical import shown
from auditkit.formats.digest import Digest, check_digest
from auditkit.formats.fields import Fields, check_text
from auditkit.formats.limits import LIMITS
from auditkit.formats.schema import Int

FORMAT = "auditkit/corpus/v1"

_SIZE = Int(0, LIMITS.file_bytes, "bytes")
_TOKENS = Int(1, LIMITS.file_bytes, "tokens")


@dataclass(frozen=True, slots=True)
class Document:
    """One document: `size` bytes of UTF-8 text with BLAKE3 `digest`, `tokens` ids with the final end-of-text."""

    name: str
    size: int
    tokens: int
    digest: Digest

    def __post_init__(self) -> None:
        what = f"corpus: document {shown(check_text(self.name, 'corpus: document name'))}"
        _SIZE.check(self.size, f"{what}: size")
        _TOKENS.check(self.tokens, f"{what}: tokens")
        check_digest(self.digest, f"{what}: digest")


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens begin..end of document number `document`, counted from that document's first token."""

    document: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class CorpusIndex:
    """All documents in the order in which their tokens are joined; their text lies back to back in one zstd file."""

    documents: tuple[Document, ...]

    def __post_init__(self) -> None:
        if not self.documents:
            raise BadArtifact("corpus: no documents")
        seen: set[str] = set()
        for document in self.documents:
            if document.name in seen:
                raise BadArtifact(f"corpus: document {shown(document.name)} is listed twice")
            seen.add(document.name)
        _SIZE.check(self.text_size, "corpus: size of all documents")
        _TOKENS.check(self.token_count, "corpus: tokens of all documents")

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The index of canonical JSON; BadArtifact naming the field."""
        fields = Fields(canonical.loads(data, what="corpus", limit=LIMITS.corpus_index_bytes), "corpus")
        fields.format(FORMAT)
        documents = []
        for row in fields.rows("documents", 1, LIMITS.documents):
            documents.append(Document(row.raw("name"), row.raw("size"), row.raw("tokens"), row.raw("digest")))
            row.done()
        fields.done()
        return cls(tuple(documents))

    def encode(self) -> bytes:
        """Canonical JSON."""
        documents = [{"digest": d.digest, "name": d.name, "size": d.size, "tokens": d.tokens} for d in self.documents]
        return canonical.dumps({"documents": documents, "format": FORMAT}, what="corpus")

    @property
    def text_size(self) -> int:
        """Bytes of the text of all documents."""
        return sum(document.size for document in self.documents)

    @property
    def token_count(self) -> int:
        """Tokens of all documents, end-of-text ids included."""
        return sum(document.tokens for document in self.documents)

    def text_offsets(self) -> tuple[int, ...]:
        """Where the text of each document starts, in bytes, and where the last one ends: one more than documents."""
        return tuple(itertools.accumulate((document.size for document in self.documents), initial=0))

    def token_offsets(self) -> tuple[int, ...]:
        """Where the tokens of each document start, and where the last ones end: one more than documents."""
        return tuple(itertools.accumulate((document.tokens for document in self.documents), initial=0))

    def spans(self, begin: int, end: int) -> Iterator[Span]:
        """The documents, and the part of each, that hold tokens begin..end of the joined ids; IndexError outside."""
        offsets = self.token_offsets()
        if not 0 <= begin <= end <= offsets[-1]:
            raise IndexError(f"tokens {begin} to {end} of {offsets[-1]}")
        document = bisect.bisect_right(offsets, begin) - 1
        while begin < end:
            stop = min(end, offsets[document + 1])
            yield Span(document, begin - offsets[document], stop - offsets[document])
            begin = stop
            document += 1
