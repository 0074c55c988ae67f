"""Text to token ids, by the `tokenizers` library and a tokenizer.json: for the trainer and to derive a step again.

The only module of the verifier that uses this library, and only when asked to: a verification of a step works on the
published token ids and needs none.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditkit.errors import BadArtifact, Incomplete
from auditkit.formats.canonical import words
from auditkit.replay import vocabulary

PIECE = 1 << 16  # characters: the library takes about 100 bytes of memory for each byte of a text
_AT_ONCE = 8  # pieces that it is given in one call, which it may spread over as many threads

# Any of these before a space or a line feed: no white space by any version of Unicode, whatever follows it.
_CUT = re.compile("[!-~\u00c0-\u1679\u3001-\ud7ff][ \n]")

_MISSING_HINT = "pip install 'auditkit-verifier[data]' installs it; verification itself does not need it"


class TextEncoder:
    """One tokenizer; `library` is the name and the version of the program behind it."""

    def __init__(self, data: bytes, what: str = "tokenizer.json") -> None:
        """Raises Incomplete where the library is not installed, BadArtifact naming `what` for a file it cannot read."""
        try:
            import tokenizers
        except ImportError as error:
            raise Incomplete("the tokenizers library is not installed", hint=_MISSING_HINT) from error
        self._what = what
        try:
            with self._panics(), _silence():
                self._made: Any = tokenizers.Tokenizer.from_buffer(data)
        except (ValueError, TypeError) as error:
            raise BadArtifact(f"{what}: {words(error).lower()}") from error
        # the name of a special token inside a document is text: only the end of a document gives the special id
        self._made.encode_special_tokens = True
        self._cuttable = _is_cuttable(vocabulary.read_json(data, what))
        self.library = f"tokenizers {tokenizers.__version__}"

    def ids(self, texts: Sequence[str]) -> Iterator[NDArray[np.int64]]:
        """The ids (n,) of each text, without an end-of-text; memory grows with the longest piece that is not cut."""
        for text in texts:
            parts = pieces(text) if self._cuttable else [text]
            found = []
            for begin in range(0, len(parts), _AT_ONCE):
                with self._panics():
                    some = self._made.encode_batch_fast(parts[begin : begin + _AT_ONCE], add_special_tokens=False)
                found += [np.array(part.ids, np.int64) for part in some]
            yield found[0] if len(found) == 1 else np.concatenate(found)

    @contextlib.contextmanager
    def _panics(self) -> Iterator[None]:
        """The library's panics are no Exception, and have no type that could be imported; a bad file can cause one.

        What else it refuses when it encodes is an Exception and of no type below that.
        """
        try:
            yield
        except BaseException as error:
            if type(error) is Exception:
                raise BadArtifact(f"{self._what}: the tokenizers library refuses: {words(error).lower()}") from error
            if type(error).__name__ != "PanicException":
                raise
            raise BadArtifact(f"{self._what}: the tokenizers library panics: {words(error).lower()}") from error


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """What the library writes to stderr by itself when it panics goes nowhere: the error says it."""
    try:
        kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    except OSError:  # stderr is closed: then nothing is to be kept from it
        yield
        return
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def pieces(text: str, size: int = PIECE) -> list[str]:
    """A text cut where words that a byte-level tokenizer looks at by themselves end, every `size` characters or so.

    Its expression (GPT-2's: contractions, letters, digits, others, each after at most one space, and white space) has
    no match that goes on from a character that is no white space to one that is, and none that looks back: the ids of
    the pieces are those of the whole.
    """
    found, begin = [], 0
    while len(text) - begin > size:
        cut = _CUT.search(text, begin + size - 1)
        if cut is None:
            break
        found.append(text[begin : cut.start() + 1])
        begin = cut.start() + 1
    return [*found, text[begin:]]


def _is_cuttable(tokenizer: Any) -> bool:
    """Whether this is byte-level BPE with the expression above, and nothing besides it looks at a text."""
    split = tokenizer.get("pre_tokenizer") or {}
    return (
        tokenizer.get("normalizer") is None
        and split.get("type") == "ByteLevel"
        and split.get("add_prefix_space") is False
        and split.get("use_regex", True) is True
        and all(token.get("special") for token in tokenizer.get("added_tokens", []))
    )
