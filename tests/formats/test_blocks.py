"""Blocks and their index: what the shard root covers, where documents lie, and a frame that is not the one listed."""

from __future__ import annotations

import dataclasses

import pytest

from auditkit.errors import BadArtifact
from auditkit.formats.blocks import Block, BlockDocument, BlockIndex, decode_block, encode_block
from auditkit.formats.digest import content_digest, root
from tests.formats.samples import digest_of
from tests.formats.sources import BLOCK, BLOCKS, RAW


def test_the_text_of_each_document() -> None:
    assert [(d.name, text) for d, text in BLOCK.texts()] == [
        ("web/a.jsonl.zst:1", b"hello"),
        ("web/a.jsonl.zst:2", b""),
        ("b.txt", ", café".encode()),
    ]


@pytest.mark.parametrize("level", [1, 3, 19])
def test_a_block_comes_back_and_only_the_place_of_its_frame_depends_on_the_compressor(level: int) -> None:
    frame, row = encode_block(BLOCK, 7, level=level)
    assert decode_block(frame, row) == BLOCK
    assert (row.offset, row.length, row.raw_length, row.documents, row.tokens) == (7, len(frame), len(RAW), 3, 9)
    assert row.digest == content_digest(RAW)


def test_the_shard_root_covers_blocks_and_not_frames() -> None:
    moved = BlockIndex(tuple(dataclasses.replace(row, offset=i, length=1) for i, row in enumerate(BLOCKS.rows)))
    assert moved.shard() == BLOCKS.shard()
    for change in ({"raw_length": 1}, {"documents": 1}, {"tokens": 1}, {"digest": digest_of("x")}):
        rows = (dataclasses.replace(BLOCKS.rows[0], **change), BLOCKS.rows[1])  # type: ignore[arg-type]
        assert BlockIndex(rows).shard().digest != BLOCKS.shard().digest
    identity = b"".join(
        row.raw_length.to_bytes(4, "little")
        + row.documents.to_bytes(4, "little")
        + row.tokens.to_bytes(4, "little")
        + bytes.fromhex(row.digest)
        for row in BLOCKS.rows
    )
    assert BLOCKS.shard().digest == root("auditkit shard root v1", identity)


def test_sums_and_offsets() -> None:
    shard = BLOCKS.shard()
    assert (shard.blocks, shard.documents, shard.size, shard.tokens) == (2, 5, len(RAW) + 300, 18)
    assert BLOCKS.token_offsets() == [0, 9, 18]
    assert BLOCKS.text_bytes == 130


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"raw_length": len(RAW) + 1}, "bytes when decompressed"),
        ({"raw_length": len(RAW) - 1}, "zstd frame"),
        ({"digest": digest_of("x")}, "the index says"),
        ({"documents": 2}, "3 documents of 9 tokens, the index says 2 of 9"),
        ({"tokens": 8}, "3 documents of 9 tokens, the index says 3 of 8"),
    ],
)
def test_a_frame_that_is_not_the_listed_one_is_refused(change: dict[str, object], words: str) -> None:
    frame, row = encode_block(BLOCK, 0, level=3)
    with pytest.raises(BadArtifact, match=words):
        decode_block(frame, dataclasses.replace(row, **change))  # type: ignore[arg-type]


def test_a_block_made_in_code_is_checked_as_well() -> None:
    with pytest.raises(BadArtifact, match="block: documents: 0 is outside"):
        Block((), b"")
    with pytest.raises(BadArtifact, match="5 bytes of text, its documents have 4"):
        Block((BlockDocument("a", 4, 1),), b"hello")
    with pytest.raises(BadArtifact, match="outside 1 to 5 tokens"):
        BlockDocument("a", 4, 6)
