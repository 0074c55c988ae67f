"""Who computes the steps of a run and holds its state: this process alone, or several ranks (`trainer.parallel`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from numpy.typing import NDArray

from auditkit.formats.cursor import START, Cursor
from auditkit.formats.digest import Digest
from auditkit.formats.recipe import Recipe
from auditkit.formats.state import StateDocument
from auditkit.model.state import State, document, state_digests
from auditkit.model.step import StepResult
from auditkit.replay.backend import Backend
from trainer.states import StoredState, load_state, write_state


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

    def write(self, state: S, folder: Path) -> None:
        """Write a state and give it its folder name when it is complete."""
        ...


class OneProcess:
    """A run in this process, on one back end; `cursor` is where the recipe's steps begin in their data."""

    leads = True

    def __init__(self, backend: Backend, recipe: Recipe, cursor: Cursor = START) -> None:
        self._backend, self._recipe, self._cursor = backend, recipe, cursor

    def self_test(self) -> None:
        """As Runner.self_test."""
        self._backend.self_test()

    def first(self, make: Callable[[], State]) -> State:
        """As Runner.first."""
        return self._backend.place(make())

    def load(self, stored: StoredState) -> State:
        """As Runner.load."""
        return self._backend.place(load_state(stored, self._recipe))

    def step(self, state: State, tokens: NDArray[Any], asked: bool) -> tuple[State, StepResult, Digest]:
        """As Runner.step."""
        new, result = self._backend.step(state, tokens, self._recipe)
        return new, result, state_digests(new, self._recipe, self._backend.ops, cursor=self._cursor).root(new.step)

    def stops(self, asked: bool) -> bool:
        """As Runner.stops."""
        return asked

    def root(self, state: State) -> Digest:
        """As Runner.root."""
        return self._document(state).root()

    def write(self, state: State, folder: Path) -> None:
        """As Runner.write."""
        write_state(folder, self._backend.host(state), self._document(state))

    def _document(self, state: State) -> StateDocument:
        return document(state, self._recipe, self._backend.ops, cursor=self._cursor)
