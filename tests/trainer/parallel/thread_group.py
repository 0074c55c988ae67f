"""Ranks as threads of one process, and a network among them that delays and reorders as its seed says.

What was handed over is read only when all ranks wait for it, so whoever touches it earlier gets a wrong sum; and what
the contract leaves undefined is overwritten.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from trainer.parallel.group import Gathering, Pending

T = TypeVar("T")
SECONDS = 60.0  # after which a rank that does not come ends the test


class Hub:
    """Where the threads meet."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.size, self.seed = size, seed
        self.barrier = threading.Barrier(size, timeout=SECONDS)
        self.given: dict[tuple[int, int], Any] = {}  # by number of the call and rank
        self.log: list[str] = []


class ThreadGroup(Gathering):
    """One rank. `down` brings an array of the back end to the host, `up` a host array into one of the back end."""

    def __init__(
        self,
        hub: Hub,
        rank: int,
        down: Callable[[Any], np.ndarray] = np.asarray,
        up: Callable[[Any, np.ndarray], None] = lambda array, values: np.copyto(array, values),
    ) -> None:
        self.rank, self.size = rank, hub.size
        self._hub, self._down, self._up = hub, down, up
        self._calls = 0
        self._chance = random.Random(hub.seed * 1000 + rank)

    def reduce_scatter(self, parts: Sequence[Any]) -> Pending:
        def work(all_parts: list[Any]) -> None:
            if parts[self.rank].size:
                mine = [self._down(parts[self.rank]) for parts in all_parts]
                self._chance.shuffle(mine)
                total = np.zeros_like(mine[0])
                for part in mine:
                    total = total + part
                self._after.append(lambda: self._up(parts[self.rank], total))
            for rank, part in enumerate(parts):
                if rank != self.rank and part.size:
                    self._after.append(lambda part=part: self._up(part, np.full(part.shape, -0x5A5A5A5A)))

        return self._start("reduce", parts, work)

    def all_gather_ranges(self, ranges: Sequence[Any]) -> Pending:
        def work(all_ranges: list[Any]) -> None:
            for rank in self._shuffled():
                if rank != self.rank and ranges[rank].size:
                    values = np.array(self._down(all_ranges[rank][rank]))
                    self._after.append(lambda rank=rank, values=values: self._up(ranges[rank], values))

        return self._start("gather", ranges, work)

    def all_to_all(self, parts: Sequence[Any], into: Sequence[Any]) -> Pending:
        def work(all_parts: list[Any]) -> None:
            for rank in self._shuffled():
                values = np.array(self._down(all_parts[rank][self.rank]))
                assert values.size == into[rank].size, "lengths differ"
                if values.size:
                    self._after.append(lambda rank=rank, values=values: self._up(into[rank], values))

        return self._start("exchange", parts, work)

    def gather_bytes(self, data: bytes) -> list[bytes]:
        found: list[bytes] = []
        self._start("bytes", bytes(data), found.extend).wait()
        return found

    def doing(self, what: str) -> None:
        self._hub.log.append(f"{self.rank}: {what}")

    def close(self) -> None:
        self.barrier()

    def _shuffled(self) -> list[int]:
        return self._chance.sample(range(self.size), self.size)

    def _start(self, kind: str, given: Any, work: Callable[[list[Any]], None]) -> Pending:
        self._calls += 1
        number = self._calls
        self._hub.given[number, self.rank] = (kind, given)
        return _Later(self, number, kind, work)

    def _finish(self, number: int, kind: str, work: Callable[[list[Any]], None]) -> None:
        if self._hub.seed:
            time.sleep(self._chance.random() * 1e-3)
        hub = self._hub
        hub.barrier.wait()  # all have called
        said = [hub.given[number, rank] for rank in range(self.size)]
        assert {other for other, _ in said} == {kind}, "the ranks make different calls"
        self._after: list[Callable[[], None]] = []
        work([given for _, given in said])
        hub.barrier.wait()  # all have read
        self._chance.shuffle(self._after)
        for write in self._after:
            write()


class _Later:
    def __init__(self, group: ThreadGroup, *work: Any) -> None:
        self._group, self._work, self._over = group, work, False

    def wait(self) -> None:
        assert not self._over, "waited for twice"
        self._over = True
        self._group._finish(*self._work)


def play(size: int, function: Callable[[ThreadGroup], T], *, seed: int = 0, **options: Any) -> list[T]:
    """function(group) on every rank at the same time: what each returns. Raises what the lowest rank raised."""
    hub = Hub(size, seed)

    def leave(done: Future[T]) -> None:
        if done.exception() is not None:
            hub.barrier.abort()  # or the others would wait

    with ThreadPoolExecutor(size) as pool:
        ranks = [pool.submit(function, ThreadGroup(hub, rank, **options)) for rank in range(size)]
        for rank in ranks:
            rank.add_done_callback(leave)
    errors = [error for rank in ranks if (error := rank.exception()) is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [rank.result() for rank in ranks]
