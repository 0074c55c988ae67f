"""Read a transparency log: entries and proofs from the tiles that they need, each believed only under the signed root.

A tile's hash is in the tile above it, and the last tiles of each level together give the root, so every byte is checked
on the way down before anything is concluded from it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from auditkit.errors import BadArtifact, Unavailable, UsageError
from auditkit.formats import merkle, tiles
from auditkit.formats.checkpoint import Checkpoint
from auditkit.formats.limits import LIMITS
from auditkit.formats.merkle import Range
from auditkit.formats.note import NoteKey, SignedNote
from auditkit.formats.tiles import CHECKPOINT, WIDTH, Tile
from auditkit.formats.tlog_proof import LogProof
from auditkit.trust import notes

Fetch = Callable[[str, int], bytes]
"""A file by its path within the log and the most bytes that it may have. Raises Unavailable, or BadArtifact if more."""


class LogReader:
    """A log as one place shows it, signed by `key`. Untrusted: another key, another log; BadArtifact: damaged files.

    `fetch` is called once a file. `origin` is the key's name unless another is given; `entry_bytes` bounds an entry.
    """

    def __init__(
        self,
        fetch: Fetch,
        key: NoteKey,
        *,
        origin: str | None = None,
        entry_bytes: int = LIMITS.log_entry_bytes,
        note: SignedNote | None = None,
    ) -> None:
        self.key = key
        self._fetch, self._origin, self._entry_bytes = fetch, origin, entry_bytes
        self._given = note
        self._tiles: dict[tuple[int, int], list[bytes]] = {}
        self._bundles: dict[int, list[bytes]] = {}

    def at(self, note: SignedNote) -> LogReader:
        """The same log by another of its checkpoints, whose tiles the place may or may not have."""
        return LogReader(self._fetch, self.key, origin=self._origin, entry_bytes=self._entry_bytes, note=note)

    @cached_property
    def note(self) -> SignedNote:
        """The signed checkpoint, its signature not verified."""
        if self._given is not None:
            return self._given
        return SignedNote.parse(self._fetch(CHECKPOINT, LIMITS.note_bytes), CHECKPOINT)

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return notes.verify_checkpoint(self.note, self.key, self._origin)

    def checkpoint(self) -> Checkpoint:
        """The checkpoint, signed by the key."""
        return self._checkpoint

    def entry(self, index: int) -> bytes:
        """One entry; UsageError when the log has no such."""
        return self.entries(index, index + 1)[0]

    def entries(self, first: int, stop: int) -> list[bytes]:
        """Entries `first` to `stop` - 1, each the one under the signed root; UsageError when the log has no such."""
        if not 0 <= first <= stop <= self._checkpoint.size:
            raise UsageError(f"entries {first} to {stop} of a log of {self._checkpoint.size}")
        found: list[bytes] = []
        for bundle in range(first // WIDTH, -(-stop // WIDTH)):
            begin = bundle * WIDTH
            found += self._bundle(bundle)[max(0, first - begin) : stop - begin]
        return found

    def proof(self, index: int) -> LogProof:
        """The proof that entry `index` is in the log, for use without it; UsageError when the log has no such."""
        size = self._checkpoint.size
        if not 0 <= index < size:
            raise UsageError(f"entry {index} of a log of {size}")
        hashes = tuple(self._subtree(part) for part in merkle.inclusion_ranges(index, size))
        return LogProof(index, hashes, self.note)

    def consistency(self, old: int, new: int | None = None) -> list[bytes]:
        """The proof that the log of `old` entries became that of `new` (all of them), RFC 6962 section 2.1.2."""
        size = self._checkpoint.size if new is None else new
        if not 0 <= old <= size <= self._checkpoint.size:
            raise UsageError(f"a log of {self._checkpoint.size} entries has no proof from {old} to {size}")
        return [self._subtree(part) for part in merkle.consistency_ranges(old, size)]

    def root_at(self, size: int) -> bytes:
        """The root that the log had when it was `size` entries long."""
        if not 0 <= size <= self._checkpoint.size:
            raise UsageError(f"a log of {self._checkpoint.size} entries never had {size}")
        return self._subtree((0, size))

    def check(self) -> None:
        """Read the tiles that the root follows from; BadArtifact if another one does."""
        self._edge  # noqa: B018 - reading is the check

    def _subtree(self, part: Range) -> bytes:
        """The hash of a subtree that is complete, or cut off by the end of a log that this one continues."""
        return merkle.chain([self._complete(found) for found in merkle.complete_ranges(*part)])

    def _complete(self, part: Range) -> bytes:
        tile = tiles.tile_of(part, self._checkpoint.size)
        return tiles.hash_in_tile(part, self._tile(tile))

    def _tile(self, tile: Tile) -> list[bytes]:
        """The hashes of a tile, checked."""
        if tile.width < WIDTH:
            return self._edge[tile.level]
        place = (tile.level, tile.index)
        if place not in self._tiles:
            span = 1 << 8 * (tile.level + 1)
            expected = self._complete((tile.index * span, (tile.index + 1) * span))
            hashes = tiles.decode_tile(self._fetch(tile.path, tile.size), WIDTH, tile.path)
            found = tiles.complete_hash(hashes)
            if found != expected:
                raise BadArtifact(f"{tile.path}: has hash {found.hex()}, the tile above says {expected.hex()}")
            self._tiles[place] = hashes
        return self._tiles[place]

    @cached_property
    def _edge(self) -> dict[int, list[bytes]]:
        """The partial tiles by level: no other tile has their hashes, but together they give the root."""
        size = self._checkpoint.size
        found = {tile.level: self._partial(tile) for tile in tiles.tiles_of(size)}
        parts = merkle.complete_ranges(0, size)
        root = merkle.chain([tiles.hash_in_tile(part, found[tiles.tile_of(part, size).level]) for part in parts])
        if root != self._checkpoint.root:
            names = ", ".join(tile.path for tile in tiles.tiles_of(size))
            raise BadArtifact(f"{names}: lead to root {root.hex()}, the checkpoint has {self._checkpoint.root.hex()}")
        return found

    def _partial(self, tile: Tile) -> list[bytes]:
        """A partial tile, or the begin of the full one that it became: a growing log may have removed the former."""
        try:
            data = self._fetch(tile.path, tile.size)
        except Unavailable as error:
            full = Tile(tile.level, tile.index)
            data = self._instead(full.path, full.size, error)[: tile.size]
        return tiles.decode_tile(data, tile.width, tile.path)

    def _bundle(self, index: int) -> list[bytes]:
        """A bundle's entries, each under its hash."""
        if index not in self._bundles:
            tile = tiles.tile_of((index * WIDTH, index * WIDTH + 1), self._checkpoint.size)
            hashes = self._tile(tile)
            path, limit = tiles.entries_path(index, tile.width), WIDTH * (2 + self._entry_bytes)
            try:
                entries = tiles.decode_entries(self._fetch(path, limit), tile.width, path)
            except Unavailable as error:
                if tile.width == WIDTH:
                    raise
                path = tiles.entries_path(index)
                entries = tiles.decode_entries(self._instead(path, limit, error), WIDTH, path)[: tile.width]
            for at, (entry, expected) in enumerate(zip(entries, hashes, strict=True)):
                if merkle.leaf_hash(entry) != expected:
                    raise BadArtifact(f"{path}: entry {index * WIDTH + at} is not the one in the log")
            self._bundles[index] = entries
        return self._bundles[index]

    def _instead(self, path: str, limit: int, missing: Unavailable) -> bytes:
        try:
            return self._fetch(path, limit)
        except Unavailable:
            raise missing from None


def check_proof(proof: LogProof, entry: bytes, key: NoteKey, *, origin: str | None = None) -> Checkpoint:
    """The checkpoint under which an offline proof shows that `entry` is in the log of `key`; Untrusted otherwise."""
    found = notes.verify_checkpoint(proof.checkpoint, key, origin)
    merkle.verify_inclusion(merkle.leaf_hash(entry), proof.index, found.size, proof.hashes, found.root)
    return found
