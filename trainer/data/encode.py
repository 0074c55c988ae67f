"""The work of one process: some documents become their ids, and the block that holds them.

What goes to a process and comes back is bytes: a few numbers, little-endian, and then the texts or the ids.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditkit.formats import stream
from auditkit.formats.blocks import Block, BlockDocument, BlockRow, encode_block
from auditkit.formats.digest import ZERO_DIGEST
from auditkit.formats.tensors import DTYPES
from trainer import bpe
from trainer.data.document import RawDocument

TEXT_LEVEL = 12  # of zstd: text is compressed once and downloaded often

_COUNT = struct.Struct("<I")
_SIZES = struct.Struct("<QQ")  # of the name and of the text of a document
_RESULT = struct.Struct("<IQQII32s")  # documents, bytes of ids, bytes of the frame, raw bytes, tokens, digest


@dataclass(frozen=True)
class Setup:
    """What every process needs: the tokenizer, its end of text, the vocabulary, and whether blocks are made."""

    tokenizer: bytes
    end_of_text: str
    vocab_size: int
    blocks: bool


@dataclass(frozen=True)
class Encoded:
    """Some documents: ids of each (documents,), all ids (tokens,) as stored, and frame and row of their block, if any.

    The row lies at offset 0: whoever writes the frame knows where.
    """

    counts: NDArray[np.uint32]
    ids: NDArray[Any]
    frame: bytes
    row: BlockRow | None


class DocumentEncoder:
    """The function from job to result; `pool.ordered` makes one in each process."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup
        self._encoder = bpe.Encoder(setup.tokenizer, setup.end_of_text)
        self._dtype = stream.dtype_for(setup.vocab_size)

    def __call__(self, job: bytes) -> bytes:
        documents = unpack(job)
        texts = [document.data.decode("utf-8") for document in documents]
        names = [document.name for document in documents]
        ids = list(self._encoder.encode_all(texts, names))
        counts = np.array([found.size for found in ids], "<u4")
        tokens = stream.to_tokens(np.concatenate(ids), self._dtype, self._setup.vocab_size)
        frame, row = b"", BlockRow(0, 1, 1, len(documents), tokens.size, ZERO_DIGEST)
        if self._setup.blocks:
            listed = (
                BlockDocument(document.name, len(document.data), count)
                for document, count in zip(documents, counts.tolist(), strict=True)
            )
            block = Block(tuple(listed), b"".join(document.data for document in documents))
            frame, row = encode_block(block, 0, level=TEXT_LEVEL)
        numbers = len(documents), tokens.nbytes, len(frame), row.raw_length, row.tokens, bytes.fromhex(row.digest)
        return b"".join([_RESULT.pack(*numbers), counts.tobytes(), tokens.tobytes(), frame])


def pack(documents: Sequence[RawDocument]) -> bytes:
    """A job."""
    parts = [_COUNT.pack(len(documents))]
    for document in documents:
        name = document.name.encode("utf-8")
        parts += [_SIZES.pack(len(name), len(document.data)), name, document.data]
    return b"".join(parts)


def unpack(job: bytes) -> list[RawDocument]:
    """The documents of a job."""
    return list(_unpacked(job))


def _unpacked(job: bytes) -> Iterator[RawDocument]:
    (count,), position = _COUNT.unpack_from(job), _COUNT.size
    for _ in range(count):
        name_size, size = _SIZES.unpack_from(job, position)
        position += _SIZES.size
        name = job[position : position + name_size].decode("utf-8")
        position += name_size
        yield RawDocument(name, job[position : position + size])
        position += size


def result(data: bytes, setup: Setup) -> Encoded:
    """What a job's result says."""
    documents, size, length, raw, tokens, digest = _RESULT.unpack_from(data)
    position = _RESULT.size
    counts = np.frombuffer(data, "<u4", documents, position)
    position += counts.nbytes
    dtype = DTYPES[stream.dtype_for(setup.vocab_size)]
    ids = np.frombuffer(data, dtype, size // dtype.itemsize, position)
    frame = data[position + size : position + size + length]
    row = BlockRow(0, length, raw, documents, tokens, digest.hex()) if setup.blocks else None
    return Encoded(counts, ids, frame, row)
