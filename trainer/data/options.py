"""What the user chooses about the data, and what follows from it before any text is read."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from auditkit.errors import BadArtifact, UsageError
from auditkit.formats.data_spec import DataSpec
from auditkit.formats.fields import Fields
from trainer import bpe
from trainer.data import given
from trainer.data.document import MOST_BYTES, Limit
from trainer.data.encode import Setup
from trainer.disk import read_bytes

MOST_IDS = 1 << 20
_SEVERAL_FROM_BYTES = 1 << 25  # of input: for less, starting processes takes longer than they save


@dataclass(frozen=True)
class DataOptions:
    """What the user chooses about the data; `license` is an SPDX expression, `seed` orders the windows.

    `vocab_size` may be None, or larger than needed, where `tokenizer` names a file that is taken as it is; its special
    token `end_of_text` ends each document. `processes` None: as many as there are cores, for a large corpus. `limit` is
    that of a document.
    """

    vocab_size: int | None
    context_length: int
    seed: int
    title: str
    license: str
    tokenizer: Path | None = None
    end_of_text: str = bpe.END_OF_TEXT
    processes: int | None = None
    limit: Limit = field(default_factory=Limit)

    def check(self, spec: DataSpec) -> None:
        """Refuse what the formats do not allow before any work is done; `spec` is the data section so far.

        Raises `UsageError`.
        """
        if self.tokenizer is None and self.vocab_size is None:
            raise UsageError("--vocab-size is needed, or --tokenizer FILE")
        if self.tokenizer is None and self.end_of_text != bpe.END_OF_TEXT:
            raise UsageError("--end-of-text names a token of --tokenizer FILE")
        if self.vocab_size is not None and self.vocab_size > MOST_IDS:
            raise UsageError(f"--vocab-size {self.vocab_size} is above {MOST_IDS}")
        if not 1 <= self.limit.document_bytes <= MOST_BYTES:
            raise UsageError(f"--max-document {self.limit.document_bytes} is outside 1 to {MOST_BYTES}")
        try:
            DataSpec.from_fields(Fields(spec.to_value(), "options"))
        except BadArtifact as error:
            raise UsageError(error.message, hint=error.hint) from error

    def given_tokenizer(self) -> bytes | None:
        """The tokenizer that is taken as it is. Raises Unavailable, BadArtifact, Unsupported with the reason."""
        if self.tokenizer is None:
            return None
        data = read_bytes(self.tokenizer)
        given.check(data, self.end_of_text)
        return data

    def setup(self, tokenizer: bytes, *, blocks: bool) -> tuple[Setup, bpe.Encoder]:
        """What each process is given, and the encoder here. Raises UsageError if the ids need a larger vocabulary."""
        encoder = bpe.Encoder(tokenizer, self.end_of_text)
        size = self.vocab_size or encoder.vocab_size
        if size < encoder.vocab_size or size > MOST_IDS:
            most = f"ids up to {encoder.vocab_size - 1}, at most {MOST_IDS} of them are allowed"
            raise UsageError(f"--vocab-size {size}: the tokenizer has {most}")
        return Setup(tokenizer, self.end_of_text, size, blocks), encoder

    def workers(self, input_bytes: int) -> int:
        """How many processes tokenise so much input."""
        if self.processes is not None:
            return self.processes
        return _cores() if input_bytes >= _SEVERAL_FROM_BYTES else 1


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
