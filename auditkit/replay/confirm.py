"""The second replay before a mismatch: a machine that disagrees with itself says nothing about the publisher."""

from __future__ import annotations

from auditkit.errors import MachineFault
from auditkit.formats.cursor import START, Cursor
from auditkit.formats.recipe import Recipe
from auditkit.model.state import State, document
from auditkit.numerics.arrays import IntArray
from auditkit.replay.backend import Backend
from auditkit.replay.outcome import Computed, Stopped, replay

HINT = "this says nothing about the publisher; check the memory and cooling of this machine, and try another one"


def confirm(
    backend: Backend,
    recipe: Recipe,
    state_before: str,
    state: State,
    tokens: IntArray,
    first: Computed | Stopped,
    *,
    work_key: bytes | None = None,
    cursor: Cursor = START,
) -> None:
    """Repeat a replay that did not give what the record says.

    `state_before` is the root of `state`, which is hashed again: had its memory gone bad since it was checked, both
    replays would agree with each other and accuse the publisher. `cursor` is where the recipe's steps begin in their
    data.

    MachineFault: the self-test fails, the start state has changed in memory, or the two replays differ.
    """
    backend.self_test()
    held = document(state, recipe, backend.ops, cursor=cursor).root()
    if held != state_before:
        message = f"the start state changed in memory while it was in use: {state_before} became {held}"
        raise MachineFault(message, hint=HINT)
    second = replay(backend, state, tokens, recipe, work_key=work_key, cursor=cursor)
    if not second.same_as(first):
        message = f"two replays of the same step differ: {first.describe()} and {second.describe()}"
        raise MachineFault(message, hint=HINT)
