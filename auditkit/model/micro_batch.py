"""One micro-batch on its way through the network, under a plan for little memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from auditkit.model.ops import TensorDigest
from auditkit.numerics.arrays import I64, IntArray
from auditkit.numerics.nonfinite import NonFinite

_LIMIT = 1 << 62


class MicroBatch:
    """One micro-batch under way: its tokens, what was found, and the digests of its gradients."""

    def __init__(self, number: int, tokens: IntArray) -> None:
        self.number, self.size = number, tokens.shape[0]
        self.inputs, self.targets = tokens[:, :-1].reshape(-1), tokens[:, 1:].reshape(-1)
        self.passing: Any = None  # (N, C): what the last layer that was run hands to the next, x or its gradient
        self.losses: list[I64] = []  # exact sums of some rows each, () in units 2^-32; read when all is under way
        self.digests: dict[str, TensorDigest] = {}
        self.caches: list[Any] = []
        self.counts: dict[int, list[int]] = {}  # arrays of each result that is kept, by layer
        self.waiting: list[tuple[str, Any, TensorDigest]] = []  # gradients that are still to be added to the sums

    def key(self, what: object) -> str:
        """What an array of this micro-batch is called on a shelf."""
        return f"{self.number}.{what}"

    def passed(self) -> Any:
        """What is passing, which then is the caller's alone."""
        found, self.passing = self.passing, None
        return found

    def loss_sum(self, read: Iterator[int]) -> int:
        """The exact sum of the losses, whose values come next, units 2^-32. Raises NonFinite."""
        total = sum(islice(read, len(self.losses)))
        if not -_LIMIT <= total < _LIMIT:
            raise NonFinite("an exact sum leaves 62 bits")
        return total
