"""Stored states: the document, checked against everything that names it, and the tensors, checked against it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditkit.errors import BadArtifact, Unavailable
from auditkit.formats.canonical import shown
from auditkit.formats.limits import LIMITS
from auditkit.formats.recipe import Recipe
from auditkit.formats.run import STATE_DOCUMENT, STATE_INDEX
from auditkit.formats.state import StateDocument, StateIndex, shard_key
from auditkit.formats.tensors import tensor_digest
from auditkit.model.state import ROLES, HostTensors, State, expected_tensors
from auditkit.numerics.arrays import F32
from auditkit.replay.compare import TensorDifference, compare_tensors
from auditkit.replay.run import Run
from auditkit.store import Folder, Progress, Silent, Source, Store
from auditkit.store.files import read_range, regular_size
from auditkit.store.unpack import Key, TensorReader, check_tensors, fetch_tensor, load_tensors


@dataclass(frozen=True)
class StoredState:
    """A state whose document and index are read; `folder` is its place in the store, empty for the store's own."""

    store: Store
    folder: str
    document: StateDocument
    index: StateIndex
    progress: Progress

    def load(self, recipe: Recipe) -> State:
        """The whole state, every tensor checked; its arrays in the order of the recipe."""
        tensors = load_tensors(self._shards(), self.document, self.index, progress=self.progress)
        names = [name for name, role in expected_tensors(recipe) if role == "param"]
        params, adam_m, adam_v = (
            {name: np.asarray(tensors[role, name], dtype=np.float32) for name in names}
            for role in ("param", "adam_m", "adam_v")
        )
        return State(self.document.step, params, adam_m, adam_v)

    def reader(self, recipe: Recipe) -> State:
        """The whole state, whose tensors are read, and checked, whenever they are asked for."""
        tensors = TensorReader(self._shards(), self.document, self.index)
        shapes = {name: shape for (name, role), shape in expected_tensors(recipe).items() if role == "param"}
        params, adam_m, adam_v = (StoredTensors(tensors, role, shapes) for role in ROLES)
        found = {entry.order: entry.digest for entry in self.document.tensors}
        return State(self.document.step, params, adam_m, adam_v, found=found)

    def verify(self) -> None:
        """Check every tensor's bytes against the document; nothing is kept."""
        check_tensors(self._shards(), self.document, self.index, progress=self.progress)

    def tensor(self, key: Key) -> NDArray[Any]:
        """One tensor, checked, by one byte range where its shard is not here."""
        if not self.folder:
            return load_tensors(self._shards(), self.document, self.index, names=[key])[key]
        return fetch_tensor(self.store, self.folder, self.document, self.index, key)

    def first_difference(self, state: State) -> TensorDifference | None:
        """The first tensor, in the order of the document, in which another state differs, or None."""
        for entry in self.document.tensors:
            if entry.name not in state.role(entry.role):
                return TensorDifference(entry.name, entry.role, note="the other state has no such tensor")
            if state.found is not None and state.found[entry.order] == entry.digest:
                continue
            array = state.role(entry.role)[entry.name]
            if tensor_digest(array) != entry.digest:
                return compare_tensors(entry.name, entry.role, self.tensor(entry.order), array)
        return None

    def _shards(self) -> dict[str, Path]:
        prefix = f"{self.folder}/" if self.folder else ""
        return {s.path: self.store.file(f"{prefix}{s.path}", s.size, s.digest) for s in self.index.files}


class StoredTensors(HostTensors):
    """The tensors of one role, in the files of a state."""

    def __init__(self, reader: TensorReader, role: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._reader, self._role, self._shapes = reader, role, shapes

    def __getitem__(self, name: str) -> F32:
        shape = self._shapes[name]
        (flat,) = self.pieces(name, [math.prod(shape)])
        return flat.reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def pieces(self, name: str, sizes: Sequence[int]) -> Iterator[F32]:
        """As HostTensors. Raises BadArtifact, Unavailable."""
        for piece in self._reader.pieces((self._role, name), sizes):
            yield np.asarray(piece, dtype=np.float32)


def open_state(run: Run, step: int) -> StoredState:
    """A published state of a run: its root is the manifest's; step, cursor, seed, recipe, tensors are as they must be.

    It is the state as the step before left it, also where a segment begins with `step`.

    Raises Unavailable, BadArtifact naming what differs.
    """
    published = run.published[step]
    path = f"{published.path}/{STATE_DOCUMENT}"
    document = StateDocument.parse(run.read(path))
    if document.root() != published.root:
        _check_tensors(run, path, document)  # which of them is missing says more than two roots
        raise BadArtifact(f"{path} has root {document.root()}, the manifest says {published.root}")
    _check_document(run, step, path, document)
    return StoredState(run.store, published.path, document, state_index(run, step), run.progress)


def state_index(run: Run, step: int) -> StateIndex:
    """Where the tensors of a published state lie."""
    return StateIndex.parse(run.read(f"{run.published[step].path}/{STATE_INDEX}"))


def open_folder(folder: Path) -> StoredState:
    """The state in a folder of this machine (state.json, index.json and shards). Raises Unavailable, BadArtifact."""
    document = StateDocument.parse(_small(folder / STATE_DOCUMENT, LIMITS.state_document_bytes))
    index = StateIndex.parse(_small(folder / STATE_INDEX, LIMITS.state_index_bytes))
    home = Folder(folder)
    return StoredState(Store(Source(str(folder), home, (home,))), "", document, index, Silent())


def _check_document(run: Run, step: int, path: str, document: StateDocument) -> None:
    """The fields that follow from the manifest: a state of another step, seed or recipe is refused by its name."""
    segment = run.timeline.left_by(step)
    if document.recipe != segment.recipe.digest():
        raise BadArtifact(
            f"{path} belongs to recipe {document.recipe}, the manifest's recipe is {segment.recipe.digest()}",
            hint="the recipe in run.json is not the one that the run was trained with",
        )
    for name, found, right in (
        ("step", document.step, step),
        ("sequence", document.sequence, segment.sequence_at(step)),
        ("seed", document.seed, run.recipe.init.seed),
    ):
        if found != right:
            raise BadArtifact(f"{path}: {name} is {found}, this run's state {step} has {right}")
    _check_tensors(run, path, document)


def _check_tensors(run: Run, path: str, document: StateDocument) -> None:
    expected = {(role, name): shape for (name, role), shape in expected_tensors(run.recipe).items()}
    found = {entry.order: entry.shape for entry in document.tensors}
    for role, name in _wrong(found, expected):
        label = shown(shard_key(role, name))
        if (role, name) not in found:
            raise BadArtifact(f"{path}: tensor {label} is missing, expected F32 {list(expected[role, name])}")
        if (role, name) not in expected:
            raise BadArtifact(f"{path}: tensor {label} does not belong to this recipe")
        raise BadArtifact(
            f"{path}: tensor {label} has shape {list(found[role, name])}, expected {list(expected[role, name])}"
        )


def _wrong(found: dict[Key, tuple[int, ...]], expected: dict[Key, tuple[int, ...]]) -> Iterator[Key]:
    return (key for key in sorted(found.keys() | expected.keys()) if found.get(key) != expected.get(key))


def _small(path: Path, limit: int) -> bytes:
    size = regular_size(path)
    if size is None:
        raise Unavailable(f"there is no {path}", hint="a state is a folder with state.json, index.json and its shards")
    if size > limit:
        raise BadArtifact(f"{path}: {size:,} bytes, at most {limit:,} are allowed")
    return read_range(path, 0, size)
