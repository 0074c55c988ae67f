"""PostgreSQL by its address, for a registry of several processes or one whose database is looked after elsewhere."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict

from auditkit.errors import Unavailable, Unsupported, UsageError
from auditkit.registry.engine import WAIT_SECONDS, Pool, Row

SCHEMA = "auditkit_registry"
WRITER_LOCK = 0x61756474  # of pg_advisory_xact_lock: one writer at a time in all processes
LEAST_VERSION = 120000  # PostgreSQL 12; older ones are out of support

HINT = "postgresql://user@host/database; a password is best kept in ~/.pgpass"

_SETTINGS = {
    "synchronous_commit": "on",  # whatever the server's default: an answer 201 means that it is on the disk
    "statement_timeout": str(int(WAIT_SECONDS * 3000)),
    "lock_timeout": str(int(WAIT_SECONDS * 1000)),
    "idle_in_transaction_session_timeout": "60000",
    "search_path": SCHEMA,
    "client_min_messages": "warning",
}


class PostgresEngine:
    """The database at `url` (postgresql://..). Unavailable: no connection; Unsupported: too old, or not durable."""

    kind = "postgresql"
    types = {"bytes": "BYTEA", "integer": "BIGINT"}

    def __init__(self, url: str, *, create: bool = False, readers: int = 8) -> None:
        self._url, self._shown = url, without_password(url)
        if not _is_address(url):
            raise UsageError(f"{self._shown} is not an address of a PostgreSQL database", hint=HINT)
        self._pool: Pool[psycopg.Connection] = Pool(self._connect, _close, readers + 1)
        with self._translated(), self._pool.take(_is_broken) as connection:
            self._require(connection)
            if create:
                connection.execute(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}")

    @contextmanager
    def reading(self) -> Iterator[PostgresSession]:
        """See Engine."""
        with self._translated(), self._pool.take(_is_broken) as connection:
            with _transaction(connection, "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY") as session:
                yield session

    @contextmanager
    def writing(self) -> Iterator[PostgresSession]:
        """See Engine."""
        with self._translated(), self._pool.take(_is_broken) as connection:
            # READ COMMITTED: what is read after the lock is what the writer before left behind.
            with _transaction(connection, "BEGIN ISOLATION LEVEL READ COMMITTED") as session:
                session.run("SELECT pg_advisory_xact_lock(?)", (WRITER_LOCK,))
                yield session

    def close(self) -> None:
        """See Engine."""
        self._pool.close()

    def _connect(self) -> psycopg.Connection:
        connection = psycopg.connect(
            self._url, autocommit=True, connect_timeout=int(WAIT_SECONDS), application_name="auditkit registry"
        )
        for name, value in _SETTINGS.items():
            connection.execute("SELECT set_config(%s, %s, false)", (name, value))
        return connection

    def _require(self, connection: psycopg.Connection) -> None:
        if connection.info.server_version < LEAST_VERSION:
            raise Unsupported(f"{self._shown}: PostgreSQL 12 or newer is needed")
        if connection.execute("SHOW fsync").fetchone() != ("on",):
            raise Unsupported(
                f"{self._shown}: the server runs with fsync = off, so what it confirms can be lost",
                hint="set fsync = on in postgresql.conf",
            )
        if connection.info.encoding != "utf-8":
            connection.execute("SET client_encoding TO 'UTF8'")

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Errors of the connection or the server as ours; those about a statement are bugs and stay."""
        try:
            yield
        except psycopg.errors.InsufficientPrivilege as error:
            hint = f"let the user create the schema {SCHEMA}, or create it for the user"
            raise Unsupported(f"{self._shown}: {_first_line(error)}", hint=hint) from error
        except (psycopg.OperationalError, psycopg.InternalError) as error:
            raise Unavailable(f"{self._shown}: {_first_line(error)}", hint="try again later") from error


class PostgresSession:
    """See Session."""

    def __init__(self, connection: psycopg.Connection) -> None:
        self._connection = connection

    def run(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """See Session."""
        cursor = self._connection.execute(_percent(statement), values)
        return cursor.fetchall() if cursor.description else []

    def run_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """See Session."""
        with self._connection.cursor() as cursor:
            cursor.executemany(_percent(statement), rows)


def _is_address(url: str) -> bool:
    try:
        parts = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        return False
    return re.fullmatch("[0-9,]*", str(parts.get("port", ""))) is not None


def without_password(url: str) -> str:
    """The address for messages: without a password, in the user part or as a parameter."""
    hidden = re.sub(r"(?<=://)([^/?#@:]*):[^/?#]*@", r"\1:***@", url)
    return re.sub(r"(?i)(password=)[^&]*", r"\1***", hidden)


@lru_cache(maxsize=512)
def _percent(statement: str) -> bytes:
    return statement.replace("?", "%s").encode("ascii")


@contextmanager
def _transaction(connection: psycopg.Connection, begin: str) -> Iterator[PostgresSession]:
    connection.execute(begin.encode("ascii"))
    try:
        yield PostgresSession(connection)
        connection.execute("COMMIT")
    except BaseException:
        if _is_broken(connection):
            with contextlib.suppress(psycopg.Error):  # a connection that is gone has been rolled back already
                connection.execute("ROLLBACK")
        raise


def _is_broken(connection: psycopg.Connection) -> bool:
    return connection.closed or connection.info.transaction_status != pq.TransactionStatus.IDLE


def _close(connection: psycopg.Connection) -> None:
    connection.close()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
