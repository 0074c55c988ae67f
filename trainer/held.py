"""Whether memory still holds what was made: arrays against the digests that were taken when they were new.

A bit that flips in a parameter or a moment is used by every later step, and the digests of what follows from it fit.
Nobody sees it but those who replay the step, and to them it is the publisher who was wrong. So the arrays of a state
are digested once more after the step has used them and before anything of that step is written.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence

from auditkit.errors import MachineFault
from auditkit.formats.digest import Digest
from auditkit.model.state import State

CHECK_EVERY = 1
"""Steps between two checks by default: what one step has not shown, comparing after a later one cannot show."""

HINT = "test the memory of that machine or device; resume goes on from the last complete state"
_NAMED = 3  # tensors that a message names


def due(step: int, every: int) -> bool:
    """Whether step `step` is checked; `every` 0 means never."""
    return every > 0 and (step + 1) % every == 0


def compare(state: State, before: Sequence[Digest], now: Sequence[Digest], device: str) -> None:
    """MachineFault naming the tensors whose digests, both in the order of the document, are not those of before."""
    keys = sorted((role, name) for name, role, _ in state.tensors())
    changed = [f"{role}/{name}" for (role, name), was, found in zip(keys, before, now, strict=True) if was != found]
    if changed:
        raise MachineFault(
            f"state {state.step}: {named(changed)} has changed since it was made, in the memory of {here(device)}",
            hint=HINT,
        )


def here(device: str) -> str:
    """This machine and a device of it, for messages."""
    return f"{socket.gethostname()}, {device}"


def named(tensors: Sequence[str]) -> str:
    """The first of some tensors, and how many more."""
    more = len(tensors) - _NAMED
    return f"tensor {', '.join(tensors[:_NAMED])}" + (f" and {more} more" if more > 0 else "")
