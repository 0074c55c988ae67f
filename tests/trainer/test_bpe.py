"""Byte-level BPE: the same bytes from every training, and ids that give back every text."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact, UsageError
from tests.trainer.tiny import ROOT, SECONDS, TEXTS
from trainer.bpe import END_OF_TEXT, Encoder, train

TRAIN_IN_CHILD = """
import hashlib, sys
from tests.trainer.tiny import TEXTS
from trainer.bpe import train
print(hashlib.sha256(train(TEXTS, 300)).hexdigest())
"""


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    return Encoder(train(TEXTS, 300))


@pytest.mark.parametrize(("threads", "seed"), [("1", "0"), ("2", "1"), ("8", "random")])
def test_training_gives_the_same_file_in_every_process(threads: str, seed: str) -> None:
    environment = os.environ | {"RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": seed}
    child = subprocess.run(
        [sys.executable, "-c", TRAIN_IN_CHILD],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        check=True,
        timeout=SECONDS,
    )
    assert child.stdout.strip() == hashlib.sha256(train(TEXTS, 300)).hexdigest()


def test_the_file_has_no_normaliser_and_no_prefix_space() -> None:
    tokenizer = json.loads(train(TEXTS, 300))
    assert tokenizer["normalizer"] is None
    assert tokenizer["post_processor"] is None
    assert tokenizer["pre_tokenizer"]["type"] == "ByteLevel"
    assert tokenizer["pre_tokenizer"]["add_prefix_space"] is False
    assert [token["content"] for token in tokenizer["added_tokens"]] == [END_OF_TEXT]


@pytest.mark.parametrize("wrong", [b"", b"abc", b"abcd!", b"abce", b"Abcd"])
def test_a_lost_byte_is_noticed(encoder: Encoder, wrong: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids are compared with the text a few at a time, and at its end."""
    monkeypatch.setattr("trainer.bpe._DECODED", 2)
    ids = {byte: encoder.encode(chr(byte), what="text")[:-1] for byte in b"abcdeA!"}
    right = np.concatenate([ids[byte] for byte in b"abcd"])
    assert encoder._gives_back(right, b"abcd")
    found = np.concatenate([ids[byte] for byte in wrong]) if wrong else right[:0]
    assert not encoder._gives_back(found, b"abcd")


@given(st.text())
def test_ids_give_back_the_bytes_of_any_text(encoder: Encoder, text: str) -> None:
    text = text.encode("utf-8", "ignore").decode("utf-8")  # lone surrogates are no UTF-8
    ids = encoder.encode(text, what="text")
    assert encoder.decode(ids.tolist()) == text.encode("utf-8")
    assert 0 <= ids.min() <= ids.max() < encoder.vocab_size


@pytest.mark.parametrize(
    "text", ["\x00\x01\x7f", "a\r\nb\rc\n", "\ufeffbom", "😀👩‍👩‍👧", "e\u0301 \u00e9", " lead", "trail  ", ""]
)
def test_awkward_texts_survive(encoder: Encoder, text: str) -> None:
    assert encoder.decode(encoder.encode(text, what="text").tolist()) == text.encode("utf-8")


def test_only_the_end_of_a_document_gives_the_end_of_text_id(encoder: Encoder) -> None:
    ids = encoder.encode(f"a{END_OF_TEXT}b", what="text").tolist()
    assert ids.count(encoder.end_of_text) == 1
    assert ids[-1] == encoder.end_of_text
    assert encoder.decode(ids) == f"a{END_OF_TEXT}b".encode()


def test_an_empty_document_is_one_end_of_text(encoder: Encoder) -> None:
    assert encoder.encode("", what="text").tolist() == [encoder.end_of_text]


def test_a_vocabulary_below_all_bytes_is_refused() -> None:
    with pytest.raises(UsageError, match="too small"):
        train(TEXTS, 256)


def test_the_smallest_vocabulary_is_bytes_only() -> None:
    encoder = Encoder(train(TEXTS, 257))
    assert encoder.vocab_size == 257
    assert len(encoder.encode("cat", what="text")) == 4


def test_a_vocabulary_beyond_the_text_is_refused_with_what_it_gives() -> None:
    with pytest.raises(UsageError, match="a vocabulary of 260 only, not 300") as caught:
        train(["abc abc"], 300)
    assert "--vocab-size 260" in caught.value.hint


@pytest.mark.parametrize("data", [b"", b"{}", b"not json", b'{"version":"1.0"}'])
def test_a_broken_tokenizer_file_is_refused(data: bytes) -> None:
    with pytest.raises(BadArtifact, match=r"tokenizer\.json"):
        Encoder(data)
