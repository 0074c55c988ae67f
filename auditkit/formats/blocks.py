"""Blocks of a corpus with declared sources: whole documents with their names, sizes and numbers of ids, and the text.

A shard's text file holds one zstd frame a block, back to back; its index says where each lies and what it must be, so
that the documents of a step are read by byte ranges. The index is 16 bytes of magic and a 56-byte row a block: u64
offset, u32 length, u32 raw length, u32 documents, u32 tokens, 32 bytes BLAKE3 of the raw block; all little-endian.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats import canonical, zstd
from auditkit.formats.canonical import shown
from auditkit.formats.digest import SHARD_ROOT, Digest, check_digest, content_digest, root
from auditkit.formats.fields import Fields, check_text
from auditkit.formats.limits import LIMITS
from auditkit.formats.schema import Int
from auditkit.formats.shards import Shard

MAGIC = b"AUDITKIT-BLK-v1\n"
TABLE_FORMAT = "auditkit/block/v1"
ROW_BYTES = 56

_ROW = struct.Struct("<QIIII32s")
_IDENTITY = struct.Struct("<III32s")
_LENGTH = struct.Struct("<I")
_U32 = 0xFFFFFFFF
_FRAME = Int(1, _U32, "bytes")
_RAW = Int(1, LIMITS.block_bytes, "bytes")
_DOCUMENTS = Int(1, LIMITS.block_documents, "documents")
_TOKENS = Int(1, _U32, "tokens")
_SIZE = Int(0, LIMITS.block_bytes, "bytes")


@dataclass(frozen=True, slots=True)
class BlockRow:
    """One block: its frame is `length` bytes at `offset` of the shard; `digest` is that of the `raw_length` bytes."""

    offset: int
    length: int
    raw_length: int
    documents: int
    tokens: int
    digest: Digest

    def __post_init__(self) -> None:
        _FRAME.check(self.length, "block index: length")
        _RAW.check(self.raw_length, "block index: raw length")
        _DOCUMENTS.check(self.documents, "block index: documents")
        _TOKENS.check(self.tokens, "block index: tokens")
        check_digest(self.digest, "block index: digest")

    def encode(self) -> bytes:
        """The 56 bytes."""
        return _ROW.pack(self.offset, self.length, *self._counts(), bytes.fromhex(self.digest))

    def identity(self) -> bytes:
        """What the shard root covers: all but where the frame lies, which varies with the compressor."""
        return _IDENTITY.pack(*self._counts(), bytes.fromhex(self.digest))

    def _counts(self) -> tuple[int, int, int]:
        return self.raw_length, self.documents, self.tokens


@dataclass(frozen=True, slots=True)
class BlockIndex:
    """The blocks of one shard, back to back from byte 0 of its text file."""

    rows: tuple[BlockRow, ...]

    def __post_init__(self) -> None:
        Int(1, LIMITS.shard_blocks, "blocks").check(len(self.rows), "block index: blocks")
        end = 0
        for number, row in enumerate(self.rows):
            if row.offset != end:
                raise BadArtifact(f"block index: block {number} starts at byte {row.offset}, not at {end}")
            end += row.length

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The rows of a whole file; BadArtifact for another magic, a partial row, a gap or an overlap."""
        if data[:16] != MAGIC:
            raise BadArtifact("block index: does not begin with AUDITKIT-BLK-v1")
        body = memoryview(data)[16:]
        if len(body) % ROW_BYTES:
            raise BadArtifact(f"block index: {len(body) % ROW_BYTES} bytes after the last whole row (truncated?)")
        if len(body) // ROW_BYTES > LIMITS.shard_blocks:
            raise BadArtifact(f"block index: more than {LIMITS.shard_blocks} blocks")
        return cls(tuple(BlockRow(o, n, r, d, t, digest.hex()) for o, n, r, d, t, digest in _ROW.iter_unpack(body)))

    def encode(self) -> bytes:
        """The whole file."""
        return MAGIC + b"".join(row.encode() for row in self.rows)

    @property
    def text_bytes(self) -> int:
        """Bytes of the shard's text file."""
        return self.rows[-1].offset + self.rows[-1].length

    def shard(self) -> Shard:
        """What the corpus index says of the shard."""
        return Shard(
            digest=root(SHARD_ROOT, b"".join(row.identity() for row in self.rows)),
            blocks=len(self.rows),
            documents=sum(row.documents for row in self.rows),
            size=sum(row.raw_length for row in self.rows),
            tokens=sum(row.tokens for row in self.rows),
        )

    def token_offsets(self) -> list[int]:
        """Where the ids of each block begin, and where the last ones end: one more than blocks."""
        return list(itertools.accumulate((row.tokens for row in self.rows), initial=0))


@dataclass(frozen=True, slots=True)
class BlockDocument:
    """One document: `size` bytes of UTF-8 text, `tokens` ids with the final end-of-text; the name is for people."""

    name: str
    size: int
    tokens: int

    def __post_init__(self) -> None:
        what = f"block: document {shown(check_text(self.name, 'block: document name'))}"
        _SIZE.check(self.size, f"{what}: size")
        Int(1, self.size + 1, "tokens").check(self.tokens, f"{what}: tokens")  # each but the last is a byte or more


@dataclass(frozen=True, slots=True)
class Block:
    """Some documents and their text, back to back: a table of canonical JSON after its length (u32), then the text."""

    documents: tuple[BlockDocument, ...]
    text: bytes

    def __post_init__(self) -> None:
        _DOCUMENTS.check(len(self.documents), "block: documents")
        size = sum(document.size for document in self.documents)
        if size != len(self.text):
            raise BadArtifact(f"block: {len(self.text)} bytes of text, its documents have {size}")

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The block of its raw bytes; BadArtifact naming the field."""
        if len(data) < _LENGTH.size or len(data) > LIMITS.block_bytes:
            raise BadArtifact(f"block: {len(data)} bytes, {_LENGTH.size} to {LIMITS.block_bytes} are allowed")
        end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        if end > len(data):
            raise BadArtifact(f"block: its table ends at byte {end} of {len(data)}")
        table = canonical.loads(data[_LENGTH.size : end], what="block", limit=LIMITS.block_bytes)
        fields = Fields(table, "block")
        fields.format(TABLE_FORMAT)
        documents = []
        for row in fields.rows("documents", 1, LIMITS.block_documents):
            documents.append(BlockDocument(row.raw("name"), row.raw("size"), row.raw("tokens")))
            row.done()
        fields.done()
        return cls(tuple(documents), data[end:])

    def encode(self) -> bytes:
        """The raw bytes."""
        documents = [{"name": d.name, "size": d.size, "tokens": d.tokens} for d in self.documents]
        table = canonical.dumps({"documents": documents, "format": TABLE_FORMAT}, what="block")
        return _LENGTH.pack(len(table)) + table + self.text

    @property
    def tokens(self) -> int:
        """Ids of all documents."""
        return sum(document.tokens for document in self.documents)

    def texts(self) -> Iterator[tuple[BlockDocument, bytes]]:
        """Each document with its text."""
        begin = 0
        for document in self.documents:
            yield document, self.text[begin : begin + document.size]
            begin += document.size


def encode_block(block: Block, offset: int, *, level: int) -> tuple[bytes, BlockRow]:
    """The frame of a block that will lie at `offset` of its shard, and its index row."""
    raw = block.encode()
    frame = zstd.compress(raw, level=level)
    row = BlockRow(offset, len(frame), len(raw), len(block.documents), block.tokens, content_digest(raw))
    return frame, row


def decode_block(data: bytes, row: BlockRow) -> Block:
    """The block of a frame; BadArtifact unless it is the one of its index row."""
    raw = zstd.decompress(data, size=row.raw_length, what="block")
    if content_digest(raw) != row.digest:
        raise BadArtifact(f"block: digest {content_digest(raw)}, the index says {row.digest}")
    block = Block.parse(raw)
    if (len(block.documents), block.tokens) != (row.documents, row.tokens):
        raise BadArtifact(
            f"block: {len(block.documents)} documents of {block.tokens} tokens, "
            f"the index says {row.documents} of {row.tokens}"
        )
    return block
