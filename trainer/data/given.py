"""A tokenizer that is taken as it is: refused unless its ids give back every byte of every text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from auditkit.errors import BadArtifact, MachineFault, Unsupported
from auditkit.replay.vocabulary import byte_letters, read_json
from trainer.bpe import Encoder

MOST_BYTES = 1 << 26

# Steps before the byte-level one that cut a text and change none of it.
_CUTTING = ("Split", "Digits", "Punctuation", "UnicodeScripts")
_HINT = "only byte-level BPE that changes no text can be used: its ids must give back the very bytes"

# Letters and marks of one to four bytes, white space of all kinds, and what looks like a special token.
_TRIAL = "".join(map(chr, [*range(0x250), *range(0x370, 0x600), 0x1680, *range(0x2000, 0x2070), 0x3000, 0xFEFF]))
_TRIALS = ("", " ", "  a  b\r\n\t c", _TRIAL, "\U0001f600\U0010ffff\u65e5\u672c\u8a9e", "<|endoftext|> <s> [PAD]")


def check(data: bytes, end_of_text: str) -> None:
    """Refuse a tokenizer.json that loses or changes text, or has no special token `end_of_text`.

    Raises BadArtifact for a file that cannot be read, Unsupported with the reason for a tokenizer of another kind.
    """
    if len(data) > MOST_BYTES:
        raise BadArtifact(f"tokenizer.json: {len(data)} bytes, at most {MOST_BYTES} are allowed")
    encoder = Encoder(data, end_of_text)  # BadArtifact for what is no tokenizer
    reason = next(_reasons(read_json(data), end_of_text), None)
    try:
        trials = () if reason else encoder.encode_all(_TRIALS, ["a trial text"] * len(_TRIALS))
        for _ in trials:
            pass
    except MachineFault:
        reason = "its ids do not give back a trial text"
    if reason:
        raise Unsupported(f"tokenizer.json: {reason}", hint=_HINT)


def _reasons(value: dict[str, Any], end_of_text: str) -> Iterator[str]:
    """Why this tokenizer cannot be used, if anything speaks against it."""
    model = value["model"]
    if value.get("normalizer") is not None:
        yield "it normalises text"
    if model.get("dropout"):
        yield "its model drops merges by chance"
    if model.get("byte_fallback") or model.get("fuse_unk"):
        yield "its model replaces characters"
    if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        yield "its model marks parts of words"
    yield from _splits(value.get("pre_tokenizer") or {})
    missing = set(byte_letters()) - set(model["vocab"])
    if missing:
        yield f"{len(missing)} of the 256 bytes have no token"
    for token in value.get("added_tokens") or []:
        if token.get("special"):
            continue  # never made from a text
        if token["content"] == end_of_text:
            yield f"its token {end_of_text} is not special: a text could hold it"
        if token.get("lstrip") or token.get("rstrip"):
            yield f"its added token {token['content']!r} takes white space away"


def _splits(splitter: dict[str, Any]) -> Iterator[str]:
    """The same for what cuts a text into words: some of these and at last the byte-level step."""
    steps = splitter.get("pretokenizers", []) if splitter.get("type") == "Sequence" else [splitter]
    levels = [step for step in steps if step.get("type") == "ByteLevel"]
    if len(levels) != 1 or steps[-1:] != levels:
        yield "it does not end with one byte-level step"
        return
    if levels[0].get("add_prefix_space"):
        yield "it puts a space before a text"
    for step in steps[:-1]:
        if step.get("type") not in _CUTTING:
            yield f"a step of the kind {step.get('type')} comes before the byte-level one"
        elif step.get("behavior") == "Removed":
            yield f"a step of the kind {step['type']} removes what it cuts at"
