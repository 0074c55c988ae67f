"""States on the disk: written so that one is complete or absent, read so that every tensor is checked."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditkit.errors import BadArtifact
from auditkit.formats import zstd
from auditkit.formats.canonical import shown
from auditkit.formats.digest import Hasher
from auditkit.formats.recipe import Recipe
from auditkit.formats.run import STATE_DOCUMENT, STATE_INDEX
from auditkit.formats.safetensors import SafetensorsHeader
from auditkit.formats.state import HEADER_ROLE, FrameEntry, ShardEntry, StateDocument, StateIndex, shard_key
from auditkit.formats.tensors import DTYPES, TensorEntry, little_endian, tensor_digest
from auditkit.model.state import State, expected_tensors
from trainer.disk import TEMPORARY, read_bytes, remove, sync_file, sync_folder, write_atomic, writing

SHARD_BYTES = 4 << 30  # raw; a larger tensor has a shard of its own
_STATE_NAME = re.compile(r"[0-9]{8}")


def complete_steps(states: Path) -> list[int]:
    """The steps whose state is complete, ascending: its folder has the index, which is written last."""
    if not states.is_dir():
        return []
    names = [path.name for path in states.iterdir() if _STATE_NAME.fullmatch(path.name)]
    return sorted(int(name) for name in names if (states / name / STATE_INDEX).is_file())


def write_state(folder: Path, state: State, document: StateDocument, *, shard_bytes: int = SHARD_BYTES) -> None:
    """Write a state of NumPy arrays, see `write_tensors`."""
    arrays = {(role, name): array for name, role, array in state.tensors()}
    write_tensors(folder, document, lambda entry: arrays[entry.order], shard_bytes=shard_bytes)


def write_tensors(
    folder: Path,
    document: StateDocument,
    fetch: Callable[[TensorEntry], NDArray[Any]],
    *,
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a state and give it its folder name at the end; a folder already there is replaced.

    fetch: gives each tensor in document order, one at a time, so that memory need not hold them all. Shards hold the
    tensors in that order, one zstd frame for the safetensors header and one a tensor.
    """
    temporary = folder.with_name(f"{TEMPORARY}{folder.name}-{os.getpid()}")
    with writing(folder):
        temporary.mkdir(parents=True)
        shards = []
        for number, entries in enumerate(_cut(document.tensors, shard_bytes)):
            shards.append(_write_shard(temporary / f"shard-{number:05d}.safetensors.zst", entries, fetch))
        write_atomic(temporary / STATE_DOCUMENT, document.encode())
        write_atomic(temporary / STATE_INDEX, StateIndex(tuple(shards)).encode())
        if folder.exists():
            remove(folder)
        os.replace(temporary, folder)
        sync_folder(folder.parent)


def _cut(entries: Iterable[TensorEntry], limit: int) -> list[list[TensorEntry]]:
    """Consecutive groups of at most `limit` bytes of data each."""
    groups: list[list[TensorEntry]] = []
    size = 0
    for entry in entries:
        if not groups or size + entry.nbytes > limit:
            groups.append([])
            size = 0
        groups[-1].append(entry)
        size += entry.nbytes
    return groups


def _write_shard(
    path: Path, entries: Sequence[TensorEntry], fetch: Callable[[TensorEntry], NDArray[Any]]
) -> ShardEntry:
    hasher = Hasher()
    frames: list[FrameEntry] = []
    header = _header(entries).encode()
    with path.open("wb") as file:

        def add(name: str, role: str, raw: bytes | NDArray[Any], raw_length: int) -> None:
            frame = zstd.compress(raw)
            frames.append(FrameEntry(name, role, hasher.size, len(frame), raw_length))
            hasher.update(frame)
            file.write(frame)

        add("", HEADER_ROLE, header, len(header))
        for entry in entries:
            add(entry.name, entry.role, little_endian(fetch(entry)), entry.nbytes)
        sync_file(file)
    return ShardEntry(path.name, hasher.size, hasher.hexdigest(), tuple(frames))


def _header(entries: Iterable[TensorEntry]) -> SafetensorsHeader:
    return SafetensorsHeader.of((shard_key(entry.role, entry.name), entry.dtype, entry.shape) for entry in entries)


@dataclass(frozen=True)
class StoredState:
    """A state's folder with its document and index, which fit each other."""

    folder: Path
    document: StateDocument
    index: StateIndex

    @classmethod
    def open(cls, folder: Path) -> StoredState:
        """Read document and index; raises `BadArtifact` or `Unavailable`."""
        document = StateDocument.parse(read_bytes(folder / STATE_DOCUMENT))
        index = StateIndex.parse(read_bytes(folder / STATE_INDEX))
        index.check_covers(document)
        return cls(folder, document, index)

    def tensors(self) -> Iterator[tuple[TensorEntry, NDArray[Any]]]:
        """Every tensor, checked against its shard and the document; raises `BadArtifact` naming shard and tensor."""
        entries = {entry.order: entry for entry in self.document.tensors}
        for shard in self.index.files:
            data = read_bytes(self.folder / shard.path)
            hasher = Hasher()
            hasher.update(data)
            if (hasher.size, hasher.hexdigest()) != (shard.size, shard.digest):
                raise BadArtifact(f"{self.folder / shard.path}: not the bytes its digest names")
            held = [entries[frame.role, frame.name] for frame in shard.frames[1:]]
            if self._frame(data, shard.frames[0], "header") != _header(held).encode():
                raise BadArtifact(f"{self.folder / shard.path}: the header does not describe the tensors of the index")
            for frame, entry in zip(shard.frames[1:], held, strict=True):
                yield entry, self._tensor(data, frame, entry)

    def _tensor(self, data: bytes, frame: FrameEntry, entry: TensorEntry) -> NDArray[Any]:
        what = f"tensor {shown(shard_key(entry.role, entry.name))}"
        raw = self._frame(data, frame, what)
        array = np.frombuffer(raw, DTYPES[entry.dtype]).reshape(entry.shape)
        if tensor_digest(array) != entry.digest:
            raise BadArtifact(f"{self.folder}: {what} is not the one that the state document names")
        return array

    def _frame(self, data: bytes, frame: FrameEntry, what: str) -> bytes:
        part = memoryview(data)[frame.offset : frame.offset + frame.length]
        return zstd.decompress(part, size=frame.raw_length, what=f"{self.folder}: {what}")


def load_state(stored: StoredState, recipe: Recipe) -> State:
    """The state to train on; raises `BadArtifact` if its tensors are not those of this recipe or one is wrong."""
    check_tensors(stored, recipe)
    arrays = {entry.order: array.astype(np.float32) for entry, array in stored.tensors()}
    # In the recipe's own order, as `initial_state` has them: nothing may depend on how a state was come by.
    names = [name for name, role in expected_tensors(recipe) if role == "param"]
    params, adam_m, adam_v = ({name: arrays[role, name] for name in names} for role in ("param", "adam_m", "adam_v"))
    return State(stored.document.step, params, adam_m, adam_v)


def check_tensors(stored: StoredState, recipe: Recipe) -> None:
    """Raises `BadArtifact` if a state has other tensors than this recipe's; they are not read."""
    document = stored.document
    expected = expected_tensors(recipe)
    found = {(entry.name, entry.role): entry.shape for entry in document.tensors}
    if found != expected:
        wrong = sorted(key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key))
        name, role = wrong[0]
        raise BadArtifact(
            f"{stored.folder}: tensor {role}/{name} has shape {found.get(wrong[0])}, expected {expected.get(wrong[0])}"
        )
