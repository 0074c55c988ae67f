"""Who computes the steps of a run and holds its state: this process alone, or several ranks (`trainer.parallel`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from auditkit.formats.cursor import START, Cursor
from auditkit.formats.digest import Digest
from auditkit.formats.recipe import Recipe
from auditkit.formats.state import StateDocument
from auditkit.model.state import ROLES, State, StateDigests, document, document_of, state_digests
from auditkit.model.step import NonFinite, StepResult
from auditkit.replay.backend import Backend
from trainer.background import Background
from trainer.held import CHECK_EVERY, compare, due
from trainer.snapshots import Snapshot, landing_of
from trainer.state_files import complete, cut, temporary_of, write_shards, writer_threads
from trainer.states import StoredState, load_state


class HasStep(Protocol):
    """A state, or a part of one: all that the training loop looks at is how many steps it has behind it."""

    @property
    def step(self) -> int: ...


S = TypeVar("S", bound=HasStep)


class Runner(Protocol[S]):
    """What a training asks for. Where there are several ranks, all of them make the same calls in the same order."""

    @property
    def leads(self) -> bool:
        """Whether this process writes the log and talks to people: one of the ranks does."""
        ...

    def self_test(self) -> None:
        """MachineFault for a machine that would publish what nobody else can repeat."""
        ...

    def first(self, make: Callable[[], State]) -> S:
        """State 0, which `make` makes."""
        ...

    def load(self, stored: StoredState) -> S:
        """The state in a folder. Raises BadArtifact or Unavailable."""
        ...

    def step(self, state: S, tokens: NDArray[Any], asked: bool) -> tuple[S, StepResult, Digest]:
        """The next state, the step's result, the next state's root. asked: whether this process was asked to stop."""
        ...

    def stops(self, asked: bool) -> bool:
        """Whether to stop before the next step."""
        ...

    def root(self, state: S) -> Digest:
        """The root of a state."""
        ...

    def write(self, state: S, folder: Path, before: Callable[[], None], after: Callable[[], None]) -> None:
        """Begin to write a state beside the training, which gets its folder name when it is complete.

        Waits for the one before. `before` is called first, `after` when the state is complete, on the rank that leads
        and in another thread. Raises what `advance` does.
        """
        ...

    def advance(self) -> None:
        """Do between two steps what the state that is being written needs, without waiting for it.

        Raises what has gone wrong with it, on every rank: Unsupported or Unavailable where the disk refuses.
        """
        ...

    def settle(self) -> None:
        """Wait until nothing is being written any more. Raises what `advance` does."""
        ...

    def drop(self, *, finish: bool) -> None:
        """The training ends with an error: let this process finish what it writes, or break it off."""
        ...


class OneProcess:
    """A run in this process, on one back end.

    `cursor` is where the recipe's steps begin in their data; memory is checked every so many steps, 0: never.
    """

    leads = True

    def __init__(
        self, backend: Backend, recipe: Recipe, cursor: Cursor = START, *, check_every: int = CHECK_EVERY
    ) -> None:
        self._backend, self._recipe, self._cursor, self._check_every = backend, recipe, cursor, check_every
        self._writing: Background[None] = Background("state")
        self._landing = landing_of(backend.ops, copies=sys.maxsize)  # the next step has the same arrays
        self._made: tuple[State, StateDigests] | None = None  # the last step's

    def self_test(self) -> None:
        """As Runner.self_test."""
        self._backend.self_test()

    def first(self, make: Callable[[], State]) -> State:
        """As Runner.first."""
        return self._placed(make())

    def load(self, stored: StoredState) -> State:
        """As Runner.load."""
        return self._placed(load_state(stored, self._recipe))

    def step(self, state: State, tokens: NDArray[Any], asked: bool) -> tuple[State, StepResult, Digest]:
        """As Runner.step."""
        try:
            new, result = self._backend.step(state, tokens, self._recipe)
        except NonFinite:
            self._check(state, due=self._check_every > 0)  # perhaps a wrong bit is why
            raise
        # A skip, too, may come from a wrong bit.
        self._check(state, due=self._check_every > 0 if result.skipped else due(state.step, self._check_every))
        found = self._digests(new)
        self._made = new, found
        return new, result, found.root(new.step)

    def stops(self, asked: bool) -> bool:
        """As Runner.stops."""
        return asked

    def root(self, state: State) -> Digest:
        """As Runner.root."""
        return self._document(state).root()

    def write(self, state: State, folder: Path, before: Callable[[], None], after: Callable[[], None]) -> None:
        """As Runner.write. A step makes new arrays, so those of this state stay as they are."""
        self.settle()
        found = self._document(state)
        snapshot = self._backend.on_device(lambda: self._snapshot(state))
        stop = self._writing.stop

        def work() -> None:
            before()
            snapshot.wait()
            temporary = temporary_of(folder, str(os.getpid()))
            groups = dict(enumerate(cut(found.tensors)))
            shards = write_shards(temporary, groups, snapshot.tensors, threads=writer_threads(), stop=stop)
            complete(folder, temporary, found, shards.values())
            after()

        self._writing.begin(work)

    def advance(self) -> None:
        """As Runner.advance."""
        self._landing.tidy()
        if self._writing.ended:
            self._writing.result()

    def settle(self) -> None:
        """As Runner.settle."""
        self._writing.wait()
        self.advance()

    def drop(self, *, finish: bool) -> None:
        """As Runner.drop."""
        self._writing.drop(finish=finish)

    def _snapshot(self, state: State) -> Snapshot:
        landing = self._landing
        landing.begin()
        tensors = {(role, name): landing.take(array) for name, role, array in state.tensors()}
        return Snapshot(tensors, landing.end())

    def _placed(self, state: State) -> State:
        placed = self._backend.place(state)
        self._made = placed, state_digests(state, self._recipe, cursor=self._cursor)
        self._check(placed, due=self._check_every > 0)
        return placed

    def _digests(self, state: State) -> StateDigests:
        return state_digests(state, self._recipe, self._backend.ops, cursor=self._cursor)

    def _check(self, state: State, *, due: bool) -> None:
        """MachineFault if memory no longer holds the last state as it was made."""
        if due and self._made is not None and self._made[0] is state:
            compare(state, self._made[1].found, self._digests(state).found, self._backend.device)

    def _document(self, state: State) -> StateDocument:
        """The document, from the digests of the step that made the state."""
        if self._made is None or self._made[0] is not state:
            return document(state, self._recipe, self._backend.ops, cursor=self._cursor)
        keys = sorted((role, name) for role in ROLES for name in state.params)
        found = dict(zip(keys, self._made[1].found, strict=True))
        return document_of(state.step, self._recipe, found, cursor=self._cursor)
