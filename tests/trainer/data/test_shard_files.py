"""Shards on the disk: of bounded size, and every block checked once more before it is published."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditkit.errors import BadArtifact, Unavailable
from auditkit.formats.blocks import Block, BlockDocument, encode_block
from auditkit.formats.shards import ShardedCorpus
from trainer.data.shard_files import ShardWriter, check_shards, shard_files


def written(folder: Path, most: int = 400) -> ShardedCorpus:
    """Six blocks of 100 bytes of text in shards of so many bytes."""
    writer = ShardWriter(folder, "web", most)
    for number in range(6):
        text = bytes([65 + number]) * 100
        writer.add(*encode_block(Block((BlockDocument(str(number), 100, 7),), text), 0, level=3))
    return ShardedCorpus((writer.finish(),))


def test_shards_are_full_but_never_too_full(tmp_path: Path) -> None:
    (source,) = written(tmp_path).sources
    raw = source.shards[0].size // source.shards[0].blocks
    assert [shard.blocks for shard in source.shards] == [400 // raw] * (6 // (400 // raw))
    assert [shard.tokens for shard in source.shards] == [7 * shard.blocks for shard in source.shards]


def test_a_block_larger_than_a_shard_is_one_by_itself(tmp_path: Path) -> None:
    (source,) = written(tmp_path, most=10).sources
    assert [shard.blocks for shard in source.shards] == [1] * 6


def test_the_files_are_named_and_whole(tmp_path: Path) -> None:
    corpus = written(tmp_path)
    found = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert found == set(shard_files(corpus))
    check_shards(tmp_path, corpus)


@pytest.mark.parametrize(
    ("file", "words"),
    [("00001.zst", r"00001\.zst, block \d: "), ("00001.idx", r"block index: |00001\.idx: not the shard")],
)
@pytest.mark.parametrize("place", [0, 20, 40, -1])
def test_a_changed_byte_is_noticed(file: str, words: str, place: int, tmp_path: Path) -> None:
    corpus = written(tmp_path)
    path = tmp_path / "corpus/web" / file
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(BadArtifact, match=words):
        check_shards(tmp_path, corpus)


def test_missing_and_longer_files_are_noticed(tmp_path: Path) -> None:
    corpus = written(tmp_path)
    path = tmp_path / "corpus/web/00000.zst"
    data = path.read_bytes()
    path.write_bytes(data + b"x")
    with pytest.raises(BadArtifact, match="holds more than its blocks"):
        check_shards(tmp_path, corpus)
    path.write_bytes(data[:-1])
    with pytest.raises(BadArtifact, match=r"00000\.zst, block"):
        check_shards(tmp_path, corpus)
    path.unlink()
    with pytest.raises(Unavailable):
        check_shards(tmp_path, corpus)
