"""Clean the cache of what killed processes left, and say how large it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from auditkit.store import spill
from auditkit.store.cache import PART, Cache
from auditkit.store.owner import abandoned
from auditkit.store.progress import Clock


@dataclass(frozen=True)
class Swept:
    """What a clean-up removed."""

    files: int
    bytes: int


@dataclass(frozen=True)
class Usage:
    """What lies in a cache: finished objects and partial files."""

    objects: int
    object_bytes: int
    parts: int
    part_bytes: int


def sweep(cache: Cache, clock: Clock) -> Swept:
    """Remove partial files that nobody writes any more: their process is gone, or they are older than the limit.

    What an audit that was killed has kept goes as well. A partial file of a live process is left alone; files that
    cannot be removed are not counted.
    """
    files, freed = spill.sweep(cache.folder, committed=True)
    for path, size in _files(cache):
        if path.name.endswith(PART) and abandoned(path, now=clock.wall(), after_seconds=cache.limits.leftover_seconds):
            try:
                path.unlink()
            except OSError:
                continue
            files, freed = files + 1, freed + size
    return Swept(files, freed)


def usage(cache: Cache) -> Usage:
    """Number and bytes of what lies in the cache; nothing is opened."""
    objects = object_bytes = parts = part_bytes = 0
    for path, size in _files(cache):
        if path.name.endswith(PART):
            parts, part_bytes = parts + 1, part_bytes + size
        elif path.parent.parent.name == "blake3":
            objects, object_bytes = objects + 1, object_bytes + size
    return Usage(objects, object_bytes, parts, part_bytes)


def _files(cache: Cache) -> Iterator[tuple[Path, int]]:
    for part in ("blake3", "names"):
        for path in (cache.folder / part).glob("*/*"):
            try:
                yield path, path.stat().st_size
            except OSError:
                continue  # another process removed or renamed it
