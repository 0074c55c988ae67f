"""What one rank holds of a state: all parameters, and its own parts of parameters and moments."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from auditkit.numerics.arrays import F32
from trainer.parallel.digests import Found, Key
from trainer.parallel.group import Array
from trainer.parallel.layout import Layout
from trainer.parallel.memory import Memory

STATE_ROLES = ("param", "adam_m", "adam_v")


@dataclass(frozen=True)
class RankState:
    """What one rank holds of a state. A step overwrites `line`; moments and `own` are new arrays each time.

    line            all parameters, one flat array (`layout`); `params` are its tensors
    own             this rank's pieces of the parameters
    adam_m, adam_v  this rank's pieces of the moments
    digests         of every tensor of the state, by role and name
    said            what this rank said of own, adam_m, adam_v when they were new (`digests.own_digests`)
    """

    step: int
    line: Array
    params: dict[str, F32]
    own: list[F32]
    adam_m: list[F32]
    adam_v: list[F32]
    digests: Found = field(repr=False)
    said: bytes = field(default=b"", repr=False)


def rank_state(layout: Layout, rank: int, memory: Memory, step: int, digests: Found) -> RankState:
    """A state of zeros, to be filled by `fill`."""
    line = memory.zeros(layout.elements, np.float32)
    params = {slot.name: line[slot.begin : slot.end].reshape(slot.shape) for slot in layout.slots}
    own, adam_m, adam_v = (
        [memory.zeros(piece.stop - piece.first, np.float32) for piece in layout.pieces[rank]] for _ in range(3)
    )
    return RankState(step, line, params, own, adam_m, adam_v, digests)


def fill(state: RankState, layout: Layout, rank: int, memory: Memory, key: Key, tensor: F32) -> None:
    """Take over one tensor, a NumPy array: all of a parameter, of a moment what is this rank's."""
    role, name = key
    if role == "param":
        memory.copy(state.params[name], memory.place(tensor))
    held = {"param": state.own, "adam_m": state.adam_m, "adam_v": state.adam_v}[role]
    flat = np.ascontiguousarray(tensor).reshape(-1)
    for piece, array in zip(layout.pieces[rank], held, strict=True):
        if piece.slot.name == name:
            memory.copy(array, memory.place(flat[piece.first : piece.stop]))
