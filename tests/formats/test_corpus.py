"""The corpus index: where each document's text and tokens lie."""

from __future__ import annotations

import pytest

from auditkit.errors import BadArtifact
from auditkit.formats.corpus import CorpusIndex, Document, Span
from tests.formats.samples import CORPUS, digest_of

OWNERS = [0] * 4 + [1] + [2] * 12  # whose token is each of the 17


def test_sizes_and_offsets_add_up() -> None:
    assert (CORPUS.text_size, CORPUS.token_count) == (35, 17)
    assert CORPUS.text_offsets() == (0, 10, 10, 35)
    assert CORPUS.token_offsets() == (0, 4, 5, 17)


@pytest.mark.parametrize("begin", range(18))
def test_spans_name_the_owner_of_every_token(begin: int) -> None:
    starts = CORPUS.token_offsets()
    for end in range(begin, 18):
        spans = list(CORPUS.spans(begin, end))
        covered = [(s.document, starts[s.document] + i) for s in spans for i in range(s.begin, s.end)]
        assert covered == [(OWNERS[token], token) for token in range(begin, end)]
        assert all(span.begin < span.end for span in spans)


def test_a_span_that_crosses_a_document_of_one_token() -> None:
    assert list(CORPUS.spans(3, 6)) == [Span(0, 3, 4), Span(1, 0, 1), Span(2, 0, 1)]


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (0, 18), (5, 4)])
def test_tokens_outside_the_corpus_are_an_index_error(begin: int, end: int) -> None:
    with pytest.raises(IndexError):
        list(CORPUS.spans(begin, end))


def test_names_keep_their_letters() -> None:
    assert CorpusIndex.parse(CORPUS.encode()).documents[2].name == "caf\u00e9"


@pytest.mark.parametrize(
    ("name", "size", "tokens"),
    [("", 1, 1), ("a" * 201, 1, 1), ("a\n", 1, 1), ("a", -1, 1), ("a", 1, 0), ("a", True, 1)],
)
def test_a_document_made_in_code_is_checked_as_well(name: str, size: int, tokens: int) -> None:
    with pytest.raises(BadArtifact, match="^corpus: document"):
        Document(name, size, tokens, digest_of("x"))


def test_a_corpus_has_documents_of_different_names() -> None:
    with pytest.raises(BadArtifact, match="corpus: no documents"):
        CorpusIndex(())
    with pytest.raises(BadArtifact, match="listed twice"):
        CorpusIndex((CORPUS.documents[0], CORPUS.documents[0]))


def test_sums_stay_within_the_limit() -> None:
    big = tuple(Document(f"d{i}", 1 << 50, 1, digest_of("x")) for i in range(2))
    with pytest.raises(BadArtifact, match="corpus: size of all documents"):
        CorpusIndex(big)
