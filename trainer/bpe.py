"""Byte-level BPE with the `tokenizers` library: the same texts give the same file, and ids give back the bytes.

Training is deterministic: ties between pairs go by id, and the alphabet is sorted. A test trains in processes with
different numbers of threads and hash seeds.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from auditkit.errors import BadArtifact, MachineFault, UsageError
from auditkit.formats.digest import content_digest

END_OF_TEXT = "<|endoftext|>"
MIN_VOCAB = 257  # 256 bytes and the end of text


def train(texts: Iterable[str], vocab_size: int) -> bytes:
    """Train a tokenizer of exactly `vocab_size` ids -> its tokenizer.json; raises `UsageError` if that cannot be."""
    if vocab_size < MIN_VOCAB:
        raise UsageError(
            f"vocabulary size {vocab_size} is too small", hint=f"at least {MIN_VOCAB}: every byte, and the end of text"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    found = tokenizer.get_vocab_size()
    if found != vocab_size:
        raise UsageError(
            f"the texts give a vocabulary of {found} only, not {vocab_size}",
            hint=f"use --vocab-size {found} or less, or more text",
        )
    text: str = tokenizer.to_str(pretty=False)
    return text.encode("utf-8")


class Encoder:
    """Text to ids, for one tokenizer.json (bytes); every result is checked to give back the bytes it came from."""

    def __init__(self, tokenizer_json: bytes) -> None:
        try:
            self._tokenizer: Any = Tokenizer.from_buffer(tokenizer_json)
        except (ValueError, TypeError) as error:
            raise BadArtifact(f"tokenizer.json: {str(error).lower()}") from error
        # The text "<|endoftext|>" inside a document is text: only the end of a document may give the special id.
        self._tokenizer.encode_special_tokens = True
        self.digest = content_digest(tokenizer_json)
        self.vocab_size: int = self._tokenizer.get_vocab_size()
        end = self._tokenizer.token_to_id(END_OF_TEXT)
        if end is None:
            raise BadArtifact(f"tokenizer.json: no token {END_OF_TEXT}")
        self.end_of_text: int = end
        self._bytes = _bytes_of_ids(self._tokenizer)

    def encode(self, text: str, *, what: str) -> NDArray[np.int64]:
        """Ids of one document (n,) int64 with the end of text; raises `MachineFault` if they would not decode to it."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if b"".join(map(self._bytes.__getitem__, ids)) != text.encode("utf-8"):
            raise MachineFault(f"{what}: the tokenizer lost bytes", hint="install another version of tokenizers")
        return np.array([*ids, self.end_of_text], dtype=np.int64)

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes behind ids; the end of text gives none."""
        return b"".join(map(self._bytes.__getitem__, ids))


def _bytes_of_ids(tokenizer: Any) -> dict[int, bytes]:
    """What each id stands for: byte-level BPE writes each byte as one printable character of a fixed alphabet."""
    byte_of = _byte_alphabet()
    table = {}
    for token, index in tokenizer.get_vocab(with_added_tokens=True).items():
        table[index] = b"" if token == END_OF_TEXT else bytes(byte_of[character] for character in token)
    return table


def _byte_alphabet() -> dict[str, int]:
    """Character to byte, as GPT-2 writes them: printable bytes stand for themselves, the others follow from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}
