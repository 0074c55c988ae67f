"""Tiles: paths and shapes of the specification, and hashes found in tiles against the tree's definition."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact
from auditkit.formats import merkle, tiles
from auditkit.formats.merkle import leaf_hash, tree_root
from auditkit.formats.tiles import Tile, entries_path, tile_path

LEAVES = [leaf_hash(i.to_bytes(4, "big")) for i in range(1000)]


@pytest.mark.parametrize(
    ("level", "index", "width", "path"),
    [
        (0, 0, 256, "tile/0/000"),
        (0, 1, 5, "tile/0/001.p/5"),
        (0, 67, 256, "tile/0/067"),
        (0, 999, 256, "tile/0/999"),
        (0, 1000, 256, "tile/0/x001/000"),
        (0, 1067, 256, "tile/0/x001/067"),
        (5, 123456078, 256, "tile/5/x123/x456/078"),
        (5, 123456078, 2, "tile/5/x123/x456/078.p/2"),
        (0, 3057500, 256, "tile/0/x003/x057/500"),
        (63, 1234067, 255, "tile/63/x001/x234/067.p/255"),
    ],
)
def test_paths(level: int, index: int, width: int, path: str) -> None:
    """The example of tlog-tiles, and those of golang.org/x/mod/sumdb/tlog without its tile height."""
    assert tile_path(level, index, width) == path
    assert Tile(level, index, width).path == path
    assert entries_path(index, width) == path.replace(f"tile/{level}/", "tile/entries/")


def test_the_tiles_of_the_example_of_the_specification() -> None:
    """70,000 entries: 273 full tiles and one of 112 at level 0, one full and one of 17 at level 1, one of 1 above."""
    assert tiles.tiles_of(70_000) == [Tile(0, 273, 112), Tile(1, 1, 17), Tile(2, 0, 1)]
    assert tiles.tiles_of(256) == [Tile(1, 0, 1)]
    assert tiles.tiles_of(0) == []
    assert tiles.tiles_of(65_536) == [Tile(2, 0, 1)]
    assert tiles.tile_of((0, 1), 70_000) == Tile(0, 0, 256)
    assert tiles.tile_of((69_999, 70_000), 70_000) == Tile(0, 273, 112)
    assert tiles.tile_of((0, 65_536), 70_000) == Tile(2, 0, 1)
    assert tiles.tile_of((65_536, 65_536 + 4096), 70_000) == Tile(1, 1, 17)
    assert Tile(0, 273, 112).size == 112 * 32


@given(st.integers(0, 1 << 40))
def test_partial_tiles_have_the_width_of_the_specification(size: int) -> None:
    found = {tile.level: tile for tile in tiles.tiles_of(size)}
    for level in range(7):
        width = (size >> 8 * level) % 256
        assert (found[level].width if level in found else 0) == width
        if width:
            assert found[level].index == size >> 8 * (level + 1)


def tile_hashes(tile: Tile, leaves: list[bytes]) -> list[bytes]:
    """The hashes of a tile, by the formula of tlog-tiles."""
    span = 256**tile.level
    places = range(tile.index * 256, tile.index * 256 + tile.width)
    return [tree_root(leaves[place * span : (place + 1) * span]) for place in places]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 255, 256, 257, 300, 511, 512, 513, 700, 1000])
def test_every_complete_subtree_is_found_in_its_tile(size: int) -> None:
    leaves, span = LEAVES[:size], 1
    while span <= size:
        for first in range(0, size - span + 1, span):
            tile = tiles.tile_of((first, first + span), size)
            assert tile.width <= 256
            found = tiles.hash_in_tile((first, first + span), tile_hashes(tile, leaves))
            assert found == tree_root(leaves[first : first + span])
        span *= 2


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 511, 700, 1000])
def test_the_partial_tiles_give_the_root(size: int) -> None:
    """Complete subtrees, largest first, are all in partial tiles."""
    edge = merkle.complete_ranges(0, size)
    partial = set(tiles.tiles_of(size))
    hashes = []
    for subtree in edge:
        tile = tiles.tile_of(subtree, size)
        assert tile in partial
        hashes.append(tiles.hash_in_tile(subtree, tile_hashes(tile, LEAVES[:size])))
    assert merkle.chain(hashes) == tree_root(LEAVES[:size])


def test_bundles() -> None:
    entries = [b"", b"a", bytes(300)]
    data = tiles.encode_entries(entries)
    assert data[:5] == b"\0\0\0\1a"
    assert tiles.decode_entries(data, 3) == entries
    assert tiles.decode_entries(b"", 0) == []
    largest = [bytes(65_535)] * 256
    assert len(tiles.encode_entries(largest)) == tiles.BUNDLE_BYTES
    with pytest.raises(BadArtifact, match="an entry of 65536 bytes, at most 65535"):
        tiles.encode_entries([bytes(65_536)])


def test_a_bundle_of_many_entries_is_not_read_to_its_end() -> None:
    with pytest.raises(BadArtifact, match="more than 2 entries"):
        tiles.decode_entries(bytes(1_000_000), 2)


def test_a_tile_has_32_bytes_a_hash() -> None:
    assert tiles.decode_tile(b"".join(LEAVES[:5]), 5) == LEAVES[:5]
    for data in (b"", bytes(31), bytes(33), bytes(64)):
        with pytest.raises(BadArtifact, match="1 hashes have 32"):
            tiles.decode_tile(data, 1)
