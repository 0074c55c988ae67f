"""Write a transparency log as static files: tiles, entry bundles, and a signed checkpoint last (C2SP tlog-tiles).

A file that a checkpoint leads to never changes: a log only grows, and its next partial tile has another name. What lies
beyond the checkpoint is of a run that was interrupted, binds nobody, and is written again.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from auditkit.errors import BadArtifact, Unavailable, UsageError
from auditkit.formats import merkle, tiles
from auditkit.formats.checkpoint import Checkpoint
from auditkit.formats.limits import LIMITS
from auditkit.formats.note import SignedNote, check_name
from auditkit.formats.tiles import CHECKPOINT, WIDTH, Tile
from auditkit.store.lock import only_writer
from auditkit.trust import disk, notes
from auditkit.trust.keys import PrivateKey

_DRAFT = ".tmp-checkpoint"


class LogWriter:
    """The writer of the log in `folder`, called `origin` and signed by `private`; it writes in `append` only."""

    def __init__(self, folder: Path, origin: str, private: PrivateKey) -> None:
        check_name(origin, "origin of the log")  # it is the name of the key as well
        self._folder, self._private = folder, private
        self.key = notes.note_key(origin, private.public)

    def checkpoint(self) -> Checkpoint | None:
        """The log's checkpoint, or None before there is one. Untrusted: it is not this key's, or of another log."""
        data = self._signed()
        if data is None:
            return None
        return notes.verify_checkpoint(SignedNote.parse(data, self._shown(CHECKPOINT)), self.key)

    def append(self, entries: Iterable[bytes], *, at: int | None = None) -> Checkpoint:
        """Add entries of up to 65,535 bytes and sign the new checkpoint; returns it.

        With `at`, the entries are those from that index on: what the log has of them already must be the same, and only
        the rest is added. So a whole list may be given again with `at=0`, at any time, and after any interruption.
        No entries at all begin a log: its first checkpoint, of size 0.

        UsageError: an entry that the log has is another one, or `at` is beyond its end: nothing is signed. Untrusted
        and BadArtifact: the log there is not this key's, or damaged. Unavailable: another process writes it.
        Unsupported: the disk refuses.
        """
        with disk.writing(self._folder):
            self._folder.mkdir(parents=True, exist_ok=True)
        with only_writer(self._folder):
            signed = self._signed()
            before = self.checkpoint() or Checkpoint(self.key.name, 0, merkle.EMPTY_ROOT)
            edge = _Edge(self._folder, before)
            rest = self._new(iter(entries), before.size if at is None else at, before.size)
            written = [path for entry in rest for path in edge.add(entry)]
            if edge.size == before.size and signed is not None:
                return before
            return self._publish(edge, written, signed)

    def _publish(self, edge: _Edge, written: list[Path], signed: bytes | None) -> Checkpoint:
        self._require_unchanged(signed)
        written += edge.write_partial()
        disk.sync(written, self._folder)
        made = Checkpoint(self.key.name, edge.size, edge.root())
        self._require_unchanged(signed)
        note = notes.sign(made.text(), self.key.name, self._private)
        disk.write(self._folder / CHECKPOINT, note.encode(), draft=_DRAFT)
        edge.remove_partial()
        return made

    def _require_unchanged(self, signed: bytes | None) -> None:
        """On a file system without locks: better no checkpoint than two of one size, or a tile of somebody else's."""
        if self._signed() != signed:
            raise Unavailable(f"{self._folder}: another process wrote the log meanwhile", hint="append again")

    def _new(self, entries: Iterator[bytes], at: int, size: int) -> Iterator[bytes]:
        """The entries that the log does not have, after those that it has were compared."""
        if not 0 <= at <= size:
            raise UsageError(f"{self._folder}: entry {at} would leave a hole behind a log of {size}")
        for index, entry in zip(range(at, size), entries, strict=False):
            if index % WIDTH == 0 or index == at:
                tile = tiles.tile_of((index, index + 1), size)
                hashes = _read_tile(self._folder, tile)
            if merkle.leaf_hash(entry) != hashes[index % WIDTH]:
                raise UsageError(
                    f"{self._folder}: entry {index} of the log is another one, and a log is never rewritten",
                    hint="publish other entries as another log, under another origin",
                )
        return entries

    def _signed(self) -> bytes | None:
        return disk.read(self._folder / CHECKPOINT, LIMITS.note_bytes)

    def _shown(self, path: str) -> str:
        return str(self._folder / path)


class _Edge:
    """The right edge of a growing log: the hashes of each level's open tile, and the entries of the open bundle."""

    def __init__(self, folder: Path, before: Checkpoint) -> None:
        self._folder = folder
        self._open = tiles.tiles_of(before.size)  # partial tiles that the checkpoint leads to
        self.size = before.size
        self._levels: list[list[bytes]] = []
        for tile in self._open:
            self._level(tile.level).extend(_read_tile(folder, tile))
        if self.root() != before.root:
            raise BadArtifact(f"{folder}: the tiles have root {self.root().hex()}, the checkpoint {before.root.hex()}")
        self._bundle = self._read_bundle(before.size)

    def add(self, entry: bytes) -> Iterator[Path]:
        """Add one entry; yields the files that became full and were written."""
        if self.size >= LIMITS.log_entries:
            raise UsageError(f"a log has at most {LIMITS.log_entries} entries")
        if len(entry) > LIMITS.log_entry_bytes:
            raise UsageError(f"an entry of {len(entry)} bytes, at most {LIMITS.log_entry_bytes} are allowed")
        self._bundle.append(entry)
        index, found = self.size, merkle.leaf_hash(entry)
        self.size += 1
        if len(self._bundle) == WIDTH:
            yield self._write(tiles.entries_path(index // WIDTH), tiles.encode_entries(self._bundle))
            self._bundle = []
        for level in itertools.count():
            hashes = self._level(level)
            hashes.append(found)
            if len(hashes) < WIDTH:
                return
            index //= WIDTH
            yield self._write(tiles.tile_path(level, index), b"".join(hashes))
            found = tiles.complete_hash(hashes)
            hashes.clear()

    def write_partial(self) -> Iterator[Path]:
        """Write the open bundle and the open tiles under the names of this size."""
        for tile in tiles.tiles_of(self.size):
            if tile.level == 0:
                yield self._write(tiles.entries_path(tile.index, tile.width), tiles.encode_entries(self._bundle))
            yield self._write(tile.path, b"".join(self._levels[tile.level]))

    def remove_partial(self) -> None:
        """Remove the partial files of tiles that are full by now, which begin with the same hashes and entries."""
        for tile in self._open:
            if (self.size >> 8 * tile.level) < (tile.index + 1) * WIDTH:
                continue
            names = [tile.path, tiles.entries_path(tile.index, tile.width)][: 1 if tile.level else 2]
            for name in names:
                shutil.rmtree((self._folder / name).parent, ignore_errors=True)

    def root(self) -> bytes:
        """The RFC 6962 root over all entries so far."""
        hashes = {tile.level: self._levels[tile.level] for tile in tiles.tiles_of(self.size)}
        parts = merkle.complete_ranges(0, self.size)
        return merkle.chain([tiles.hash_in_tile(part, hashes[tiles.tile_of(part, self.size).level]) for part in parts])

    def _level(self, level: int) -> list[bytes]:
        while len(self._levels) <= level:
            self._levels.append([])
        return self._levels[level]

    def _write(self, path: str, data: bytes) -> Path:
        place = self._folder / path
        with disk.writing(place):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        return place

    def _read_bundle(self, size: int) -> list[bytes]:
        if size % WIDTH == 0:
            return []
        place = self._folder / tiles.entries_path(size // WIDTH, size % WIDTH)
        data = disk.read(place, tiles.BUNDLE_BYTES)
        if data is None:
            raise Unavailable(f"there is no {place}, which the log's checkpoint leads to")
        entries = tiles.decode_entries(data, size % WIDTH, str(place))
        if [merkle.leaf_hash(entry) for entry in entries] != self._levels[0]:
            raise BadArtifact(f"{place}: not the entries of the tile beside it")
        return entries


def _read_tile(folder: Path, tile: Tile) -> list[bytes]:
    place = folder / tile.path
    data = disk.read(place, tile.size)
    if data is None:
        raise Unavailable(f"there is no {place}, which the log's checkpoint leads to")
    return tiles.decode_tile(data, tile.width, str(place))
