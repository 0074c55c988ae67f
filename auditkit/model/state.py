"""Everything that decides the next step: parameters, AdamW moments, the step number; and its document and root."""

from __future__ import annotations

import functools
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from auditkit.formats.cursor import START, Cursor
from auditkit.formats.digest import ZERO_DIGEST, Digest, Hasher
from auditkit.formats.recipe import Recipe
from auditkit.formats.state import StateDocument, StateTexts
from auditkit.formats.tensors import TensorEntry, dtype_name, little_endian, sorted_entries, tensor_digest
from auditkit.model.ops import Ops
from auditkit.model.params import init_params, init_slice, parameter_table
from auditkit.numerics import reference
from auditkit.numerics.arrays import F32

ROLES = ("param", "adam_m", "adam_v")
READ_ELEMENTS = 1 << 22  # of a tensor that is not in memory, 16 MiB


class HostTensors(Mapping[str, F32]):
    """Tensors of one role that are not in memory: each is made or read, as a host array, whenever it is asked for."""

    @abstractmethod
    def pieces(self, name: str, sizes: Sequence[int]) -> Iterator[F32]:
        """The elements of a tensor in pieces of so many, flat, one after the other: the last one is handed out only
        when all were checked.
        """


@dataclass(frozen=True)
class State:
    """Float32 arrays by parameter name; `step` is the number of steps taken.

    `found`: the digests of all tensors by role and name, where they are known already.
    """

    step: int
    params: Mapping[str, F32]
    adam_m: Mapping[str, F32]
    adam_v: Mapping[str, F32]
    found: Mapping[tuple[str, str], Digest] | None = field(default=None, compare=False, repr=False, kw_only=True)

    def role(self, role: str) -> Mapping[str, F32]:
        """The arrays of one of ROLES."""
        roles: dict[str, Mapping[str, F32]] = {"param": self.params, "adam_m": self.adam_m, "adam_v": self.adam_v}
        return roles[role]

    @property
    def held(self) -> bool:
        """Whether the arrays are in memory, and not made or read when they are asked for."""
        return not any(isinstance(self.role(role), HostTensors) for role in ROLES)

    def tensors(self) -> Iterator[tuple[str, str, F32]]:
        """(name, role, array), parameters in their order, the roles param, adam_m, adam_v of each together."""
        for name in self.params:
            yield name, "param", self.params[name]
            yield name, "adam_m", self.adam_m[name]
            yield name, "adam_v", self.adam_v[name]


def initial_state(recipe: Recipe) -> State:
    """State 0, from the recipe alone."""
    params = init_params(recipe)
    return State(0, params, _zeros(params), _zeros(params))


def seeded_state(recipe: Recipe) -> State:
    """State 0, whose tensors are made from the recipe when they are asked for."""
    params, adam_m, adam_v = (_Seeded(recipe, role) for role in ROLES)
    return State(0, params, adam_m, adam_v)


class _Seeded(HostTensors):
    """One role of state 0."""

    def __init__(self, recipe: Recipe, role: str) -> None:
        self._recipe, self._role = recipe, role
        self._specs = {spec.name: spec for spec in parameter_table(recipe.model)}

    def __getitem__(self, name: str) -> F32:
        shape = self._specs[name].shape
        (flat,) = self.pieces(name, [math.prod(shape)])
        return flat.reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def pieces(self, name: str, sizes: Sequence[int]) -> Iterator[F32]:
        """As HostTensors."""
        at = 0
        for size in sizes:
            if self._role == "param":
                yield init_slice(self._specs[name], self._recipe, at, at + size)
            else:
                yield np.zeros(size, np.float32)
            at += size


def _zeros(params: dict[str, F32]) -> dict[str, F32]:
    return {name: np.zeros_like(array) for name, array in params.items()}


def document(state: State, recipe: Recipe, ops: Ops = reference, *, cursor: Cursor = START) -> StateDocument:
    """The state document; its root() is the state root of the records. `ops` hashes the arrays where they are.

    `cursor` is where the steps under this recipe begin in their data, in a run of several segments.
    """
    if not state.held:
        return document_of(state.step, recipe, host_digests(state, recipe), cursor=cursor)
    tensors = list(state.tensors())
    found = ops.digests([array for _, _, array in tensors])
    entries = sorted_entries(
        (
            TensorEntry(name, role, dtype_name(array.dtype), array.shape, digest)
            for (name, role, array), digest in zip(tensors, found, strict=True)
        ),
        "state",
    )
    return StateDocument(
        step=state.step,
        sequence=cursor.at(state.step, recipe.batch.sequences),
        seed=recipe.init.seed,
        recipe=recipe.digest(),
        tensors=entries,
    )


def host_digests(state: State, recipe: Recipe) -> dict[tuple[str, str], Digest]:
    """The digests of all tensors of a state of the host; those not in memory are read a few elements at a time."""
    if state.held:
        return {(role, name): tensor_digest(array) for name, role, array in state.tensors()}
    found = {}
    for spec in parameter_table(recipe.model):
        size = math.prod(spec.shape)
        sizes = [min(READ_ELEMENTS, size - at) for at in range(0, size, READ_ELEMENTS)]
        for role in ROLES:
            hasher = Hasher()
            for piece in flat_pieces(state.role(role), spec.name, sizes):
                hasher.update(little_endian(piece))
            found[role, spec.name] = hasher.hexdigest()
    return found


@dataclass(frozen=True)
class StateDigests:
    """The digests of a state's tensors: what its root needs besides the step number."""

    texts: StateTexts
    sequences: int  # a step consumes
    found: list[Digest]  # in the order of the document
    cursor: Cursor = START

    def root(self, step: int) -> Digest:
        """The root of the document that these tensors have as state `step`."""
        return self.texts.root(step, self.cursor.at(step, self.sequences), self.found)


def state_digests(state: State, recipe: Recipe, ops: Ops = reference, *, cursor: Cursor = START) -> StateDigests:
    """What `document` says of the tensors: `state_digests(..).root(state.step)` is its root, without making it."""
    if state.found is not None:
        return digests_of(recipe, state.found, cursor=cursor)
    if not state.held:
        return digests_of(recipe, host_digests(state, recipe), cursor=cursor)
    order = document_order(tuple(state.params))
    roles = {"param": state.params, "adam_m": state.adam_m, "adam_v": state.adam_v}
    arrays = [roles[role][name] for role, name in order]
    layout = tuple((role, name, array.dtype, array.shape) for (role, name), array in zip(order, arrays, strict=True))
    return StateDigests(document_texts(recipe, layout), recipe.batch.sequences, ops.digests(arrays), cursor)


def digests_of(recipe: Recipe, found: Mapping[tuple[str, str], Digest], *, cursor: Cursor = START) -> StateDigests:
    """The same of digests that are known, by role and name."""
    specs = parameter_table(recipe.model)
    order, shapes = document_order(tuple(spec.name for spec in specs)), {spec.name: spec.shape for spec in specs}
    layout = tuple((role, name, np.dtype(np.float32), shapes[name]) for role, name in order)
    return StateDigests(document_texts(recipe, layout), recipe.batch.sequences, [found[key] for key in order], cursor)


def document_of(
    step: int, recipe: Recipe, found: Mapping[tuple[str, str], Digest], *, cursor: Cursor = START
) -> StateDocument:
    """The document of state `step` whose tensors have these digests, by role and name."""
    shapes = {spec.name: spec.shape for spec in parameter_table(recipe.model)}
    entries = (TensorEntry(name, role, "F32", shapes[name], digest) for (role, name), digest in found.items())
    sequence = cursor.at(step, recipe.batch.sequences)
    return StateDocument.of(step, sequence, recipe.init.seed, recipe.digest(), entries)


@functools.lru_cache(maxsize=8)
def document_order(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Role and name of each tensor of the parameters `names`, in the order of a state document."""
    return tuple(sorted((role, name) for role in ROLES for name in names))


@functools.lru_cache(maxsize=8)
def document_texts(recipe: Recipe, layout: tuple[tuple[str, str, Any, tuple[int, ...]], ...]) -> StateTexts:
    """What documents of one layout have in common, once for a run: 75 entries take a millisecond to check."""
    entries = [TensorEntry(name, role, dtype_name(dtype), shape, ZERO_DIGEST) for role, name, dtype, shape in layout]
    return StateTexts(StateDocument.of(0, 0, recipe.init.seed, recipe.digest(), entries))


def expected_tensors(recipe: Recipe) -> dict[tuple[str, str], tuple[int, ...]]:
    """(name, role) -> shape of every tensor that a state of this recipe must hold."""
    return {(spec.name, role): spec.shape for spec in parameter_table(recipe.model) for role in ROLES}


def flat_pieces(tensors: Mapping[str, F32], name: str, sizes: Sequence[int]) -> Iterator[F32]:
    """The elements of a tensor in pieces of so many, flat."""
    if isinstance(tensors, HostTensors):
        yield from tensors.pieces(name, sizes)
        return
    flat, at = tensors[name].reshape(-1), 0
    for size in sizes:
        yield flat[at : at + size]
        at += size


def recut(arrays: Iterator[F32], sizes: Sequence[int]) -> Iterator[F32]:
    """Arrays that follow each other, as flat arrays of other sizes; the last one comes when all were read."""
    held: list[F32] = []
    for number, size in enumerate(sizes):
        while _elements(held) < size:
            held.append(next(arrays).reshape(-1))
        joined = held[0] if len(held) == 1 else np.concatenate(held)
        if number == len(sizes) - 1 and next(arrays, None) is not None:
            raise ValueError("more elements than were asked for")  # a programming error, never data
        yield joined[:size]
        held = [joined[size:]]


def _elements(arrays: Sequence[F32]) -> int:
    total = 0
    for array in arrays:
        total += array.size
    return total
