"""The files of a state, written so that it is complete or absent.

Tensors lie in shards of a declared size, in the order of the document, so that neither the number of ranks nor that of
threads can change a byte: a rank writes whole shards, and a thread compresses whole tensors.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from auditkit.errors import MachineFault
from auditkit.formats import zstd
from auditkit.formats.digest import BytesLike, Hasher, content_digest
from auditkit.formats.run import STATE_DOCUMENT, STATE_INDEX
from auditkit.formats.safetensors import SafetensorsHeader
from auditkit.formats.state import HEADER_ROLE, FrameEntry, ShardEntry, StateDocument, StateIndex, shard_key
from auditkit.formats.tensors import TensorEntry, little_endian
from auditkit.model.state import State
from auditkit.replay.machine import processors
from trainer.disk import TEMPORARY, remove, sync_file, sync_folder, write_atomic, writing
from trainer.held import HINT

# Raw bytes of a shard; a larger tensor has one of its own. Small enough for the ranks of a machine to share the writing
# of a state of 1 GB, large enough for a state of 4 TB to stay within the number of shards that the format allows.
SHARD_BYTES = 256 << 20

MOST_THREADS = 8  # that compress side by side: a state of 1 GB takes each of them half a second

Tensors = Mapping[tuple[str, str], NDArray[Any]]
"""NumPy arrays by role and name, which nobody changes any more."""


class BrokenOff(Exception):
    """Somebody has asked that the writing of a state ends where it is."""


def write_state(folder: Path, state: State, document: StateDocument, *, shard_bytes: int | None = None) -> None:
    """Write a state of NumPy arrays, and give it its folder name at the end; a folder already there is replaced."""
    temporary = temporary_of(folder, str(os.getpid()))
    groups = cut(document.tensors, shard_bytes)
    arrays = {(role, name): array for name, role, array in state.tensors()}
    shards = write_shards(temporary, dict(enumerate(groups)), arrays, threads=1)
    complete(folder, temporary, document, shards.values())


def temporary_of(folder: Path, token: str) -> Path:
    """Where a state is written until it is complete; `token` keeps two processes apart."""
    return folder.with_name(f"{TEMPORARY}{folder.name}-{token}")


def cut(entries: Iterable[TensorEntry], limit: int | None = None) -> list[list[TensorEntry]]:
    """The tensors of each shard: consecutive groups of at most `limit` (SHARD_BYTES) bytes of data each."""
    limit = SHARD_BYTES if limit is None else limit
    groups: list[list[TensorEntry]] = []
    size = 0
    for entry in entries:
        if not groups or size + entry.nbytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += entry.nbytes
    return groups


def write_shards(
    temporary: Path,
    groups: Mapping[int, Sequence[TensorEntry]],
    arrays: Tensors,
    *,
    threads: int,
    stop: threading.Event | None = None,
) -> dict[int, ShardEntry]:
    """Write some shards, by number, into a folder that need not exist; `stop` breaks off between two tensors.

    Raises Unsupported or Unavailable when the disk refuses, BrokenOff.
    """
    found: dict[int, ShardEntry] = {}
    with writing(_named(temporary)), ThreadPoolExecutor(threads, thread_name_prefix="compress") as pool:
        temporary.mkdir(parents=True, exist_ok=True)
        for number, entries in groups.items():
            path = temporary / f"shard-{number:05d}.safetensors.zst"
            found[number] = _write_shard(path, entries, arrays, pool, threads, stop)
    return found


def complete(folder: Path, temporary: Path, document: StateDocument, shards: Iterable[ShardEntry]) -> None:
    """Write document and index beside all shards, and give the folder its name; one already there is replaced."""
    with writing(folder):
        write_atomic(temporary / STATE_DOCUMENT, document.encode())
        write_atomic(temporary / STATE_INDEX, StateIndex(tuple(shards)).encode())
        if folder.exists():
            remove(folder)
        os.replace(temporary, folder)
        sync_folder(folder.parent)


def writer_threads(processes: int = 1) -> int:
    """How many threads may compress, where so many processes of this machine write at the same time."""
    return max(1, min(MOST_THREADS, processors() // processes))


def header(entries: Iterable[TensorEntry]) -> SafetensorsHeader:
    """The safetensors header of a shard that holds these tensors."""
    return SafetensorsHeader.of((shard_key(entry.role, entry.name), entry.dtype, entry.shape) for entry in entries)


def _named(temporary: Path) -> Path:
    """What the user knows a folder as that has only its temporary name: a state's."""
    return temporary.with_name(temporary.name.removeprefix(TEMPORARY).partition("-")[0])


def _write_shard(
    path: Path,
    entries: Sequence[TensorEntry],
    arrays: Tensors,
    pool: ThreadPoolExecutor,
    threads: int,
    stop: threading.Event | None,
) -> ShardEntry:
    hasher = Hasher(threads=1)
    frames: list[FrameEntry] = []
    head = header(entries).encode()
    parts: list[Callable[[], BytesLike]] = [
        lambda: head,
        *(functools.partial(_checked, arrays[entry.order], entry, path) for entry in entries),
    ]
    named = [("", HEADER_ROLE, len(head)), *((entry.name, entry.role, entry.nbytes) for entry in entries)]
    with path.open("wb") as file, contextlib.closing(_compressed(pool, threads, parts)) as made:
        for (name, role, raw_length), frame in zip(named, made, strict=True):
            if stop is not None and stop.is_set():
                raise BrokenOff
            frames.append(FrameEntry(name, role, hasher.size, len(frame), raw_length))
            hasher.update(frame)
            file.write(frame)
        sync_file(file)
    return ShardEntry(path.name, hasher.size, hasher.hexdigest(), tuple(frames))


def _checked(array: NDArray[Any], entry: TensorEntry, path: Path) -> BytesLike:
    """The bytes to write, if memory still holds what the document says of them: no others may be published."""
    found = little_endian(array)
    if content_digest(found, threads=1) != entry.digest:  # the pool's threads are the training's
        what = f"tensor {entry.role}/{entry.name}"
        raise MachineFault(
            f"{_named(path.parent)}: {what} has changed in memory, or on its way, since it was made", hint=HINT
        )
    return found


def _frame(part: Callable[[], BytesLike]) -> bytes:
    return zstd.compress(part())


def _compressed(
    pool: ThreadPoolExecutor, threads: int, parts: Iterable[Callable[[], BytesLike]]
) -> Generator[bytes, None, None]:
    """A frame for each part in order, `threads` made at a time and never further ahead: each may be large."""
    waiting: deque[Future[bytes]] = deque()
    try:
        for part in parts:
            if len(waiting) == threads:
                yield waiting.popleft().result()
            waiting.append(pool.submit(_frame, part))
        while waiting:
            yield waiting.popleft().result()
    finally:
        for left in waiting:
            left.cancel()
