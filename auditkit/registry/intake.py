"""The way in: envelopes are verified in one thread and stored in another, each thread a group at a time.

While one group is committed the next ones are verified and gather, so that many submissions share one wait for the
disk. What was answered is on the disk; what could not be stored is answered as such and may be sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from auditkit.errors import AuditkitError, Untrusted
from auditkit.registry.buckets import Buckets
from auditkit.registry.database import Database, New
from auditkit.registry.limits import RegistryLimits
from auditkit.registry.refusals import TooMany
from auditkit.store.progress import Clock
from auditkit.trust.keys import PublicKey

Keys = Mapping[str, PublicKey]
Check = Callable[[bytes, Keys], New]


@dataclass(frozen=True, slots=True)
class Receipt:
    """A stored envelope: its SHA-256, its place in the log, and whether it was there before."""

    envelope: str
    position: int
    known: bool


@dataclass(eq=False, slots=True)
class _Waiting:
    """An envelope on its way; `new` once it is verified, `outcome` once that is known."""

    body: bytes
    keys: Keys
    answer: asyncio.Future[Receipt]
    new: New | None = None
    outcome: Receipt | Exception | None = None


class _Stage:
    """A thread that works on whatever waits, at most `most` at a time, and hands each group on when it is done."""

    def __init__(
        self, name: str, most: int, work: Callable[[list[_Waiting]], None], done: Callable[[list[_Waiting]], None]
    ) -> None:
        self._most, self._work, self._done = most, work, done
        self._waiting: deque[_Waiting] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._pump: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, items: Sequence[_Waiting]) -> None:
        """More to work on; to be called in the event loop."""
        self._waiting.extend(items)
        if items and (self._pump is None or self._pump.done()):
            self._pump = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Finish everything."""
        if self._pump is not None:
            await asyncio.wait([self._pump])
        self._thread.shutdown()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            group = [self._waiting.popleft() for _ in range(min(len(self._waiting), self._most))]
            work = loop.run_in_executor(self._thread, self._work, group)
            await asyncio.wait([work])
            error = work.exception()
            for item in group:
                if isinstance(error, Exception) and item.outcome is None:
                    item.outcome = error
            self._done(group)


class Intake:
    """Takes envelopes from the event loop; `check` verifies one, `stored` is called after each group with new ones."""

    def __init__(
        self, database: Database, check: Check, limits: RegistryLimits, clock: Clock, stored: Callable[[], None]
    ) -> None:
        self._database, self._check, self._limits, self._stored = database, check, limits, stored
        self._rates = Buckets(limits.key_envelopes_per_second, limits.key_envelopes_burst, limits.addresses, clock.now)
        self._checking = _Stage("check", limits.commit_envelopes, self._verify, self._verified)
        self._storing = _Stage("store", limits.commit_envelopes, self._commit, self._committed)

    async def put(self, bodies: Sequence[bytes], keys: Keys) -> list[Receipt | AuditkitError]:
        """What became of each envelope. TooMany: the queue is full and none was taken."""
        if len(self._checking) + len(self._storing) + len(bodies) > self._limits.waiting_envelopes:
            raise TooMany("the registry has more to do than it can", 2.0)
        loop = asyncio.get_running_loop()
        waiting = [_Waiting(body, keys, loop.create_future()) for body in bodies]
        self._checking.put(waiting)
        found = await asyncio.gather(*(item.answer for item in waiting), return_exceptions=True)
        return [_expected(answer) for answer in found]

    async def close(self) -> None:
        """Finish what was taken."""
        await self._checking.close()
        await self._storing.close()

    def _verify(self, group: list[_Waiting]) -> None:
        """Look each up, and verify those that are new; in a thread of its own."""
        names = [hashlib.sha256(item.body).digest() for item in group]
        known = self._database.positions(names)
        for item, name in zip(group, names, strict=True):
            if name in known:
                item.outcome = Receipt(name.hex(), known[name], True)
                continue
            try:
                item.new = self._check(item.body, item.keys)
                self._pace(item.new)
            except Exception as error:  # noqa: BLE001 - a bug that one envelope finds must not fail its neighbours
                item.outcome = error

    def _verified(self, group: list[_Waiting]) -> None:
        _resolve(item for item in group if item.outcome is not None)
        self._storing.put([item for item in group if item.outcome is None])

    def _commit(self, group: list[_Waiting]) -> None:
        """Store verified envelopes; in a thread of its own. One that came twice meanwhile is stored once."""
        most = self._limits.envelopes_per_key_and_step
        new = [item.new for item in group if item.new is not None]
        for item, one, found in zip(group, new, self._database.append(new, most=most), strict=True):
            if found.position is None:
                item.outcome = _enough(one, most)
            else:
                item.outcome = Receipt(one.envelope.hex(), found.position, found.known)

    def _committed(self, group: list[_Waiting]) -> None:
        _resolve(group)
        if any(isinstance(item.outcome, Receipt) and not item.outcome.known for item in group):
            self._stored()

    def _pace(self, new: New) -> None:
        """TooMany when a key is faster than it may be. Only after its signature: nobody can use up another's rate."""
        wait = self._rates.take(new.keyid.hex())
        if wait:
            raise TooMany(f"too many attestations of key {new.keyid.hex()[:8]}", wait)


def _resolve(items: Iterable[_Waiting]) -> None:
    """Tell those who wait; who asked may have gone."""
    for item in items:
        if item.answer.done():
            continue
        if isinstance(item.outcome, Receipt):
            item.answer.set_result(item.outcome)
        else:
            item.answer.set_exception(item.outcome or RuntimeError("an envelope was left over"))


def _enough(new: New, most: int) -> AuditkitError:
    return Untrusted(
        f"key {new.keyid.hex()[:8]} has {most} attestations of step {new.step} here, and no more are taken"
    )


def _expected(answer: Receipt | BaseException) -> Receipt | AuditkitError:
    if isinstance(answer, (Receipt, AuditkitError)):
        return answer
    raise answer
