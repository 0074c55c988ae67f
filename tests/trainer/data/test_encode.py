"""The work of one process, by itself: documents in, their ids and their block out."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact
from auditkit.formats.blocks import decode_block
from tests.trainer.tiny import TEXTS
from trainer.bpe import END_OF_TEXT, Encoder, train
from trainer.data.batches import BLOCK_DOCUMENTS, grouped
from trainer.data.document import RawDocument
from trainer.data.encode import DocumentEncoder, Setup, pack, result, unpack

TOKENIZER = train(TEXTS, 300)
DOCUMENTS = [RawDocument(f"é:{number}", text.encode()) for number, text in enumerate(TEXTS)]


def test_a_job_comes_back() -> None:
    assert unpack(pack(DOCUMENTS)) == DOCUMENTS


@pytest.mark.parametrize("blocks", [False, True])
def test_ids_and_block_are_those_of_the_documents(blocks: bool) -> None:
    setup = Setup(TOKENIZER, END_OF_TEXT, 300, blocks)
    found = result(DocumentEncoder(setup)(pack(DOCUMENTS)), setup)
    encoder = Encoder(TOKENIZER)
    want = [encoder.encode(text, what="text") for text in TEXTS]
    assert found.counts.tolist() == [len(ids) for ids in want]
    assert found.ids.dtype == np.dtype("<u2") and found.ids.tolist() == np.concatenate(want).tolist()
    if not blocks:
        assert (found.row, found.frame) == (None, b"")
        return
    assert found.row is not None and found.row.offset == 0 and found.row.length == len(found.frame)
    block = decode_block(found.frame, found.row)
    assert [(d.name, text, d.tokens) for d, text in block.texts()] == [
        (document.name, document.data, len(ids)) for document, ids in zip(DOCUMENTS, want, strict=True)
    ]


@pytest.mark.parametrize(("size", "dtype"), [(300, "<u2"), (65536, "<u2"), (65537, "<u4"), (100277, "<u4")])
def test_ids_are_as_wide_as_the_vocabulary_needs(size: int, dtype: str) -> None:
    """Case 65."""
    setup = Setup(TOKENIZER, END_OF_TEXT, size, True)
    found = result(DocumentEncoder(setup)(pack(DOCUMENTS)), setup)
    assert found.ids.dtype == np.dtype(dtype)
    assert found.ids.max() < 300


def test_ids_beyond_the_vocabulary_are_refused() -> None:
    with pytest.raises(BadArtifact, match="outside a vocabulary of 260"):
        DocumentEncoder(Setup(TOKENIZER, END_OF_TEXT, 260, True))(pack(DOCUMENTS))


@given(st.lists(st.integers(0, 9), max_size=30), st.integers(1, 12))
def test_groups_are_full_but_never_too_full(sizes: list[int], most: int) -> None:
    documents = [RawDocument(str(number), b"x" * size) for number, size in enumerate(sizes)]
    groups = list(grouped(documents, most))
    assert [document for group in groups for document in group] == documents
    totals = [sum(len(document.data) for document in group) for group in groups]
    assert all(groups) and all(total <= most or len(group) == 1 for total, group in zip(totals, groups, strict=True))
    assert all(total + len(following[0].data) > most for total, following in zip(totals, groups[1:], strict=False))


def test_a_group_has_a_most_of_documents() -> None:
    empty = (RawDocument("", b"") for _ in range(BLOCK_DOCUMENTS + 1))
    assert [len(group) for group in grouped(empty)] == [BLOCK_DOCUMENTS, 1]
