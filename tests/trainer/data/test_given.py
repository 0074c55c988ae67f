"""A tokenizer that is taken as it is: byte-level BPE that changes no text, and a reason why another one is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from auditkit.errors import BadArtifact, Unsupported
from tests.trainer.tiny import TEXTS
from trainer import bpe
from trainer.bpe import END_OF_TEXT
from trainer.data.given import check

MADE = json.loads(bpe.train(TEXTS, 300))
LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
SPLIT = {"type": "Split", "pattern": {"Regex": "[^\\r\\n]+|[\\r\\n]+"}, "behavior": "Isolated", "invert": False}
ADDED = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def changed(model: dict[str, Any] | None = None, **fields: Any) -> bytes:
    """The tokenizer with other fields."""
    return json.dumps(MADE | fields | {"model": MADE["model"] | (model or {})}).encode()


def sequence(*steps: dict[str, Any]) -> dict[str, Any]:
    """Several steps that cut a text into words."""
    return {"type": "Sequence", "pretokenizers": list(steps)}


def added(content: str, number: int = 300, **fields: Any) -> list[dict[str, Any]]:
    """The end of text and one token more."""
    return [*MADE["added_tokens"], {"id": number, "content": content, **ADDED, "special": False, **fields}]


@pytest.mark.parametrize(
    "data",
    [
        changed(),
        changed(pre_tokenizer=sequence(SPLIT, LEVEL)),
        changed(pre_tokenizer=sequence({"type": "Digits", "individual_digits": True}, LEVEL)),
        changed(added_tokens=added("<|im_start|>", special=True, lstrip=True)),
        changed(added_tokens=added("   ")),
        changed(model={"ignore_merges": True}),
        changed(
            post_processor={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
        ),
    ],
    ids=["ours", "own expression", "digits", "special", "run of spaces", "ignore merges", "post-processor"],
)
def test_tokenizers_that_change_no_text(data: bytes) -> None:
    check(data, END_OF_TEXT)


def test_another_end_of_text() -> None:
    data = changed(added_tokens=added("</s>", special=True))
    check(data, "</s>")
    assert bpe.Encoder(data, "</s>").end_of_text == 300
    with pytest.raises(BadArtifact, match=r"no special token <eos>") as caught:
        check(data, "<eos>")
    assert "</s>" in caught.value.hint


NORMAL = {"type": "NFC"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (changed(normalizer=NORMAL), "it normalises text"),
        (changed(model={"dropout": 0.1}), "drops merges by chance"),
        (changed(model={"byte_fallback": True}), "replaces characters"),
        (changed(model={"end_of_word_suffix": "</w>"}), "marks parts of words"),
        (changed(pre_tokenizer=LEVEL | {"add_prefix_space": True}), "puts a space before a text"),
        (changed(pre_tokenizer=None), "does not end with one byte-level step"),
        (changed(pre_tokenizer=sequence(LEVEL, SPLIT)), "does not end with one byte-level step"),
        (changed(pre_tokenizer=sequence(LEVEL, LEVEL)), "does not end with one byte-level step"),
        (changed(pre_tokenizer=sequence({"type": "Whitespace"}, LEVEL)), "of the kind Whitespace comes before"),
        (changed(pre_tokenizer=sequence(SPLIT | {"behavior": "Removed"}, LEVEL)), "removes what it cuts at"),
        (changed(decoder={"type": "Metaspace", "replacement": "_", "prepend_scheme": "always", "split": True}),
         "not a byte-level BPE"),
        (changed(added_tokens=added("xx", lstrip=True)), "'xx' takes white space away"),
        (changed(added_tokens=[MADE["added_tokens"][0] | {"special": False}]), "is not special: a text could hold it"),
        (json.dumps(MADE | {"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}}).encode(),
         "not a byte-level BPE"),
    ],
)  # fmt: skip
def test_others_are_refused_with_a_reason(data: bytes, words: str) -> None:
    with pytest.raises(Unsupported, match=words) as caught:
        check(data, END_OF_TEXT)
    assert caught.value.hint


def test_a_missing_byte_is_refused() -> None:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.train_from_iterator(
        ["ab"], trainers.BpeTrainer(vocab_size=5, special_tokens=[END_OF_TEXT], show_progress=False)
    )
    with pytest.raises(Unsupported, match="254 of the 256 bytes have no token"):
        check(made.to_str().encode(), END_OF_TEXT)


def test_an_expression_that_leaves_something_out_is_found_by_a_trial() -> None:
    """A split that is inverted and isolated keeps all; one that merges nothing may not."""
    made = Tokenizer.from_str(changed().decode())
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\s+"), "removed"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    with pytest.raises(Unsupported, match="removes what it cuts at"):
        check(made.to_str().encode(), END_OF_TEXT)


def test_a_file_that_makes_the_library_panic_is_refused() -> None:
    """A panic is no Exception: nothing else would catch it."""
    with pytest.raises(BadArtifact, match=r"tokenizer\.json: the tokenizers library panics"):
        check(changed(model={"continuing_subword_prefix": "##"}), END_OF_TEXT)


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b"\xff", b"not json"])
def test_a_file_that_is_no_tokenizer_is_refused(data: bytes) -> None:
    with pytest.raises(BadArtifact, match=r"tokenizer\.json: "):
        check(data, END_OF_TEXT)


def test_a_very_large_file_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainer.data.given.MOST_BYTES", 100)
    with pytest.raises(BadArtifact, match="at most 100 are allowed"):
        check(changed(), END_OF_TEXT)
