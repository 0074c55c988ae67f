"""One registry at work: what the routes call, and the log that follows the database."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from auditkit.errors import AuditkitError, UsageError
from auditkit.registry.admission import Admission
from auditkit.registry.appending import Log
from auditkit.registry.buckets import Buckets
from auditkit.registry.checking import check, stored_form
from auditkit.registry.database import Database, New
from auditkit.registry.intake import Intake
from auditkit.registry.key_files import signers
from auditkit.registry.leases import Desk
from auditkit.registry.ledger import Ledger
from auditkit.registry.limits import RegistryLimits
from auditkit.registry.runs import Runs
from auditkit.store.progress import Clock
from auditkit.trust.attested import read_attestation
from auditkit.trust.coverage import Voters
from auditkit.trust.keys import PrivateKey, PublicKey
from auditkit.trust.log_writer import LogWriter

POLL_SECONDS = 5.0  # how often the log looks for what another process stored
RETRY_SECONDS = 2.0  # until a log that could not be written is tried again
NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class Setting:
    """What an operator chose. `voters` by run id, `names` of auditors by keyid, `addresses` without a final slash."""

    origin: str
    log_folder: Path
    log_key: PrivateKey
    addresses: tuple[str, ...]
    admission: Admission
    voters: Mapping[str, Voters]
    names: Mapping[str, str]
    policy: str  # in words
    beacon: Callable[[], bytes]
    limits: RegistryLimits
    clock: Clock
    tell: Callable[[str], None]


class Registry:
    """The parts of a registry, joined. The database and the runs are its own from here on, and closed by `running`."""

    def __init__(self, setting: Setting, database: Database, runs: Runs) -> None:
        self.setting, self.database, self.runs = setting, database, runs
        limits, clock = setting.limits, setting.clock
        runs.number(database)
        writer = LogWriter(setting.log_folder, setting.origin, setting.log_key)
        self.vkey = writer.key.text
        self.log = Log(database, writer, setting.log_folder, entries=limits.log_entries)
        self.log.reconcile(self._restore)
        self.ledger = Ledger(database, runs, setting.voters, now=clock.now, seconds=limits.coverage_seconds)
        self.intake = Intake(database, self._check, limits, clock, self._stored)
        self.desk = Desk(
            database,
            runs,
            self.ledger,
            limits,
            audiences=setting.addresses,
            beacon=setting.beacon,
            wall=clock.wall,
        )
        self.envelopes = Buckets(limits.envelopes_per_second, limits.envelopes_burst, limits.addresses, clock.now)
        self.failed: Callable[[], None] = lambda: None  # called when the log's task ended by a bug, which is `error`
        self.error: BaseException | None = None
        self._news, self._stop = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep the log up to date during the block; then finish what was taken, catch up once more, and close."""
        task = asyncio.create_task(self._keep_log())
        task.add_done_callback(self._ended)
        try:
            yield
        finally:
            await self.intake.close()
            self._stop.set()
            self._news.set()
            await asyncio.wait([task])
            self.runs.close()
            self.database.close()

    def _ended(self, task: asyncio.Task[None]) -> None:
        """The log's task never ends by itself; if it did, a registry that cannot keep its log must not go on."""
        if not task.cancelled() and task.exception() is not None:
            self.error = task.exception()
            self.failed()

    def _stored(self) -> None:
        self._news.set()

    async def _keep_log(self) -> None:
        told = ""
        while True:
            stopping, pause = self._stop.is_set(), self.setting.limits.log_seconds
            try:
                while await asyncio.to_thread(self.log.catch_up):
                    pass
                told = ""
            except AuditkitError as error:
                pause = RETRY_SECONDS
                self._news.set()
                if error.message != told:
                    told = error.message
                    self.setting.tell(f"the log waits: {told}")
            if stopping:
                return
            await _wait(self._stop, pause)
            await _wait(self._news, POLL_SECONDS)
            self._news.clear()

    def _check(self, data: bytes, keys: Mapping[str, PublicKey]) -> New:
        return check(data, keys, self.runs, now=self.setting.clock.wall())

    def _restore(self, entries: list[bytes]) -> None:
        """Store entries of the log that the database lacks; they were taken once, so no limit is asked again."""
        keys = dict(self.setting.admission.keys)
        keys.update((key.keyid, key) for key in (PublicKey(raw) for _, raw in self.database.keys().values()))
        keys.update(self.log.keys.read({name for data in entries for name in signers(data)} - set(keys)))
        numbers = {run_id.hex(): number for number, run_id, *_ in self.database.runs()}
        now = self.setting.clock.wall()
        new = []
        for data in entries:
            attested = read_attestation(data, keys)
            if attested.run_id not in numbers:
                raise UsageError(
                    f"the log has attestations of run {attested.run_id}, which the database does not know",
                    hint="name that run with --run as well",
                )
            new.append(stored_form(data, attested, keys[attested.keyid], numbers[attested.run_id], now=now))
        for first in range(0, len(new), self.setting.limits.commit_envelopes):
            part = new[first : first + self.setting.limits.commit_envelopes]
            self.database.append(part, most=NO_LIMIT)
        self.setting.tell(f"{len(new)} attestations were stored again from the log")


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, and no longer than some seconds."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
