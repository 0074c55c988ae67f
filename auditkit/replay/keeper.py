"""What a long step has found so far, kept on the disk for a process that goes on where this one was killed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from auditkit.errors import BadArtifact, Unsupported
from auditkit.formats.leaves import LEAF_BYTES, MicroBatchLeaf, parse_leaves
from auditkit.model.shelf import Moved, Shelf
from auditkit.replay.predict import PROCESSOR
from auditkit.store.progress import Clock, Progress
from auditkit.store.spill import Spill

FIRST_SECONDS = 20.0  # before anything is kept: what is lost then is soon made again
SHARE = 20.0  # times as long as it took to keep it, before it is kept again


class Keeper:
    """Keeps leaves and sums with a spill folder; `moved` is that folder for arrays of the ops.

    in_place: the sums lie there anyway, so keeping them costs nothing. size: bytes of what is kept otherwise, which are
    the keys of which `apart` says that they lie elsewhere.
    """

    def __init__(
        self,
        spill: Spill,
        moved: Moved,
        progress: Progress,
        clock: Clock,
        *,
        in_place: bool,
        size: int = 0,
        apart: Callable[[str], bool] = lambda key: True,
    ) -> None:
        self._spill, self._moved, self._progress, self._clock = spill, moved, progress, clock
        self._in_place, self._apart = in_place, apart
        first = max(FIRST_SECONDS, SHARE * size / PROCESSOR.disk)  # as rare as later ones, by what it is likely to take
        self._next = 0.0 if in_place else clock.now() + first

    def load(self, keys: Sequence[str], shelf: Shelf) -> tuple[MicroBatchLeaf, ...]:
        """As the Keeper of auditkit.model. Raises Damaged."""
        if not self._spill.note:
            return ()
        try:
            data = bytes.fromhex(self._spill.note)
            leaves = parse_leaves(data, len(data) // LEAF_BYTES)
        except (ValueError, BadArtifact):
            leaves = ()
        if not leaves or set(self._spill.keys()) != set(keys):  # kept under another plan
            for key in self._spill.keys():
                self._spill.drop(key)
            return ()
        for key in self._written(keys):
            shelf.put(key, self._moved.get(key) or [])
        self._progress.note(f"going on after {len(leaves)} micro-batches that were done before")
        return leaves

    def due(self) -> bool:
        """As the Keeper of auditkit.model."""
        return self._in_place or self._clock.now() >= self._next

    def save(self, leaves: Sequence[MicroBatchLeaf], keys: Sequence[str], shelf: Shelf) -> None:
        """As the Keeper of auditkit.model. Unsupported: the disk refuses what the plan itself puts there."""
        began = self._clock.now()
        try:
            for key in self._written(keys):
                self._moved.put(key, shelf.get(key) or [])
            self._spill.commit(b"".join(leaf.encode() for leaf in leaves).hex())
        except (Unsupported, MemoryError) as error:
            if self._in_place:
                raise
            self._give_up(keys, error.message if isinstance(error, Unsupported) else "too little memory for a copy")
            return
        ended = self._clock.now()
        self._next = ended + SHARE * (ended - began)

    def _written(self, keys: Sequence[str]) -> list[str]:
        """The keys that do not lie in the folder anyway."""
        return [] if self._in_place else [key for key in keys if self._apart(key)]

    def _give_up(self, keys: Sequence[str], why: str) -> None:
        """Leave the disk to others; what was committed before can still be gone on from."""
        self._next = float("inf")
        for key in self._written(keys):
            self._spill.drop(key)
        self._progress.note(f"nothing more is kept to go on from: {why}")
