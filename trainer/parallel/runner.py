"""A run on several ranks, as the training loop sees it; and what the ranks do that follow the leading one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditkit.formats.cursor import START, Cursor
from auditkit.formats.digest import Digest
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import Recipe
from auditkit.formats.record import RecordRow
from auditkit.model.state import State, digests_of, document, document_of
from auditkit.model.step import StepResult
from auditkit.replay.backend import Backend
from trainer.held import CHECK_EVERY
from trainer.parallel.agree import Caught, agree
from trainer.parallel.group import Group
from trainer.parallel.layout import BUCKET, Layout
from trainer.parallel.memory import memory_of
from trainer.parallel.owners import OwnedStates
from trainer.parallel.place import launched
from trainer.parallel.replicas import Replicas
from trainer.parallel.state import RankState, fill, rank_state
from trainer.parallel.step import RankStep
from trainer.snapshots import landing_of
from trainer.states import StoredState, check_tensors

_FIRST = b"first"


class Ranks:
    """This rank's part, a Runner."""

    def __init__(
        self,
        group: Group,
        backend: Backend,
        recipe: Recipe,
        cursor: Cursor = START,
        *,
        bucket: int = BUCKET,
        check_every: int = CHECK_EVERY,
    ) -> None:
        """`cursor` is where the recipe's steps begin in their data; replicas are checked every so many steps, 0: never.

        Raises UsageError where the recipe's fold does not fit the number of ranks.
        """
        self._group, self._backend, self._recipe, self._cursor = group, backend, recipe, cursor
        self._layout, self._memory = Layout(recipe.model, group.size), memory_of(backend.ops)
        self._replicas = Replicas(group, self._layout, backend.ops, backend.device, check_every)
        options: dict[str, Any] = {"threads": backend.threads, "bucket": bucket, "replicas": self._replicas}
        self._step = backend.on_device(
            lambda: RankStep(group, self._layout, self._memory, backend.ops, recipe, **options)
        )
        place = launched()
        neighbours = place.local_size if place else group.size
        landing = landing_of(backend.ops, neighbours=neighbours)
        self._states = OwnedStates(group, self._layout, self._memory, landing, neighbours)
        self._stops = False

    @property
    def leads(self) -> bool:
        """Rank 0 does."""
        return self._group.rank == 0

    def self_test(self) -> None:
        """As Runner.self_test, on every rank."""
        caught = Caught()
        with caught.catching():
            self._backend.self_test()
        agree(self._group, caught, b"")

    def first(self, make: Callable[[], State]) -> RankState:
        """As Runner.first; the other ranks `follow`."""
        self._group.gather_bytes(_FIRST)
        return self._first(make)

    def load(self, stored: StoredState) -> RankState:
        """As Runner.load; the other ranks `follow`."""
        self._group.gather_bytes(b"%d" % stored.document.step)
        return self._load(stored)

    def follow(self, make: Callable[[], State], find: Callable[[int], StoredState]) -> tuple[RankState, bool]:
        """What rank 0 begins with, and whether it is state 0 made anew; `find` opens the state of a step."""
        said = self._group.gather_bytes(b"")[0]
        return (self._first(make), True) if said == _FIRST else (self._load(find(int(said))), False)

    def step(self, state: RankState, tokens: NDArray[Any], asked: bool) -> tuple[RankState, StepResult, Digest]:
        """As Runner.step."""
        self._group.doing(f"step {state.step}")
        new, result, self._stops = self._backend.on_device(lambda: self._step(state, tokens, asked))
        return new, result, self.root(new)

    def stops(self, asked: bool) -> bool:
        """Whether any rank was asked to stop, up to the last step: all ranks know the same."""
        return self._stops

    def root(self, state: RankState) -> Digest:
        """As Runner.root."""
        return digests_of(self._recipe, state.digests, cursor=self._cursor).root(state.step)

    def write(self, state: RankState, folder: Path, before: Callable[[], None], after: Callable[[], None]) -> None:
        """As Runner.write: each rank writes its shards."""
        self.settle()
        self._group.doing(f"writing state {state.step}")
        self._backend.on_device(lambda: self._replicas.written(state))
        found = document_of(state.step, self._recipe, state.digests, cursor=self._cursor)
        held = self._backend.on_device(lambda: self._states.gather(state, found))
        self._states.begin(held, found, folder, before, after)

    def advance(self) -> None:
        """As Runner.advance."""
        self._states.advance()

    def settle(self) -> None:
        """As Runner.settle."""
        self._states.settle()

    def drop(self, *, finish: bool) -> None:
        """As Runner.drop."""
        self._states.drop(finish=finish)

    def _first(self, make: Callable[[], State]) -> RankState:
        state = make()
        digests = {entry.order: entry.digest for entry in document(state, self._recipe).tensors}

        def place() -> RankState:
            held = rank_state(self._layout, self._group.rank, self._memory, 0, digests)
            for name, role, tensor in state.tensors():
                fill(held, self._layout, self._group.rank, self._memory, (role, name), tensor)
            return self._replicas.sealed(held)

        return self._backend.on_device(place)

    def _load(self, stored: StoredState) -> RankState:
        """Tensor by tensor: of moments only this rank's ranges are kept."""
        check_tensors(stored, self._recipe)
        digests = {entry.order: entry.digest for entry in stored.document.tensors}

        def place() -> RankState:
            held = rank_state(self._layout, self._group.rank, self._memory, stored.document.step, digests)
            for entry, tensor in stored.tensors():
                fill(held, self._layout, self._group.rank, self._memory, entry.order, tensor.astype(np.float32))
            return self._replicas.sealed(held)

        return self._backend.on_device(place)


class NoLog:
    """The log of a rank that does not lead."""

    def append(
        self, row: RecordRow, parts: tuple[MicroBatchLeaf, ...], tokens: NDArray[Any], metrics: dict[str, Any]
    ) -> None:
        """Rank 0 writes it."""

    def sync(self) -> None:
        """Nothing to flush."""
