"""The files of a tiled log: tiles of 256 hashes, bundles of 256 entries, and what lies where (C2SP tlog-tiles).

A tile of level L holds the hashes of complete subtrees of 256^L entries. The last tile of a level may be partial; a
partial tile is not hashed into the level above.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from auditkit.errors import BadArtifact
from auditkit.formats.limits import LIMITS
from auditkit.formats.merkle import HASH_BYTES, Range, node_hash

CHECKPOINT = "checkpoint"
HEIGHT = 8  # a tile has 2^8 hashes
WIDTH = 1 << HEIGHT
BUNDLE_BYTES = WIDTH * (2 + LIMITS.log_entry_bytes)


@dataclass(frozen=True, slots=True, order=True)
class Tile:
    """A tile: its level, its place in the level, and how many hashes it has, 1 to 256."""

    level: int
    index: int
    width: int = WIDTH

    @property
    def path(self) -> str:
        """Its path within the log."""
        return tile_path(self.level, self.index, self.width)

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.width * HASH_BYTES


def tile_path(level: int, index: int, width: int = WIDTH) -> str:
    """The path of a tile: "tile/0/x001/067" is tile 1067 of level 0, "tile/1/000.p/17" a partial one of 17 hashes."""
    return f"tile/{level}/{_place(index, width)}"


def entries_path(index: int, width: int = WIDTH) -> str:
    """The path of the bundle of entries 256 * index and the following, `width` of them."""
    return f"tile/entries/{_place(index, width)}"


def encode_entries(entries: Iterable[bytes]) -> bytes:
    """A bundle: each entry after its length, 16 bits with the high byte first. BadArtifact: an entry is too long."""
    parts: list[bytes] = []
    for entry in entries:
        if len(entry) > LIMITS.log_entry_bytes:
            raise BadArtifact(f"log: an entry of {len(entry)} bytes, at most {LIMITS.log_entry_bytes} are allowed")
        parts += (len(entry).to_bytes(2, "big"), entry)
    return b"".join(parts)


def decode_entries(data: bytes, width: int, what: str = "entry bundle") -> list[bytes]:
    """The `width` entries of a bundle; BadArtifact naming `what` for any other number."""
    entries, at = [], 0
    while at < len(data):
        begin = at + 2
        at = begin + int.from_bytes(data[begin - 2 : begin], "big")
        if at > len(data) or begin > len(data):
            raise BadArtifact(f"{what}: ends within an entry (truncated?)")
        entries.append(bytes(data[begin:at]))
        if len(entries) > width:
            break
    if len(entries) != width:
        found = f"more than {width}" if len(entries) > width else str(len(entries))
        raise BadArtifact(f"{what}: {found} entries, not {width}")
    return entries


def decode_tile(data: bytes, width: int, what: str = "tile") -> list[bytes]:
    """The `width` hashes of a tile; BadArtifact naming `what` for any other number of bytes."""
    if len(data) != width * HASH_BYTES:
        raise BadArtifact(f"{what}: {len(data)} bytes, {width} hashes have {width * HASH_BYTES}")
    return [bytes(data[at : at + HASH_BYTES]) for at in range(0, len(data), HASH_BYTES)]


def tiles_of(size: int) -> list[Tile]:
    """The partial tiles of a log of `size` entries, lowest level first: together they give its root."""
    found, level = [], 0
    while size >> HEIGHT * level:
        hashes = size >> HEIGHT * level
        if hashes % WIDTH:
            found.append(Tile(level, hashes // WIDTH, hashes % WIDTH))
        level += 1
    return found


def tile_of(subtree: Range, size: int) -> Tile:
    """The tile that holds the hash of a complete subtree, or the hashes that it follows from, in a log of `size`."""
    level, index, _ = _address(subtree)
    return Tile(level, index // WIDTH, min(WIDTH, (size >> HEIGHT * level) - index // WIDTH * WIDTH))


def hash_in_tile(subtree: Range, hashes: Sequence[bytes]) -> bytes:
    """The hash of a complete subtree, from the hashes of the tile that `tile_of` names."""
    _, index, count = _address(subtree)
    return complete_hash(hashes[index % WIDTH : index % WIDTH + count])


def complete_hash(hashes: Sequence[bytes]) -> bytes:
    """The hash over 2^k hashes of subtrees of equal size."""
    level = list(hashes)
    while len(level) > 1:
        level = [node_hash(level[at], level[at + 1]) for at in range(0, len(level), 2)]
    return level[0]


def _address(subtree: Range) -> tuple[int, int, int]:
    """Level of the tile, index in that level of the first hash of a complete subtree, and how many hashes it spans."""
    first, stop = subtree
    level = ((stop - first).bit_length() - 1) // HEIGHT
    return level, first >> HEIGHT * level, (stop - first) >> HEIGHT * level


def _place(index: int, width: int) -> str:
    """An index in groups of three digits, all but the last behind an x, so that no file is also a folder."""
    digits = f"{index:03d}"
    digits = digits.zfill(-(-len(digits) // 3) * 3)
    groups = [digits[at : at + 3] for at in range(0, len(digits), 3)]
    name = "/".join([*(f"x{group}" for group in groups[:-1]), groups[-1]])
    return name if width == WIDTH else f"{name}.p/{width}"
