"""Who checks what: the steps of an auditor, a pure function of run, key and beacon that anybody can recompute.

docs/assignment.md has the definition with test vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from auditkit.formats.digest import Digest, check_digest
from auditkit.trust.coverage import Coverage, Status

CONTEXT = "auditkit assignment v1"
RANK_BYTES = 8
DISPUTED, OPEN, SETTLED, NEVER = 0, 1, 254, 255  # levels; between OPEN and SETTLED one for each number of matches
BLOCK = 1 << 20  # steps that are ranked at once: 8 MiB of ranks

Steps = NDArray[np.int64]
Ranked = NDArray[np.uint64]
Levels = NDArray[np.uint8]


def needs(coverage: Coverage, keyid: Digest) -> Levels:
    """How needy each step is for an auditor, (size,) u8, lowest first: disputed, 1 + keys that say MATCH, settled.

    NEVER for a step on which this key has itself said MATCH or MISMATCH: a second word of one key adds nothing.
    """
    levels = (OPEN + np.minimum(coverage.matches, SETTLED - 1 - OPEN)).astype(np.uint8)
    levels[coverage.status == Status.DISPUTED] = DISPUTED
    levels[(coverage.status == Status.COVERED) | (coverage.status == Status.MISMATCH)] = SETTLED
    rows = coverage.rows
    if keyid in rows.keys:
        levels[rows.step[(rows.key == rows.keys.index(keyid)) & rows.decided]] = NEVER
    return levels


class Ranks:
    """The rank of every step for one auditor: 64 bits that nobody knows before the beacon is out.

    One BLAKE3 in derive-key mode of run id, key id and beacon; step N has bytes 8 N to 8 N + 7 of its extended output,
    little-endian. One hash an auditor, not one a step, so that ten million ranks take a fraction of a second.
    """

    def __init__(self, run_id: Digest, keyid: Digest, beacon: bytes) -> None:
        # Run id and key id have 32 bytes each, so no two inputs join to the same bytes whatever the beacon's length.
        identity = bytes.fromhex(check_digest(run_id, "run id")) + bytes.fromhex(check_digest(keyid, "key id"))
        self._output = blake3(identity + beacon, derive_key_context=CONTEXT)

    def of(self, step: int) -> int:
        """The rank of one step."""
        return int.from_bytes(self._output.digest(length=RANK_BYTES, seek=RANK_BYTES * step), "little")

    def block(self, first: int, stop: int) -> Ranked:
        """The ranks of steps `first` to `stop - 1`, (stop - first,) u64."""
        data = self._output.digest(length=RANK_BYTES * (stop - first), seek=RANK_BYTES * first)
        return np.frombuffer(data, "<u8").astype(np.uint64, copy=False)


def assign(ranks: Ranks, size: int, count: int, levels: Levels | None = None) -> Steps:
    """The first `count` steps of a run of `size` steps in the order (level, rank, step): lower levels are needier.

    `levels` is (size,) u8, or None where all steps are equally needy; NEVER leaves a step out, so fewer than `count`
    steps may come back. Memory is that of the levels, of `count` steps and of some blocks.
    """
    pool = _Pool(count)
    for first in range(0, size, BLOCK):
        stop = min(first + BLOCK, size)
        level = np.zeros(stop - first, np.uint8) if levels is None else levels[first:stop]
        pool.add(first, level, ranks.block(first, stop))
    return pool.best()


class _Pool:
    """The best steps so far, and newcomers that may be as good; pruned when there are as many again."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._parts: list[tuple[Levels, Ranked, Steps]] = []
        self._held = 0
        self._last: tuple[Any, Any] | None = None  # level and rank of the worst of `count` steps

    def add(self, first: int, level: Levels, rank: Ranked) -> None:
        """Consider the steps from `first` on."""
        wanted = level != NEVER
        if self._last is not None:
            worst, most = self._last
            wanted &= (level < worst) | ((level == worst) & (rank < most))
        step = first + np.flatnonzero(wanted).astype(np.int64)
        self._parts.append((level[wanted], rank[wanted], step))
        self._held += len(step)
        if self._held > self._count + max(self._count, BLOCK):
            self._prune()

    def best(self) -> Steps:
        """The steps, best first, at most `count`."""
        self._prune()
        return self._parts[0][2] if self._parts else np.zeros(0, np.int64)

    def _prune(self) -> None:
        if not self._parts:
            return
        level, rank, step = (np.concatenate(column) for column in zip(*self._parts, strict=True))
        # lexsort is stable, and of two equals the smaller step always lies first: ties go to it.
        order = np.lexsort((rank, level))[: self._count]
        self._parts = [(level[order], rank[order], step[order])]
        self._held = len(order)
        if self._held == self._count and self._count:
            self._last = (level[order[-1]], rank[order[-1]])
