"""Back ends of machines that calculate wrongly, now and then or always."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from auditkit.errors import MachineFault
from auditkit.formats.recipe import Recipe
from auditkit.model.composed import ComposedOps
from auditkit.model.pieces_step import Room
from auditkit.model.state import State
from auditkit.model.step import StepResult
from auditkit.numerics import reference
from auditkit.numerics.arrays import IntArray
from auditkit.replay.backend import Backend


class FlippedOps(ComposedOps):
    """The reference ops; when `armed`, the next call of `name` flips one bit of its first result."""

    def __init__(self, name: str, *, always: bool = False) -> None:
        self._op = name
        self.always = always
        self.armed = always

    def __getattr__(self, name: str) -> Any:
        op = getattr(reference, name)
        if name != self._op:
            return op

        def flipped(*arguments: Any, **named: Any) -> Any:
            result = op(*arguments, **named)
            if not self.armed:
                return result
            self.armed = self.always
            first = result[0][0] if isinstance(result[0], list) else result[0]  # of an op over lists: the first tensor
            changed = np.array(first)
            changed.reshape(-1).view(np.uint32)[0] ^= 1 << 20  # the exact products round away what is lower
            return ([changed, *result[0][1:]] if isinstance(result[0], list) else changed, *result[1:])

        return flipped


class FlakyBackend(Backend):
    """Flips one bit in the first replay and never again; its self-test passes."""

    def step(
        self,
        state: State,
        tokens: IntArray,
        recipe: Recipe,
        *,
        on_micro_batch: Callable[[int], None] | None = None,
        work_key: bytes | None = None,
        room: Room | None = None,
    ) -> tuple[State, StepResult]:
        """Arm the ops for the replay that the caller reports progress of, which is the first."""
        if on_micro_batch is not None:
            self.ops.armed = True  # type: ignore[attr-defined]
        return super().step(state, tokens, recipe, on_micro_batch=on_micro_batch, work_key=work_key, room=room)


class FaultyBackend(Backend):
    """A back end whose self-test fails from the given call on; it is used before replays and before a mismatch."""

    fails_from = 0
    tested = 0

    def self_test(self) -> None:
        """Fail when its time has come."""
        count = type(self).tested
        type(self).tested += 1
        if count >= self.fails_from:
            raise MachineFault("add: 1 + 1 is not 2 here")


class NoSelfTest(Backend):
    """A back end that believes in itself."""

    def self_test(self) -> None:
        """Nothing."""
