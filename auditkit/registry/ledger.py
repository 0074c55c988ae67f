"""How much of each run is covered, kept in memory and brought up to date from the database when somebody asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from auditkit.registry.database import PAGE, Database, Fact
from auditkit.registry.runs import KnownRun, Runs
from auditkit.trust.coverage import Coverage, Voters, cover
from auditkit.trust.rows import Entry, Rows
from auditkit.verdict import Verdict

# Coverage and pages may take a tenth of the time each: what took 2 s is made again after 20 s at the earliest.
SHARE = 10


@dataclass(frozen=True)
class Covered:
    """The coverage of a run by the attestations at positions below `position`."""

    run: KnownRun
    coverage: Coverage
    position: int


class Ledger:
    """The coverages of the runs under their policies (`voters`, by run id); thread-safe."""

    def __init__(
        self,
        database: Database,
        runs: Runs,
        voters: Mapping[str, Voters],
        *,
        now: Callable[[], float],
        seconds: float,
    ) -> None:
        self._database, self._voters, self._now, self._seconds = database, voters, now, seconds
        self._runs = {run.number: run for run in runs.all()}
        self._rows = {number: Rows.of(()) for number in self._runs}
        self._keyids: dict[int, str] = {}
        self._read = 0  # positions below were read
        self._lock = threading.Lock()
        self._latest: dict[int, tuple[Covered, float]] = {}  # and when it may be computed again

    def coverage(self, run: KnownRun) -> Covered:
        """The coverage of a run, at most some seconds old. Unavailable as of the database."""
        with self._lock:
            kept, until = self._latest.get(run.number, (None, 0.0))
            began = self._now()
            if kept is not None and began < until:
                return kept
            self._catch_up()
            if kept is None or kept.position != self._read:
                coverage = cover(self._rows[run.number], self._voters[run.run_id], run.size)
                kept = Covered(run, coverage, self._read)
            ended = self._now()
            self._latest[run.number] = kept, ended + max(self._seconds, SHARE * (ended - began))
            return kept

    def voters(self, run: KnownRun) -> Voters:
        """Whose word counts about a run."""
        return self._voters[run.run_id]

    def _catch_up(self) -> None:
        """Read what is new; one piece at a time, so that a start with many rows stays within bounded memory."""
        fresh: dict[int, list[Rows]] = {}
        while True:
            facts = self._database.facts(self._read)
            self._learn_keys(facts)
            for number in {fact.run for fact in facts} & set(self._runs):
                own = [self._entry(fact) for fact in facts if fact.run == number]
                fresh.setdefault(number, []).append(Rows.of(own))
            self._read += len(facts)
            if len(facts) < PAGE:
                break
        for number, parts in fresh.items():
            self._rows[number] = Rows.join([self._rows[number], *parts])

    def _learn_keys(self, facts: list[Fact]) -> None:
        if any(fact.key not in self._keyids for fact in facts):
            self._keyids = {number: keyid.hex() for number, (keyid, _) in self._database.keys().items()}

    def _entry(self, fact: Fact) -> Entry:
        return Entry(
            step=fact.step,
            keyid=self._keyids[fact.key],
            verdict=Verdict(fact.verdict),
            family=fact.family,
            finished=fact.finished,
            automation=fact.automation,
            outcome=fact.outcome,
            part=fact.part,
        )
