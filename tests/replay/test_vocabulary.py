"""Ids to bytes, against the tokenizers library where it is the judge."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from auditkit.errors import AuditkitError, BadArtifact, Unsupported
from auditkit.replay.vocabulary import Vocabulary, byte_letters

TEXT = "Whereas recognition of the dignity - na\u00efve \u65e5\u672c\u8a9e \U0001f600 and of\r\n\t\x00 all members"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>"], initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([TEXT] * 5, trainer)
    return made


def test_letters_are_those_of_the_library() -> None:
    assert set(byte_letters()) == set(pre_tokenizers.ByteLevel.alphabet())
    assert len(set(byte_letters())) == 256
    assert (byte_letters()[ord(" ")], byte_letters()[ord("\n")], byte_letters()[0xAD]) == ("\u0120", "\u010a", "\u0143")


def test_decoding_gives_the_text_back(tokenizer: Tokenizer) -> None:
    vocabulary = Vocabulary.parse(tokenizer.to_str().encode())
    assert vocabulary.decode(tokenizer.encode(TEXT).ids) == TEXT.encode()


def test_special_tokens_show_their_name(tokenizer: Tokenizer) -> None:
    vocabulary = Vocabulary.parse(tokenizer.to_str().encode())
    number = tokenizer.token_to_id("<|end|>")
    assert vocabulary.special == {number: "<|end|>"}
    assert vocabulary.decode([number]) == b"<|end|>"


def test_unknown_ids_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(BadArtifact, match="no token 300"):
        Vocabulary.parse(tokenizer.to_str().encode()).decode([300])


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"", BadArtifact),
        (b"\xff", BadArtifact),
        (b"[]", BadArtifact),
        (b"[" * 100_000, BadArtifact),
        (b'{"model": 3}', BadArtifact),
        (b'{"model": {"type": "Unigram"}}', Unsupported),
        (b'{"model": {"type": "BPE", "vocab": {}}}', Unsupported),
        (json.dumps({"model": {"vocab": {"a": "1"}}, "decoder": {"type": "ByteLevel"}}).encode(), BadArtifact),
        (json.dumps({"model": {"vocab": {"a": 1, "b": 1}}, "decoder": {"type": "ByteLevel"}}).encode(), BadArtifact),
        (json.dumps({"model": {"vocab": {"\u65e5": 1}}, "decoder": {"type": "ByteLevel"}}).encode(), BadArtifact),
        (
            json.dumps({"model": {"vocab": {}}, "added_tokens": [{}], "decoder": {"type": "ByteLevel"}}).encode(),
            BadArtifact,
        ),
    ],
)
def test_bad_files_are_named(data: bytes, error: type[AuditkitError]) -> None:
    with pytest.raises(error, match=r"tokenizer\.json"):
        Vocabulary.parse(data)
