"""States on the disk, read so that every tensor is checked (trainer/state_files.py writes them)."""

from __future__ import annotations

import re
from collections.abc import Iterator
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
from auditkit.formats.state import FrameEntry, StateDocument, StateIndex, shard_key
from auditkit.formats.tensors import DTYPES, TensorEntry, tensor_digest
from auditkit.model.state import State, expected_tensors
from trainer.disk import read_bytes
from trainer.state_files import header

_STATE_NAME = re.compile(r"[0-9]{8}")


def complete_steps(states: Path) -> list[int]:
    """The steps whose state is complete, ascending: its folder has the index, which is written last."""
    if not states.is_dir():
        return []
    names = [path.name for path in states.iterdir() if _STATE_NAME.fullmatch(path.name)]
    return sorted(int(name) for name in names if (states / name / STATE_INDEX).is_file())


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
            if self._frame(data, shard.frames[0], "header") != header(held).encode():
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
