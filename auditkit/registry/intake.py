"""The way in: envelopes are verified and stored in groups, one group after the other, in a thread of its own.

While one group is committed the next one gathers, so that many submissions share one wait for the disk. What was
answered is on the disk; what could not be stored is answered as such and may be sent again.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

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
    body: bytes
    keys: Keys
    envelope: bytes
    answer: asyncio.Future[Receipt]
    outcome: Receipt | Exception | None = field(default=None)


class Intake:
    """Takes envelopes from the event loop; `check` verifies one, `stored` is called after each group with new ones."""

    def __init__(
        self, database: Database, check: Check, limits: RegistryLimits, clock: Clock, stored: Callable[[], None]
    ) -> None:
        self._database, self._check, self._limits, self._stored = database, check, limits, stored
        self._queue: deque[_Waiting] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="intake")
        self._pump: asyncio.Task[None] | None = None
        self._rates = Buckets(limits.key_envelopes_per_second, limits.key_envelopes_burst, limits.addresses, clock.now)

    async def put(self, bodies: Sequence[bytes], keys: Keys) -> list[Receipt | AuditkitError]:
        """What became of each envelope. TooMany: the queue is full and none was taken."""
        if len(self._queue) + len(bodies) > self._limits.waiting_envelopes:
            raise TooMany("the registry has more to do than it can", 2.0)
        loop = asyncio.get_running_loop()
        waiting = [_Waiting(body, keys, hashlib.sha256(body).digest(), loop.create_future()) for body in bodies]
        self._queue.extend(waiting)
        if self._pump is None or self._pump.done():
            self._pump = loop.create_task(self._work())
        found = await asyncio.gather(*(item.answer for item in waiting), return_exceptions=True)
        return [_expected(answer) for answer in found]

    async def close(self) -> None:
        """Finish what was taken."""
        if self._pump is not None:
            await asyncio.wait([self._pump])
        self._thread.shutdown()

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._queue:
            group = [self._queue.popleft() for _ in range(min(len(self._queue), self._limits.commit_envelopes))]
            done = loop.run_in_executor(self._thread, self._take, group)
            await asyncio.wait([done])
            for item in group:
                self._resolve(item, done.exception())
            if any(isinstance(item.outcome, Receipt) and not item.outcome.known for item in group):
                self._stored()

    def _resolve(self, item: _Waiting, error: BaseException | None) -> None:
        if item.answer.done():  # who asked has gone
            return
        if isinstance(item.outcome, Receipt):
            item.answer.set_result(item.outcome)
        else:
            item.answer.set_exception(item.outcome or error or RuntimeError("an envelope was left over"))

    def _take(self, group: Sequence[_Waiting]) -> None:
        """Verify and store a group; in the intake's thread. Raises only for the group as a whole."""
        known = self._database.positions([item.envelope for item in group])
        good: list[tuple[_Waiting, New]] = []
        for item in group:
            if item.envelope in known:
                item.outcome = Receipt(item.envelope.hex(), known[item.envelope], True)
                continue
            try:
                new = self._check(item.body, item.keys)
                self._pace(new)
                good.append((item, new))
            except Exception as error:  # noqa: BLE001 - a bug that one envelope finds must not fail its neighbours
                item.outcome = error
        if not good:
            return
        limits = self._limits
        stored = self._database.append([new for _, new in good], most=limits.envelopes_per_key_and_step)
        for (item, new), found in zip(good, stored, strict=True):
            if found.position is None:
                item.outcome = _enough(new, limits.envelopes_per_key_and_step)
            else:
                item.outcome = Receipt(item.envelope.hex(), found.position, found.known)

    def _pace(self, new: New) -> None:
        """TooMany when a key is faster than it may be. Only after its signature: nobody can use up another's rate."""
        wait = self._rates.take(new.keyid.hex())
        if wait:
            raise TooMany(f"too many attestations of key {new.keyid.hex()[:8]}", wait)


def _enough(new: New, most: int) -> AuditkitError:
    return Untrusted(
        f"key {new.keyid.hex()[:8]} has {most} attestations of step {new.step} here, and no more are taken"
    )


def _expected(answer: Receipt | BaseException) -> Receipt | AuditkitError:
    if isinstance(answer, (Receipt, AuditkitError)):
        return answer
    raise answer
