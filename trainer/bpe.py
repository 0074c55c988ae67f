"""Byte-level BPE with the `tokenizers` library: the same texts give the same file, and ids give back the bytes.

Training is deterministic: ties between pairs go by id, and the alphabet is sorted. A test trains in processes with
different numbers of threads and hash seeds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from auditkit.errors import BadArtifact, MachineFault, UsageError
from auditkit.formats.canonical import shown
from auditkit.formats.digest import content_digest
from auditkit.replay.encoder import TextEncoder
from auditkit.replay.vocabulary import Vocabulary

END_OF_TEXT = "<|endoftext|>"
MIN_VOCAB = 257  # 256 bytes and the end of text
_DECODED = 1 << 16  # ids turned back into bytes at a time


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
    """Text to ids, for one tokenizer.json (bytes); every result is checked to give back the bytes it came from.

    Raises BadArtifact for a file that cannot be read, Unsupported for another kind of tokenizer.
    """

    def __init__(self, tokenizer_json: bytes, end_of_text: str = END_OF_TEXT) -> None:
        self._encoder = TextEncoder(tokenizer_json)
        vocabulary = Vocabulary.parse(tokenizer_json)
        self.library = self._encoder.library
        self.digest = content_digest(tokenizer_json)
        ends = [number for number, name in vocabulary.special.items() if name == end_of_text]
        if not ends:
            known = ", ".join(shown(name) for name in sorted(vocabulary.special.values())[:8]) or "none"
            raise BadArtifact(f"tokenizer.json: no special token {end_of_text}", hint=f"its special tokens: {known}")
        self.end_of_text = ends[0]
        self.vocab_size = 1 + max([*vocabulary.pieces, *vocabulary.special])
        self._bytes = vocabulary.pieces | {number: name.encode() for number, name in vocabulary.special.items()}
        self._bytes[self.end_of_text] = b""

    def encode(self, text: str, *, what: str) -> NDArray[np.int64]:
        """Ids of one document (n,) int64 with the end of text; raises `MachineFault` if they would not decode to it."""
        return next(self.encode_all([text], [what]))

    def encode_all(self, texts: Sequence[str], names: Sequence[str]) -> Iterator[NDArray[np.int64]]:
        """The same for each of some documents, called by `names`."""
        for text, name, ids in zip(texts, names, self._encoder.ids(texts), strict=True):
            if not self._gives_back(ids, text.encode("utf-8")):
                raise MachineFault(f"{name}: the tokenizer lost bytes", hint="install another version of tokenizers")
            yield np.append(ids, self.end_of_text)

    def _gives_back(self, ids: NDArray[np.int64], data: bytes) -> bool:
        """Whether ids stand for exactly these bytes; a part at a time, since Python integers take much memory."""
        at = 0
        for begin in range(0, ids.size, _DECODED):
            part = self.decode(ids[begin : begin + _DECODED].tolist())
            if data[at : at + len(part)] != part:
                return False
            at += len(part)
        return at == len(data)

    def decode(self, ids: Iterable[int]) -> bytes:
        """The bytes behind ids; the end of text gives none."""
        return b"".join(map(self._bytes.__getitem__, ids))
