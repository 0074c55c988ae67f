"""Signs of life of all ranks, and the one verdict that ends them all.

A rank that dies or stands still leaves the others waiting inside a collective, for as long as the network lets them.
So a thread of each rank writes a sign of life into the launcher's store, rank 0 watches all others, and the others
watch rank 0. Whoever misses somebody, or fails itself, writes a verdict there: the first one counts, its writer tells
it, and every rank ends with its exit code. A rank that cannot leave what it waits in is ended, and so is one that the
store no longer answers. A rank that was stopped itself for a while has missed nobody.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import NoReturn, Protocol

from auditkit.cli import console
from auditkit.verdict import Verdict
from trainer.parallel.group import AlreadyTold, RankLost

RESUME = "resume goes on from the last complete state, on any number of ranks"


@dataclass(frozen=True)
class Times:
    """Seconds: that all ranks have to come; between two signs of life; without one until a rank is lost, and where the
    network has failed already; that a rank waits for another, whose signs of life go on; that a rank has to leave.
    """

    start: float = 300.0
    beat: float = 0.5
    silence: float = 20.0
    suspicion: float = 4.0
    wait: float = 1800.0
    leave: float = 5.0


class Store(Protocol):
    """What is used of torch's key-value stores."""

    def set(self, key: str, value: str) -> None: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...
    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...


@dataclass(frozen=True)
class Ending:
    """Why the run ends: for people, the exit code, and the rank that tells."""

    message: str
    hint: str
    code: int
    teller: int


class Watch:
    """The watch of one rank over the others. `store` is this watch's own connection, used by one thread at a time."""

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        times: Times,
        *,
        holds_store: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._rank, self._size, self.times, self._clock = store, rank, size, times, clock
        self._holds_store = holds_store
        self._lock = threading.Lock()  # a connection carries one request at a time
        self._closing = threading.Event()
        self._ending: Ending | None = None
        self._silence = times.silence
        self._seen: dict[int, tuple[bytes, float]] = {}  # the last sign of each watched rank, and when it was new
        self._waiting: float | None = None  # since when this rank waits for others
        self._beats = self._calls = 0
        self._doing = "the start"
        self._answered = clock()  # when the store did so last
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("watch", self._run), ("guard", self._guard))
        ]

    def meet(self) -> None:
        """Give the first sign of life and wait for that of all others, then watch them. Raises as `check`."""
        watch, guard = self._threads
        self._answered = self._clock()
        guard.start()
        try:
            self._beat()
            until = self._clock() + self.times.start
            while missing := self._missing():
                self._answered = self._clock()
                if self._clock() > until:
                    self._lost(missing, f"did not come within {self.times.start:g} s")
                self.check()
                time.sleep(self.times.beat / 5)
        except RuntimeError as error:
            self._gone(error)
            self.check()
        self._answered = self._clock()
        watch.start()

    def doing(self, what: str) -> None:
        """What the ranks are at."""
        self._doing = what

    def waiting(self, begins: bool) -> None:
        """This rank begins or ends to wait for the others in a collective."""
        self._calls += begins
        self._waiting = self._clock() if begins else None

    def check(self) -> None:
        """RankLost or AlreadyTold once there is a verdict."""
        ending = self._ending
        if ending is None:
            return
        if ending.teller == self._rank:
            raise RankLost(ending.message, hint=ending.hint)
        raise AlreadyTold(ending.code)

    def suspect(self, error: Exception) -> None:
        """A collective has failed: raise what `check` does as soon as it is known who is missing, or that it is not."""
        self.search()
        self.end(f"a rank was lost at {self._doing}: {first_line(error)}", RESUME, Verdict.UNAVAILABLE.code)
        self.check()

    def search(self) -> None:
        """The network has failed: raise what `check` does if a rank turns out to be missing within a few seconds."""
        self._silence = min(self._silence, self.times.suspicion)
        self.pause(self.times.suspicion + 4 * self.times.beat)
        self.check()

    def end(self, message: str, hint: str, code: int) -> bool:
        """End all ranks, unless there is a verdict already; whether this one counts, and so is to be told here."""
        if self._ending is None:
            ending = Ending(message, hint, code, self._rank)
            try:
                with self._lock:
                    said = self._store.compare_set("ending", "", json.dumps(asdict(ending)))
                ending = Ending(**json.loads(said))
            except RuntimeError:  # nobody can be told any more; they see that the store is gone
                pass
            self._ending = ending
        return self._ending.teller == self._rank

    def pause(self, seconds: float) -> None:
        """Wait for a verdict, for so long at most."""
        until = self._clock() + seconds
        while self._ending is None and self._clock() < until:
            time.sleep(self.times.beat / 5)

    @property
    def code(self) -> int:
        """The exit code of the verdict."""
        return Verdict.INTERNAL.code if self._ending is None else self._ending.code

    def _missing(self) -> list[int]:
        with self._lock:
            if self._store.check(["ending"]):
                self._ending = Ending(**json.loads(self._store.get("ending")))
            return [rank for rank in range(self._size) if not self._store.check([f"beat/{rank}"])]

    def close(self) -> None:
        """Stop watching."""
        self._closing.set()
        for thread in self._threads:
            if thread.is_alive() and threading.current_thread() is not thread:
                thread.join(timeout=self.times.leave)

    def _run(self) -> None:
        """Beat and look, until there is a verdict."""
        while not self._paused():
            try:
                self._beat()
                self._look()
                self._answered = self._clock()
            except RuntimeError as error:  # of the store: its host, the launcher or rank 0, is gone
                if not self._closing.is_set():
                    self._gone(error)
            if self._ending is not None:
                break

    def _guard(self) -> None:
        """See that the store answers, and that this process leaves once there is a verdict.

        A request to a store whose process stands still, or whose machine is cut off, may wait for ever.
        """
        while self._ending is None and not self._paused():
            if self._clock() - self._answered > self.times.silence and self._ending is None:
                message = f"rank 0 or the launcher did not answer within {self.times.silence:g} s, at {self._doing}"
                self._ending = Ending(message, RESUME, Verdict.UNAVAILABLE.code, self._rank)
        if self._ending is not None and not self._closing.wait(self.times.leave):
            self._leave(self._ending)

    def _paused(self) -> bool:
        """Wait from one sign of life to the next; whether it is time to stop.

        Forgets how long others have been silent if this process did not run meanwhile itself.
        """
        began = self._clock()
        if self._closing.wait(self.times.beat):
            return True
        now = self._clock()
        if now - began - self.times.beat > self.times.suspicion:
            self._seen, self._answered = {}, now
            self._waiting = None if self._waiting is None else now
        return False

    def _beat(self) -> None:
        self._beats += 1
        with self._lock:
            self._store.set(f"beat/{self._rank}", f"{self._beats} {self._calls}")

    def _look(self) -> None:
        with self._lock:
            if self._store.check(["ending"]):
                self._ending = Ending(**json.loads(self._store.get("ending")))
                return
        now = self._clock()
        silent = [rank for rank in self._watched() if self._is_silent(rank, now)]
        waiting = self._waiting
        if silent:
            self._lost(silent, f"gave no sign of life for {self._silence:g} s")
        elif waiting is not None and now - waiting > self.times.wait:
            self._lost(self._behind(), f"did not come within {self.times.wait:g} s")

    def _watched(self) -> Iterable[int]:
        return range(1, self._size) if self._rank == 0 else (0,)

    def _is_silent(self, rank: int, now: float) -> bool:
        sign = self._sign(rank)
        before, since = self._seen.get(rank, (b"", now))
        if sign != before:
            since = now
        self._seen[rank] = sign, since
        return now - since > self._silence

    def _sign(self, rank: int) -> bytes:
        key = f"beat/{rank}"
        with self._lock:
            return self._store.get(key) if self._store.check([key]) else b""

    def _behind(self) -> list[int]:
        """The ranks that have begun fewer collectives than this one."""
        calls = {rank: int((self._sign(rank) or b"0 0").split()[1]) for rank in range(self._size)}
        return [rank for rank, count in calls.items() if count < self._calls]

    def _lost(self, ranks: list[int], how: str) -> None:
        who = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}" if ranks else "a rank"
        self.end(f"{who} {how}, at {self._doing}", RESUME, Verdict.UNAVAILABLE.code)

    def _gone(self, error: RuntimeError) -> None:
        self.end(f"rank 0 or the launcher is gone: {first_line(error)}", RESUME, Verdict.UNAVAILABLE.code)

    def _leave(self, ending: Ending) -> None:
        """End this process, whose main thread waits in something that does not end."""
        if ending.teller == self._rank:
            tell(ending.message, ending.hint)
        self.leave()

    def leave(self) -> NoReturn:
        """End this process with the code of the verdict."""
        if self._holds_store:
            time.sleep(4 * self.times.beat)  # the others read the verdict there
        leave(self.code)


def tell(message: str, hint: str) -> None:
    """An error, for people."""
    console.tell(f"error: {message}")
    if hint:
        console.tell(f"hint: {hint}")


def leave(code: int) -> NoReturn:
    """End the process now: what the network's library has under way would hold up an ordinary end."""
    console.finish()
    os._exit(code)


def first_line(error: Exception) -> str:
    """What an exception says, in one line."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
