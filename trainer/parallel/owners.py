"""States of several ranks: each rank writes whole shards, in the background, of tensors that the others send it.

Shard i is written by rank i mod N, so that each has its share of a state in memory, of the compression and of the disk.
What a rank has written it tells between two steps; when all have, the leading rank makes the state complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditkit.formats.state import StateDocument, StateIndex
from auditkit.formats.tensors import TensorEntry
from trainer.background import Background
from trainer.parallel.agree import Caught, agree
from trainer.parallel.group import Array, Group
from trainer.parallel.layout import Layout, Piece
from trainer.parallel.memory import Memory
from trainer.parallel.state import RankState
from trainer.snapshots import Landing, Snapshot
from trainer.state_files import complete, cut, temporary_of, write_shards, writer_threads

Call = Callable[[], None]
Shard = Sequence[TensorEntry]
Held = dict[tuple[str, str], NDArray[Any]]

_DONE, _NOT_YET = b"-", b""


@dataclass(frozen=True)
class _Begun:
    """A state that is being written."""

    folder: Path
    temporary: Path
    document: StateDocument
    after: Call


class OwnedStates:
    """What a rank writes of the states of a run; all ranks make the same calls in the same order."""

    def __init__(self, group: Group, layout: Layout, memory: Memory, landing: Landing, neighbours: int) -> None:
        """neighbours: ranks on this machine, which share its processors."""
        self._group, self._layout, self._memory, self._landing = group, layout, memory, landing
        self._threads = writer_threads(neighbours)
        self._writing: Background[bytes] = Background("state")
        self._begun: _Begun | None = None
        self._said = _NOT_YET
        self._completing = False  # all shards are there, and the leading rank writes what names them

    def begin(self, held: Snapshot, document: StateDocument, folder: Path, before: Call, after: Call) -> None:
        """Begin to write the shards of this rank, whose tensors it holds (`gather`), nothing else being written."""
        token = self._group.gather_bytes(b"%d" % os.getpid())[0].decode("ascii")
        self._begun = begun = _Begun(folder, temporary_of(folder, token), document, after)
        groups = {number: shard for number, shard in enumerate(cut(document.tensors)) if self._owner(number) == 0}

        def work() -> bytes:
            before()
            held.wait()
            shards = write_shards(begun.temporary, groups, held.tensors, threads=self._threads, stop=self._writing.stop)
            return StateIndex(tuple(shards.values())).encode() if shards else _DONE

        self._said, self._completing = _NOT_YET, False
        self._writing.begin(work)

    def advance(self) -> None:
        """Tell the others how far this rank is; once all shards are there the leading rank makes the state complete.

        Raises on every rank what one of them has met.
        """
        if self._begun is None:
            return
        caught = Caught()
        with caught.catching():
            self._landing.tidy()
            if self._writing.ended:
                self._said = self._writing.result()
        said = agree(self._group, caught, self._said)
        if not all(said):
            return
        if self._completing:
            self._begun = None
            return
        self._completing = True
        if self._group.rank == 0:
            self._complete(self._begun, said)

    def settle(self) -> None:
        """Wait until nothing is being written. Raises as `advance`."""
        while self._begun is not None:
            self._writing.wait()
            self.advance()

    def drop(self, *, finish: bool) -> None:
        """Let this rank come to the end of what it writes, or break it off."""
        self._writing.drop(finish=finish)

    def _complete(self, begun: _Begun, said: Sequence[bytes]) -> None:
        shards = [shard for text in said if text != _DONE for shard in StateIndex.parse(text).files]
        shards.sort(key=lambda shard: shard.path)

        def work() -> bytes:
            complete(begun.folder, begun.temporary, begun.document, shards)
            begun.after()
            return _DONE

        self._said = _NOT_YET
        self._writing.begin(work)

    def _owner(self, number: int) -> int:
        """How many ranks above this one is the owner of a shard: 0 for an own one."""
        return (number - self._group.rank) % self._group.size

    def gather(self, state: RankState, document: StateDocument) -> Snapshot:
        """The tensors of this rank's shards as they are now, nothing else being written.

        Shards go round by round, one a rank, so that what is under way is bounded.
        """
        self._landing.begin()
        shards = cut(document.tensors)
        held: Held = {}
        for first in range(0, len(shards), self._group.size):
            around = shards[first : first + self._group.size]
            own = around[self._group.rank] if self._group.rank < len(around) else []
            held |= self._moments(state, around, own)
            for entry in own:
                if entry.role == "param":  # every rank has them all; a step overwrites them
                    held[entry.order] = self._landing.copy(state.params[entry.name])
        return Snapshot(held, self._landing.end())

    def _moments(self, state: RankState, around: Sequence[Shard], own: Shard) -> Held:
        """Send each rank what this one holds of the moments in its shard; those of the own shard, put together."""
        size = self._group.size
        parts = [self._joined(state, around[rank] if rank < len(around) else []) for rank in range(size)]
        lengths = [sum(piece.stop - piece.first for _, piece in self._pieces(rank, own)) for rank in range(size)]
        into = [self._memory.zeros(length, np.float32) for length in lengths]
        self._group.all_to_all(parts, into).wait()
        del parts
        whole = {entry.order: self._landing.room(entry.shape) for entry in own if entry.role != "param"}
        for rank, array in enumerate(into):
            at = 0
            for entry, piece in self._pieces(rank, own):
                count = piece.stop - piece.first
                target = whole[entry.order].reshape(-1)[piece.first : piece.stop]
                self._landing.fill(target, array[at : at + count])
                at += count
        return whole

    def _joined(self, state: RankState, shard: Shard) -> Array:
        """What this rank holds of a shard's moments, one after the other."""
        pieces = list(self._pieces(self._group.rank, shard))
        line = self._memory.zeros(sum(piece.stop - piece.first for _, piece in pieces), np.float32)
        moments, at = {"adam_m": state.adam_m, "adam_v": state.adam_v}, 0
        number = {piece.slot.name: index for index, piece in enumerate(self._layout.pieces[self._group.rank])}
        for entry, piece in pieces:
            count = piece.stop - piece.first
            self._memory.copy(line[at : at + count], moments[entry.role][number[piece.slot.name]])
            at += count
        return line

    def _pieces(self, rank: int, shard: Shard) -> list[tuple[TensorEntry, Piece]]:
        """What a rank holds of the moments in a shard, in its order."""
        held = {piece.slot.name: piece for piece in self._layout.pieces[rank]}
        return [(entry, held[entry.name]) for entry in shard if entry.role != "param" and entry.name in held]
