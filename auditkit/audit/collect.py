"""Attestations of many auditors about one run, from files, folders and logs: verified once, none silently dropped."""

from __future__ import annotations

import collections
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import cached_property
from multiprocessing import get_context
from multiprocessing.context import BaseContext
from pathlib import Path

import numpy as np

from auditkit.audit import examine
from auditkit.audit.candidates import Batch
from auditkit.audit.checked import Checked, Memory, remember, scope
from auditkit.audit.examine import Examined, Examiner, Refused
from auditkit.audit.record_table import RecordTable
from auditkit.errors import Unsupported
from auditkit.formats.digest import Digest
from auditkit.store.children import shielded_from_interrupts
from auditkit.store.progress import Progress, Silent
from auditkit.trust import clock
from auditkit.trust.keys import PublicKey
from auditkit.trust.rows import Rows

POOL_FROM = 4_000  # attestations; below, the start of other processes takes longer than the work
MAX_PROCESSES = 16
_PARTICULAR = re.compile(r"\b[0-9a-f]{8,}\b|[0-9][0-9,.:TZ-]*")  # digests; numbers, times
ALIKE = ", and the like"  # behind one of several reasons of one kind
SAVE_EVERY = 65_536  # newly verified attestations


@dataclass(frozen=True, eq=False)
class Collection:
    """What was collected: verified rows, what was refused (listed up to a limit; `refused_count` is all), and how.

    `verified` were verified now and `remembered` before; `repeats` are further copies of an envelope; `summaries` are
    Simple Verification Results, which do not count.
    """

    rows: Rows
    refused: list[Refused]
    refused_count: int
    verified: int
    remembered: int
    repeats: int
    summaries: int

    @property
    def reasons(self) -> list[tuple[str, int]]:
        """Why attestations were refused and how many, the commonest first; of reasons that differ in digests, numbers
        or times only, the first.
        """
        groups: dict[str, collections.Counter[str]] = {}
        for reason in (refused.reason for refused in self.refused):
            groups.setdefault(_PARTICULAR.sub("", reason), collections.Counter())[reason] += 1
        found = [(min(alike) + ALIKE * (len(alike) > 1), alike.total()) for alike in groups.values()]
        listed = sorted(found, key=lambda item: (-item[1], item[0]))
        more = self.refused_count - len(self.refused)
        return [*listed, ("not listed one by one", more)] if more else listed


@dataclass
class Collector:
    """Collects for one run; `folder` remembers what was verified (None: nothing is remembered), `now` is Unix time."""

    run_id: Digest
    records: RecordTable
    keys: Mapping[str, PublicKey]
    now: float
    folder: Path | None = None
    progress: Progress = field(default_factory=Silent)
    processes: int | None = None  # None: as many as there are processors, if there is enough to do; 1: only this one

    @cached_property
    def _scope(self) -> Digest:
        return scope(self.run_id)

    def collect(self, batches: Iterable[Batch], expected: int) -> Collection:
        """Examine all batches, about `expected` attestations. Unsupported: a process of ours was ended."""
        parts: list[Checked] = []
        fresh: list[Checked] = []  # verified, not yet remembered
        refused: list[Refused] = []
        count = verified = waiting = repeats = summaries = 0
        self.progress.start("verify", expected, "attestations")
        try:
            for batch, found in self._examined(batches, expected):
                parts += [found.remembered, found.verified]
                fresh.append(found.verified)
                verified += len(found.verified)
                refused += found.refused[: max(0, examine.REFUSED_LISTED - len(refused))]
                count += found.refused_count
                repeats += found.repeats
                summaries += found.summaries
                self.progress.advance(batch.count)
                waiting += len(found.verified)
                if waiting >= SAVE_EVERY:
                    fresh, waiting = self._remember(fresh), 0
        finally:  # an interrupted collection goes on where it was
            self._remember(fresh)
            self.progress.finish()
        total = sum(map(len, parts))
        unique = Checked.join(parts).unique()
        listed = len(refused)
        rows = self._in_time(unique, refused)
        count += len(refused) - listed
        repeats += total - len(unique)
        return Collection(rows, refused, count, verified, total - verified, repeats, summaries)

    def _in_time(self, checked: Checked, refused: list[Refused]) -> Rows:
        """The rows that were not finished in the future, which no honest clock says; the others are refused."""
        late = checked.rows.finished > clock.latest(self.now)
        for index in np.flatnonzero(late).tolist():
            where = f"envelope {checked.envelope[index].tobytes().hex()}"
            refused.append(Refused(where, clock.refusal(int(checked.rows.finished[index])).message))
        return checked.rows.take(~late).compact()

    def _remember(self, fresh: list[Checked]) -> list[Checked]:
        """Keep what was verified, if there is a place; what could not be kept is verified again next time."""
        new = Checked.join(fresh)
        if self.folder is not None and len(new):
            try:
                remember(self.folder, self._scope, new)
            except Unsupported as error:
                self.progress.note(f"what was verified is not remembered: {error.message}")
        return []

    def _examined(self, batches: Iterable[Batch], count: int) -> Iterator[tuple[Batch, Examined]]:
        processes = self.processes or min(MAX_PROCESSES, _processors())
        if processes == 1 or (count < POOL_FROM and self.processes is None):
            memory = Memory.load(self.folder, self._scope, self.records, list(self.keys))
            own = Examiner(self.run_id, self.records, self.keys, memory)
            return ((batch, own.examine(batch)) for batch in batches)
        return self._in_pool(batches, processes)

    def _in_pool(self, batches: Iterable[Batch], processes: int) -> Iterator[tuple[Batch, Examined]]:
        """In the order of the batches; only a few are under way at once, for those of a log hold their bytes."""
        pool = ProcessPoolExecutor(
            processes,
            mp_context=_context(),
            initializer=examine.start,
            initargs=(self.run_id, self.records, dict(self.keys), self.folder, self._scope),
        )
        under_way: collections.deque[tuple[Batch, Future[Examined]]] = collections.deque()
        try:
            for batch in batches:
                with shielded_from_interrupts():  # the first ones start the processes
                    future = pool.submit(examine.examine, batch)
                under_way.append((batch, future))
                if len(under_way) > 3 * processes:
                    first, future = under_way.popleft()
                    yield first, future.result()
            for first, future in under_way:
                yield first, future.result()
        except BrokenProcessPool as error:
            raise Unsupported(
                "a process that verified attestations was ended", hint="is there enough memory?"
            ) from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _context() -> BaseContext:
    """How other processes are started: not as forks of this one, whose libraries have threads.

    On Linux as forks of a process that has loaded what they need and does nothing else: each would load it for itself,
    one after the other, which takes half a second each.
    """
    if sys.platform != "linux":
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(["__main__", examine.__name__])
    return context


def _processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
