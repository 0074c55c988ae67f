"""SQLite, the default: one file, inside this process. Write-ahead log, so that readers never wait for the writer."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from auditkit.errors import AuditkitError, BadArtifact, Unavailable, Unsupported
from auditkit.registry.engine import WAIT_SECONDS, Pool, Row

APPLICATION_ID = 0x41756B74  # "Aukt" in the file's header: `file` and other programs can tell whose it is
LEAST_VERSION = (3, 24, 0)  # INSERT .. ON CONFLICT DO NOTHING


class SqliteEngine:
    """The database file `path`; made if `create`, else Unavailable when there is none."""

    kind = "sqlite"
    types = {"bytes": "BLOB", "integer": "INTEGER"}

    def __init__(self, path: Path, *, create: bool = False, readers: int = 8) -> None:
        if sqlite3.sqlite_version_info < LEAST_VERSION:
            raise Unsupported(f"SQLite {sqlite3.sqlite_version} is too old, 3.24 is needed", hint="update Python")
        if not create and not path.is_file():
            raise Unavailable(f"there is no database {path}", hint="auditkit registry init makes one")
        self._path, self._lock = path, threading.Lock()
        self._pool = Pool(self._connect, sqlite3.Connection.close, readers)
        with _translated(path):
            self._writer = self._connect()

    @contextmanager
    def reading(self) -> Iterator[SqliteSession]:
        """See Engine."""
        with _translated(self._path), self._pool.take(lambda _: False) as connection:
            with _transaction(connection, "BEGIN") as session:
                yield session

    @contextmanager
    def writing(self) -> Iterator[SqliteSession]:
        """See Engine."""
        with _translated(self._path), self._lock, _transaction(self._writer, "BEGIN IMMEDIATE") as session:
            yield session

    def close(self) -> None:
        """See Engine. The last connection to go merges the write-ahead log into the file."""
        self._pool.close()
        with self._lock:
            self._writer.close()

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self._path, timeout=WAIT_SECONDS, isolation_level=None, check_same_thread=False, cached_statements=256
        )
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            if mode != "wal":
                raise Unsupported(f"{self._path}: this file system cannot hold a SQLite write-ahead log")
            # FULL: a commit returns when the log is on the disk. NORMAL would lose the last commits with the power.
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA trusted_schema = OFF")
            if connection.execute("PRAGMA application_id").fetchone()[0] != APPLICATION_ID:
                connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        except BaseException:
            connection.close()
            raise
        return connection


class SqliteSession:
    """See Session."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """See Session."""
        return self._connection.execute(statement, values).fetchall()

    def run_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """See Session."""
        self._connection.executemany(statement, rows)


@contextmanager
def _transaction(connection: sqlite3.Connection, begin: str) -> Iterator[SqliteSession]:
    connection.execute(begin)
    try:
        yield SqliteSession(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have rolled back already
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """SQLite's errors about the machine or the file as ours; those about a statement are bugs and stay."""
    try:
        yield
    except sqlite3.OperationalError as error:
        text = str(error)
        if text.startswith(("near ", "no such column", "too many SQL", "table ")) or "syntax" in text:
            raise
        raise Unavailable(f"{path}: {text}", hint="try again later") from error
    except sqlite3.DatabaseError as error:
        raise _damaged(path, error) or error from None


def _damaged(path: Path, error: sqlite3.DatabaseError) -> AuditkitError | None:
    if isinstance(error, (sqlite3.IntegrityError, sqlite3.ProgrammingError, sqlite3.DataError)):
        return None
    return BadArtifact(f"{path}: {error}", hint="restore a backup: auditkit registry restore")
