"""The token stream: `stream.bin` holds one zstd frame a step, `stream.idx` says where, and a batch's digest decides.

`stream.idx` is 16 bytes of magic and a 48-byte row a step: u64 offset, u32 length, u32 raw length, 32 bytes BLAKE3 of
the raw tokens; all little-endian.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from auditkit.errors import BadArtifact
from auditkit.formats import zstd
from auditkit.formats.digest import BATCH_ROOT, BytesLike, Digest, check_digest, content_digest, root
from auditkit.formats.limits import LIMITS
from auditkit.formats.tensors import DTYPES, tensor_digest

MAGIC = b"AUDITKIT-IDX-v1\n"
ROW_BYTES = 48
TOKEN_DTYPES = ("U16", "U32")

_ROW = struct.Struct("<QII32s")
_U32 = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class FrameRow:
    """One step's frame: `length` bytes at `offset` of stream.bin, `raw_length` bytes of tokens with BLAKE3 `digest`."""

    offset: int
    length: int
    raw_length: int
    digest: Digest

    def encode(self) -> bytes:
        """The 48 bytes; BadArtifact when a number does not fit."""
        if not (0 <= self.offset <= LIMITS.file_bytes and 0 < self.length <= _U32 and 0 < self.raw_length <= _U32):
            raise BadArtifact("stream index: offset, length or raw length is out of range")
        return _ROW.pack(self.offset, self.length, self.raw_length, bytes.fromhex(check_digest(self.digest, "frame")))


@dataclass(frozen=True, slots=True)
class StreamIndex:
    """The frames of all steps, step 0 first, back to back from byte 0 of stream.bin."""

    rows: tuple[FrameRow, ...]

    def __post_init__(self) -> None:
        end = 0
        for step, row in enumerate(self.rows):
            if row.offset != end:
                raise BadArtifact(f"stream index: frame of step {step} starts at byte {row.offset}, not at {end}")
            if not row.length or not row.raw_length:
                raise BadArtifact(f"stream index: frame of step {step} is empty")
            end += row.length
        if end > LIMITS.file_bytes:
            raise BadArtifact(f"stream index: frames end at byte {end}, at most {LIMITS.file_bytes} are allowed")

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The rows of a whole file; BadArtifact for another magic, a partial row, a gap or an overlap."""
        if data[:16] != MAGIC:
            raise BadArtifact("stream index: does not begin with AUDITKIT-IDX-v1")
        body = memoryview(data)[16:]
        if len(body) % ROW_BYTES:
            raise BadArtifact(f"stream index: {len(body) % ROW_BYTES} bytes after the last whole row (truncated?)")
        if len(body) // ROW_BYTES > LIMITS.steps:
            raise BadArtifact(f"stream index: more than {LIMITS.steps} steps")
        return cls(tuple(FrameRow(o, n, raw, digest.hex()) for o, n, raw, digest in _ROW.iter_unpack(body)))

    def encode(self) -> bytes:
        """The whole file."""
        return MAGIC + b"".join(row.encode() for row in self.rows)

    @property
    def total_length(self) -> int:
        """Bytes of stream.bin."""
        return self.rows[-1].offset + self.rows[-1].length if self.rows else 0


def dtype_for(vocab_size: int) -> str:
    """ "U16" when every id below `vocab_size` fits 16 bits, else "U32"."""
    return "U16" if vocab_size <= 1 << 16 else "U32"


def to_tokens(ids: ArrayLike, dtype: str, vocab_size: int) -> NDArray[Any]:
    """Integer ids as little-endian tokens of `dtype`; BadArtifact for an id outside 0..vocab_size-1, never a wrap."""
    array = np.asarray(ids)
    check_tokens(array, vocab_size)
    if vocab_size - 1 > np.iinfo(_token_dtype(dtype)).max:
        raise BadArtifact(f"tokens: a vocabulary of {vocab_size} does not fit {dtype}")
    return np.ascontiguousarray(array, dtype=_token_dtype(dtype))


def token_bytes(dtype: str) -> int:
    """Bytes of one token of `dtype`."""
    return _token_dtype(dtype).itemsize


def decode_ids(data: BytesLike, *, count: int, dtype: str, vocab_size: int, digest: Digest) -> NDArray[Any]:
    """The `count` ids (count,) of a zstd file, read-only; BadArtifact unless they have `digest` and are in range."""
    raw = zstd.decompress(data, size=count * token_bytes(dtype), what="token ids")
    if content_digest(raw) != digest:
        raise BadArtifact(f"token ids: the ids have digest {content_digest(raw)}, the manifest says {digest}")
    ids = np.frombuffer(raw, dtype=_token_dtype(dtype))
    check_tokens(ids, vocab_size)
    return ids


def check_tokens(tokens: NDArray[Any], vocab_size: int) -> None:
    """Refuse arrays that are not integers and ids outside 0..vocab_size-1; BadArtifact with the first such id."""
    if tokens.dtype.kind not in "iu":
        raise BadArtifact(f"tokens: dtype {tokens.dtype} is not an integer")
    if tokens.size and (int(tokens.min()) < 0 or int(tokens.max()) >= vocab_size):
        wrong = (tokens < 0) | (tokens >= vocab_size)
        at = int(np.flatnonzero(wrong)[0])
        raise BadArtifact(f"tokens: id {int(tokens.reshape(-1)[at])} at {at} is outside a vocabulary of {vocab_size}")


def batch_digest(tokens: NDArray[Any], dtype: str | None = None) -> Digest:
    """Root of a step's batch (sequences, context_length+1): BLAKE3, under BATCH_ROOT, of {digest, dtype, shape}.

    `dtype` is the stream's ("U16", "U32"); without it the array's own, which must then be one of the two. The digest
    inside is the plain BLAKE3 of the little-endian tokens, the one that the stream index lists.
    """
    stored = tokens if dtype is None else to_tokens(tokens, dtype, 1 << 8 * _token_dtype(dtype).itemsize)
    name = dtype or _dtype_of(tokens)
    if stored.ndim != 2 or not stored.size:
        raise BadArtifact(f"tokens: a batch has shape (sequences, tokens), not {stored.shape}")
    # Canonical JSON, written directly: every step has a batch, and a general writer is 20 times slower.
    text = f'{{"digest":"{tensor_digest(stored)}","dtype":"{name}","shape":[{stored.shape[0]},{stored.shape[1]}]}}'
    return root(BATCH_ROOT, text.encode("ascii"))


def encode_frame(tokens: NDArray[Any]) -> bytes:
    """One zstd frame of a batch of dtype uint16 or uint32, little-endian, C order."""
    return zstd.compress(np.ascontiguousarray(tokens, dtype=_token_dtype(_dtype_of(tokens))))


def frame_row(offset: int, frame: bytes, tokens: NDArray[Any]) -> FrameRow:
    """The index row of `frame`, which holds `tokens` and lies at `offset` of stream.bin."""
    return FrameRow(offset, len(frame), tokens.nbytes, tensor_digest(tokens))


def decode_frame(
    data: bytes, raw_length: int, dtype: str, shape: tuple[int, ...], *, digest: Digest | None = None
) -> NDArray[Any]:
    """The tokens of one frame, read-only; BadArtifact unless they have `raw_length` bytes, which fit dtype and shape.

    With `digest` (the index row's), the raw bytes must have it too.
    """
    stored = _token_dtype(dtype)
    if math.prod(shape) * stored.itemsize != raw_length:
        raise BadArtifact(f"token frame: {raw_length} bytes do not make {dtype} of shape {shape}")
    raw = zstd.decompress(data, size=raw_length, what="token frame")
    if digest is not None and content_digest(raw) != digest:
        raise BadArtifact(f"token frame: tokens have digest {content_digest(raw)}, the index says {digest}")
    return np.frombuffer(raw, dtype=stored).reshape(shape)


def _token_dtype(dtype: str) -> np.dtype[Any]:
    if dtype not in TOKEN_DTYPES:
        raise BadArtifact(f"tokens: dtype {dtype} is not U16 or U32")
    return DTYPES[dtype]


def _dtype_of(tokens: NDArray[Any]) -> str:
    if tokens.dtype.kind != "u" or tokens.dtype.itemsize not in (2, 4):
        raise BadArtifact(f"tokens: dtype {tokens.dtype} is not uint16 or uint32")
    return f"U{8 * tokens.dtype.itemsize}"
