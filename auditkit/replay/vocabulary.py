"""Token ids back to bytes, read from a byte-level BPE `tokenizer.json` without the tokenizers library.

The file's format is that of Hugging Face tokenizers; the letters that stand for bytes are GPT-2's (openai/gpt-2,
src/encoder.py, `bytes_to_unicode`): printable Latin-1 stands for itself, the other 68 bytes for U+0100 upwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from auditkit.errors import BadArtifact, Unsupported
from auditkit.formats.canonical import shown, words

WHAT = "tokenizer.json"


@dataclass(frozen=True)
class Vocabulary:
    """The bytes of every token id; special tokens (such as the end of text) are listed in `special` by their name."""

    pieces: dict[int, bytes]
    special: dict[int, str]

    @classmethod
    def parse(cls, data: bytes) -> Vocabulary:
        """Read tokenizer.json.

        BadArtifact: not JSON, or tokens that are not byte letters. Unsupported: a tokenizer of another kind.
        """
        value = _object(read_json(data), WHAT)
        model = _object(value.get("model"), f"{WHAT}: model")
        if model.get("type", "BPE") != "BPE" or not _is_byte_level(value):
            raise Unsupported(
                f"{WHAT} is not a byte-level BPE tokenizer", hint="the token ids are checked all the same"
            )
        special = dict(_added(value.get("added_tokens")))
        letters = {letter: byte for byte, letter in enumerate(byte_letters())}
        pieces = {}
        for token, number in _object(model.get("vocab"), f"{WHAT}: model.vocab").items():
            if type(number) is not int or number < 0 or number in pieces:
                raise BadArtifact(f"{WHAT}: model.vocab: the id of {shown(token)} is not a number of its own")
            if number not in special:
                pieces[number] = _bytes(token, letters)
        return cls(pieces, special)

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes of some ids back to back; special tokens contribute their name. BadArtifact: an unknown id."""
        parts = []
        for number in ids:
            piece = self.pieces.get(number)
            if piece is None:
                if number not in self.special:
                    raise BadArtifact(f"{WHAT} has no token {number}")
                piece = self.special[number].encode()
            parts.append(piece)
        return b"".join(parts)


def byte_letters() -> list[str]:
    """The letter that stands for each of the 256 bytes in a byte-level vocabulary."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def read_json(data: bytes, what: str = WHAT) -> Any:
    """The value of a tokenizer file, which is nobody's canonical JSON; BadArtifact naming `what`."""
    try:
        return json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise BadArtifact(f"{what}: not JSON in UTF-8: {words(error)}") from error


def _object(value: object, what: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise BadArtifact(f"{what}: not an object")
    return value


def _added(value: object) -> Iterable[tuple[int, str]]:
    for item in value if isinstance(value, list) else ():
        token = _object(item, f"{WHAT}: added_tokens")
        number, content = token.get("id"), token.get("content")
        if type(number) is not int or not isinstance(content, str):
            raise BadArtifact(f"{WHAT}: added_tokens: an entry without id and content")
        if any("\ud800" <= letter <= "\udfff" for letter in content):
            raise BadArtifact(f"{WHAT}: added_tokens: {shown(content)} has no UTF-8")
        yield number, content


def _is_byte_level(value: dict[str, object]) -> bool:
    """Whether the decoder, or one of a sequence of decoders, maps letters to bytes."""
    decoder = value.get("decoder")
    if not isinstance(decoder, dict):
        return False
    chain = decoder.get("decoders") if decoder.get("type") == "Sequence" else [decoder]
    return isinstance(chain, list) and any(isinstance(d, dict) and d.get("type") == "ByteLevel" for d in chain)


def _bytes(token: str, letters: dict[str, int]) -> bytes:
    try:
        return bytes(letters[letter] for letter in token)
    except KeyError as error:
        raise BadArtifact(f"{WHAT}: token {shown(token)} holds a letter that stands for no byte") from error
