"""Tensors of a state in files of this machine: those that a step reads many times, or the next step begins from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np

from auditkit.model.state import READ_ELEMENTS, HostTensors, flat_pieces, recut
from auditkit.numerics.arrays import F32
from auditkit.store.spill import Spill


class SpilledTensors(HostTensors):
    """One role of a state, written to a spill folder a few elements at a time. Reading raises Damaged."""

    def __init__(self, spill: Spill, role: str, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._spill, self._role, self._shapes = spill, role, shapes

    def take(self, tensors: Mapping[str, F32]) -> SpilledTensors:
        """Write the tensors of another place; returns this."""
        for name, shape in self._shapes.items():
            for number, piece in enumerate(flat_pieces(tensors, name, _sizes(shape))):
                self._spill.put(self._key(name, number), [piece])
        return self

    def __getitem__(self, name: str) -> F32:
        shape = self._shapes[name]
        out: F32 = np.empty(prod(shape), np.float32)
        at = 0
        for piece in self._pieces(name):
            out[at : at + piece.size] = piece
            at += piece.size
        return out.reshape(shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._shapes)

    def __len__(self) -> int:
        return len(self._shapes)

    def pieces(self, name: str, sizes: Sequence[int]) -> Iterator[F32]:
        """As HostTensors."""
        return recut(self._pieces(name), sizes)

    def _pieces(self, name: str) -> Iterator[F32]:
        for number in range(len(_sizes(self._shapes[name]))):
            held = self._spill.get(self._key(name, number))
            assert held is not None
            yield held[0]

    def _key(self, name: str, number: int) -> str:
        return f"{self._role}/{name}/{number}"


def _sizes(shape: tuple[int, ...]) -> list[int]:
    size = prod(shape)
    return [min(READ_ELEMENTS, size - at) for at in range(0, size, READ_ELEMENTS)]
