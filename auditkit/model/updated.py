"""The state after a step, made a piece at a time from the state before and the sums of the gradient.

Nothing of it is in memory: whoever asks for a tensor has it computed, and always gets the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.formats.recipe import Recipe
from auditkit.model.ops import Ops
from auditkit.model.params import ParamSpec, parameter_table
from auditkit.model.piece_sums import PieceSums, pieces_of
from auditkit.model.state import ROLES, HostTensors, State, flat_pieces, recut
from auditkit.numerics.arrays import F32

# (parameter, moments), rounded gradients, whether each decays -> learning rate, and the new (parameter, moments)
Adam = Callable[[tuple[list[F32], list[F32], list[F32]], list[F32], list[bool]], tuple[np.float32, Any]]


@dataclass(frozen=True)
class Update:
    """One AdamW step on any piece of any tensor of a state of host arrays."""

    before: State
    sums: PieceSums
    recipe: Recipe
    ops: Ops
    rows: int  # of a piece of a vocabulary table
    adam: Adam

    def pieces(self, spec: ParamSpec) -> Iterator[tuple[F32, F32, F32]]:
        """Parameter and moments of a tensor after the step, piece by piece, arrays of the ops."""
        pieces = pieces_of(spec, self.rows)
        width = int(np.prod(spec.shape[1:], dtype=np.int64))
        sizes = [(piece.stop - piece.first) * width for piece in pieces]
        roles = [flat_pieces(self.before.role(role), spec.name, sizes) for role in ROLES]
        for piece, p, m, v in zip(pieces, *roles, strict=True):
            shape = (piece.stop - piece.first, *spec.shape[1:])
            found = [self.ops.place(np.ascontiguousarray(array).reshape(shape)) for array in (p, m, v)]
            lists = tuple([array] for array in found)
            _, made = self.adam(lists, [self.sums.rounded(piece.key)], [spec.decayed])  # type: ignore[arg-type]
            yield made[0][0], made[1][0], made[2][0]

    def state(self) -> State:
        """The state after the step."""
        roles = [UpdatedTensors(self, number) for number in range(len(ROLES))]
        return State(self.before.step + 1, roles[0], roles[1], roles[2])


class UpdatedTensors(HostTensors):
    """One role of a state that is made when it is asked for."""

    def __init__(self, update: Update, number: int) -> None:
        self._update: Update | None = update
        self._number = number
        self._instead: Mapping[str, F32] = {}
        self._specs = {spec.name: spec for spec in parameter_table(update.recipe.model)}

    def read_from(self, tensors: Mapping[str, F32]) -> None:
        """From now on read these, which have the same bits: what the step left, the sums above all, may go."""
        self._instead, self._update = tensors, None

    def __getitem__(self, name: str) -> F32:
        if self._update is None:
            return self._instead[name]
        spec = self._specs[name]
        out: F32 = np.empty(spec.shape, np.float32)
        at = 0
        for made in self._update.pieces(spec):
            piece = self._update.ops.host(made[self._number])
            out[at : at + len(piece)] = piece
            at += len(piece)
        return out

    def __iter__(self) -> Iterator[str]:
        return iter(self._specs)

    def __len__(self) -> int:
        return len(self._specs)

    def pieces(self, name: str, sizes: Sequence[int]) -> Iterator[F32]:
        """As HostTensors."""
        if self._update is None:
            return flat_pieces(self._instead, name, sizes)
        ops = self._update.ops
        made = (ops.host(piece[self._number]) for piece in self._update.pieces(self._specs[name]))
        return recut(made, sizes)
