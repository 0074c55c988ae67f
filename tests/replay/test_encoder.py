"""Text to ids: cut texts have the ids of whole ones, and texts are only cut where that holds."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from auditkit.errors import BadArtifact, Incomplete
from auditkit.replay import encoder
from auditkit.replay.encoder import TextEncoder, pieces
from tests.fuzz import seeds
from tests.replay.make_run import corpus_texts
from trainer import bpe

TEXTS = [text.decode() for text in corpus_texts().values()]
MADE = bpe.train(TEXTS, 300)
WHOLE: Any = Tokenizer.from_buffer(MADE)
WHOLE.encode_special_tokens = True

# What the expression treats apart: contractions, digits, marks, every kind of white space, other scripts.
ATOMS = [
    "'s", "'re", "'", "a", "B", "é", "я", "猫", "字。", "1", "٣", "!", "...", "_", "<|endoftext|>", "\x00", "😀",
    "\u0301", " ", "  ", "\n", "\r\n", "\t", "\x0b", "\x1c", "\x1f", "\x85", "\xa0", "\u1680", "\u180e", "\u2003",
    "\u2028", "\u3000", "\u200b", "\ufeff", " ab", " 12", " ,",
]  # fmt: skip


@settings(max_examples=300)
@given(st.lists(st.sampled_from(ATOMS), max_size=40).map("".join), st.integers(1, 9))
def test_the_ids_of_the_pieces_are_those_of_the_whole(text: str, size: int) -> None:
    parts = pieces(text, size)
    assert "".join(parts) == text
    found = [number for part in parts for number in WHOLE.encode(part, add_special_tokens=False).ids]
    assert found == WHOLE.encode(text, add_special_tokens=False).ids


def test_pieces_are_about_as_long_as_asked_for() -> None:
    parts = pieces("word " * 1000, 100)
    assert all(100 <= len(part) <= 105 for part in parts[:-1])
    assert all(part.startswith(" word") for part in parts[1:])
    assert pieces("x" * 1000, 100) == ["x" * 1000]
    assert pieces("", 5) == [""]


def test_long_texts_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "PIECE", 50)
    seen: list[int] = []
    monkeypatch.setattr(encoder, "pieces", lambda text: seen.append(len(text)) or pieces(text, 50))
    found = list(TextEncoder(MADE).ids(TEXTS))
    assert len(seen) == len(TEXTS)
    for text, ids in zip(TEXTS, found, strict=True):
        assert ids.dtype == np.int64
        assert ids.tolist() == WHOLE.encode(text, add_special_tokens=False).ids


def changed(**fields: Any) -> bytes:
    """The tokenizer with other top-level fields."""
    return json.dumps(json.loads(MADE) | fields).encode()


@pytest.mark.parametrize(
    "fields",
    [
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}},
        {"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\s*[\\r\\n]+|."}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}},
        {"added_tokens": [{"id": 0, "content": "a b", "single_word": False, "lstrip": False, "rstrip": False,
                           "normalized": False, "special": False}]},
    ],
)  # fmt: skip
def test_texts_are_not_cut_where_something_else_looks_at_them(fields: dict[str, Any], monkeypatch: Any) -> None:
    made = TextEncoder(changed(**fields))
    monkeypatch.setattr(encoder, "pieces", lambda text: pytest.fail("cut"))
    assert len(next(made.ids(["a b a b"])))


def test_special_tokens_in_a_text_are_text() -> None:
    (ids,) = TextEncoder(MADE).ids(["a<|endoftext|>b"])
    assert 0 not in ids.tolist()


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"null", b"\xff", b'{"version":"1.0"}'])
def test_a_broken_file_is_refused(data: bytes) -> None:
    with pytest.raises(BadArtifact, match="^tokenizer.json: "):
        TextEncoder(data)


def test_without_the_library_it_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(Incomplete, match="not installed"):
        TextEncoder(MADE)


def test_a_file_that_makes_the_library_panic_is_refused_without_its_backtrace(
    capfd: pytest.CaptureFixture[str],
) -> None:
    value = json.loads(seeds.tokenizer())
    value["model"]["continuing_subword_prefix"] = "a" * 300
    with pytest.raises(BadArtifact, match="panics"):
        TextEncoder(json.dumps(value).encode())
    assert capfd.readouterr() == ("", "")


def test_a_file_with_which_a_text_cannot_be_encoded_is_refused() -> None:
    value = json.loads(seeds.tokenizer())
    value["model"]["unk_token"] = "no such token"
    del value["model"]["vocab"]["W"]
    with pytest.raises(BadArtifact, match="refuses"):
        next(TextEncoder(json.dumps(value).encode()).ids(["We the people"]))


def test_what_the_library_says_of_a_file_cannot_steer_a_terminal() -> None:
    value = json.loads(seeds.tokenizer())
    value["version"] = "\u202e\u001b[2J" + "x" * 5000
    with pytest.raises(BadArtifact) as caught:
        TextEncoder(json.dumps(value).encode())
    assert caught.value.message.isascii() and caught.value.message.isprintable()
    assert len(caught.value.message) < 300
