"""The tensors of a published state: decompressed frame by frame, each checked against the digest its document gives.

A shard is one zstd frame for the safetensors header and one for each tensor, back to back (formats/state.py). Frames
are independent, so a few threads share them; when only digests are wanted, memory is a few buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from auditkit.errors import BadArtifact
from auditkit.formats.digest import content_digest
from auditkit.formats.limits import LIMITS
from auditkit.formats.safetensors import SafetensorsHeader
from auditkit.formats.state import FrameEntry, ShardEntry, StateDocument, StateIndex, shard_key
from auditkit.formats.tensors import DTYPES, TensorEntry
from auditkit.formats.zstd import decompress
from auditkit.store.disk import reading
from auditkit.store.inflate import inflate
from auditkit.store.limits import STORE_LIMITS, StoreLimits
from auditkit.store.progress import Progress, Silent
from auditkit.store.store import Store

Key = tuple[str, str]  # role, name
Tensors = dict[Key, NDArray[Any]]


@dataclass(frozen=True)
class _Job:
    path: Path
    frame: FrameEntry
    entry: TensorEntry

    @property
    def what(self) -> str:
        return f"{self.path.name}: tensor {shard_key(self.entry.role, self.entry.name)}"


def check_tensors(
    shards: Mapping[str, Path],
    document: StateDocument,
    index: StateIndex,
    *,
    limits: StoreLimits = STORE_LIMITS,
    progress: Progress | None = None,
) -> None:
    """Decompress every tensor of a state and check its digest; nothing is kept.

    `shards` maps the index's shard paths to local files (from `Store.file`). BadArtifact names the shard and the tensor
    that is not what the document says, Unavailable a file that cannot be read.
    """
    jobs = _jobs(shards, document, index, limits)
    _each(lambda job, advance: _digest(job, limits, advance), jobs, limits, progress or Silent())


def load_tensors(
    shards: Mapping[str, Path],
    document: StateDocument,
    index: StateIndex,
    *,
    names: Collection[Key] | None = None,
    limits: StoreLimits = STORE_LIMITS,
    progress: Progress | None = None,
) -> Tensors:
    """The tensors of a state by (role, name), or only those in `names`, each checked as `check_tensors` does.

    Arrays are C order, little-endian, of the document's dtype and shape. KeyError for a name that the state has not.
    """
    jobs = _jobs(shards, document, index, limits)
    if names is not None:
        by_key = {job.entry.order: job for job in jobs}
        jobs = [by_key[key] for key in names]
    arrays = {job.entry.order: np.empty(job.entry.shape, DTYPES[job.entry.dtype]) for job in jobs}
    _each(lambda job, advance: _load(job, arrays[job.entry.order], limits, advance), jobs, limits, progress or Silent())
    return arrays


class TensorReader:
    """Tensors of a state one at a time, each a few elements after the other, with memory for these alone."""

    def __init__(
        self,
        shards: Mapping[str, Path],
        document: StateDocument,
        index: StateIndex,
        limits: StoreLimits = STORE_LIMITS,
    ) -> None:
        """As `load_tensors`. Raises BadArtifact for headers that are not as the index says."""
        self._limits = limits
        self._jobs = {job.entry.order: job for job in _jobs(shards, document, index, limits)}

    def pieces(self, key: Key, sizes: Sequence[int]) -> Iterator[NDArray[Any]]:
        """The elements of a tensor in pieces of so many, flat; the last one comes when the digest was checked.

        Raises BadArtifact, Unavailable. KeyError for a key that the state has not.
        """
        job, hasher = self._jobs[key], blake3(max_threads=1)
        rest: NDArray[Any] = np.empty(0, np.uint8)
        raw = _raw(job, memoryview(bytearray(self._limits.chunk_bytes)), self._limits)
        for number, size in enumerate(sizes):
            array = np.empty(size, DTYPES[job.entry.dtype])
            flat, have = array.view(np.uint8), 0
            with reading(job.path):
                while have < flat.size:
                    if not rest.size:
                        rest = np.frombuffer(next(raw), np.uint8)
                        hasher.update(rest.data)
                    taken = min(rest.size, flat.size - have)
                    flat[have : have + taken], rest, have = rest[:taken], rest[taken:], have + taken
                if number == len(sizes) - 1:
                    if next(raw, None) is not None or rest.size:
                        raise ValueError("more elements than were asked for")  # a programming error, never data
                    _require(hasher.hexdigest(), job.entry, job.what)
            yield array


def fetch_tensor(store: Store, folder: str, document: StateDocument, index: StateIndex, key: Key) -> NDArray[Any]:
    """One tensor of a state, by one byte range if its shard (under `folder` of the run) is not here; checked.

    KeyError for a key that the state has not; else the errors of `Store.range`.
    """
    entry = next(e for e in document.tensors if e.order == key)
    shard, frame = next((s, f) for s in index.files for f in s.frames if (f.role, f.name) == key)
    what = f"{shard.path}: tensor {shard_key(*key)}"

    def decode(data: bytes) -> NDArray[Any]:
        raw = decompress(data, size=entry.nbytes, what=what)
        _require(content_digest(raw), entry, what)
        return np.frombuffer(raw, DTYPES[entry.dtype]).reshape(entry.shape)

    path = f"{folder}/{shard.path}"
    data = store.range(path, frame.offset, frame.length, size=shard.size, file_digest=shard.digest, check=decode)
    return decode(data)


def _jobs(shards: Mapping[str, Path], document: StateDocument, index: StateIndex, limits: StoreLimits) -> list[_Job]:
    index.check_covers(document)
    entries = {entry.order: entry for entry in document.tensors}
    jobs = []
    for shard in index.files:
        path = shards[shard.path]
        found = [_Job(path, frame, entries[frame.role, frame.name]) for frame in shard.frames[1:]]
        _check_header(path, shard, found, limits)
        jobs += found
    return jobs


def _check_header(path: Path, shard: ShardEntry, jobs: list[_Job], limits: StoreLimits) -> None:
    """The safetensors header must list the tensors as frames and document do, in their order."""
    frame, what = shard.frames[0], f"{path.name}: safetensors header"
    if frame.raw_length > LIMITS.safetensors_header_bytes + 8:
        raise BadArtifact(
            f"{what}: {frame.raw_length:,} bytes, at most {LIMITS.safetensors_header_bytes + 8:,} are allowed"
        )
    data = bytearray(frame.raw_length)
    with reading(path):
        for _ in inflate(path, frame.offset, frame.length, memoryview(data), frame.raw_length, what, limits):
            pass
    header = SafetensorsHeader.parse(bytes(data), sum(f.raw_length for f in shard.frames))
    if len(header.encode()) != len(data):
        raise BadArtifact(f"{what}: {len(data) - len(header.encode()):,} bytes follow it in its frame")
    listed = [(t.name, t.dtype, t.shape) for t in header.tensors]
    expected = [(shard_key(j.entry.role, j.entry.name), j.entry.dtype, j.entry.shape) for j in jobs]
    for found, wanted in zip(listed, expected, strict=False):
        if found != wanted:
            raise BadArtifact(f"{what} lists {_words(found)} where the state has {_words(wanted)}")
    if len(listed) != len(expected):
        raise BadArtifact(f"{what} lists {len(listed)} tensors, the state index {len(expected)}")


def _words(tensor: tuple[str, str, tuple[int, ...]]) -> str:
    name, dtype, shape = tensor
    return f"{name!r} {dtype} {list(shape)}"


def _each(
    work: Callable[[_Job, Callable[[int], None]], None], jobs: list[_Job], limits: StoreLimits, progress: Progress
) -> None:
    """Do all jobs in a few threads; the error of the first job in order that fails ends it."""
    progress.start("unpacking", sum(job.entry.nbytes for job in jobs))
    pool = ThreadPoolExecutor(limits.unpack_threads, thread_name_prefix="unpack")
    try:
        for _ in pool.map(lambda job: work(job, progress.advance), jobs):
            pass
    finally:
        pool.shutdown(cancel_futures=True)
        progress.finish()


def _digest(job: _Job, limits: StoreLimits, advance: Callable[[int], None]) -> None:
    size = min(limits.chunk_bytes, max(job.entry.nbytes, 1))
    _hash(job, memoryview(bytearray(size)), limits, advance)


def _load(job: _Job, array: NDArray[Any], limits: StoreLimits, advance: Callable[[int], None]) -> None:
    _hash(job, array.reshape(-1).view(np.uint8).data, limits, advance)


def _hash(job: _Job, out: memoryview, limits: StoreLimits, advance: Callable[[int], None]) -> None:
    # One thread each: the frames already keep all threads busy, and the digest is the same.
    hasher = blake3(max_threads=1)
    with reading(job.path):
        for piece in _raw(job, out, limits):
            hasher.update(piece)
            advance(len(piece))
    _require(hasher.hexdigest(), job.entry, job.what)


def _raw(job: _Job, out: memoryview, limits: StoreLimits) -> Iterator[memoryview]:
    frame = job.frame
    return inflate(job.path, frame.offset, frame.length, out, job.entry.nbytes, job.what, limits)


def _require(found: str, entry: TensorEntry, what: str) -> None:
    if found != entry.digest:
        raise BadArtifact(f"{what} has digest {found}, the state document says {entry.digest}")
