"""What a database must offer: transactions, and statements in the SQL that SQLite and PostgreSQL share.

Statements write their parameters as `?` and hold no other `?` and no `%`.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Generic, Protocol, TypeVar

from auditkit.errors import Unavailable

Row = tuple[Any, ...]
WAIT_SECONDS = 20.0  # for a free connection, or for another process to finish its transaction


class Session(Protocol):
    """A transaction under way."""

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """The rows of one statement, none if it has none."""

    def run_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """One statement for each row of values; results are dropped."""


class Engine(Protocol):
    """One kind of database. Every method may raise Unavailable: unreachable, busy, full; nothing was stored then,
    unless the connection broke at the very end of a transaction, when it may have been.
    """

    kind: str  # "sqlite" or "postgresql"
    types: dict[str, str]  # what {bytes} and {integer} stand for in the schema

    def reading(self) -> AbstractContextManager[Session]:
        """A transaction that sees one state of the database and changes nothing."""

    def writing(self) -> AbstractContextManager[Session]:
        """The only transaction of all processes that writes; on the disk when the block ended without an error."""

    def close(self) -> None:
        """Close every connection."""


Connection = TypeVar("Connection")


class Pool(Generic[Connection]):
    """At most `most` connections, made when they are needed; the one used last is used next."""

    def __init__(self, make: Callable[[], Connection], drop: Callable[[Connection], None], most: int) -> None:
        self._make, self._drop = make, drop
        self._free: queue.LifoQueue[Connection] = queue.LifoQueue()
        self._places = threading.Semaphore(most)
        self._closed = False

    @contextmanager
    def take(self, broken: Callable[[Connection], bool]) -> Iterator[Connection]:
        """A connection for the block; not used again if `broken` says so. Unavailable: none is free for too long."""
        if not self._places.acquire(timeout=WAIT_SECONDS):
            raise Unavailable("the database is busy", hint="try again later")
        try:
            try:
                connection = self._free.get_nowait()
            except queue.Empty:
                connection = self._make()
            try:
                yield connection
            finally:
                if self._closed or broken(connection):
                    self._drop(connection)
                else:
                    self._free.put(connection)
        finally:
            self._places.release()

    def close(self) -> None:
        """Close what is free now, and the rest when it comes back."""
        self._closed = True
        while True:
            try:
                self._drop(self._free.get_nowait())
            except queue.Empty:
                return
