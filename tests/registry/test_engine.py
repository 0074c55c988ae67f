"""Transactions of both kinds of database: whole or not at all, readers beside the writer, faults in words."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from auditkit.errors import BadArtifact, Unavailable, Unsupported, UsageError
from auditkit.registry.engine import Engine
from auditkit.registry.sqlite import SqliteEngine
from tests.registry.conftest import POSTGRES, OpenEngine


@pytest.fixture
def engine(open_engine: OpenEngine) -> Engine:
    """With a table `t` of numbers."""
    engine = open_engine(True)
    with engine.writing() as session:
        session.run("CREATE TABLE t (n {integer} PRIMARY KEY)".format(**engine.types))
    return engine


def numbers(engine: Engine) -> list[int]:
    """What the table holds."""
    with engine.reading() as session:
        return [row[0] for row in session.run("SELECT n FROM t ORDER BY n")]


def test_a_transaction_is_whole_or_not_at_all(engine: Engine) -> None:
    with engine.writing() as session:
        session.run_many("INSERT INTO t VALUES (?)", [(1,), (2,)])
    with pytest.raises(KeyError), engine.writing() as session:
        session.run("INSERT INTO t VALUES (?)", (3,))
        raise KeyError
    assert numbers(engine) == [1, 2]


def test_a_reader_sees_one_state_beside_the_writer(engine: Engine) -> None:
    with engine.reading() as before:
        assert before.run("SELECT n FROM t") == []
        with engine.writing() as session:
            session.run("INSERT INTO t VALUES (1)")
            assert numbers(engine) == []
        assert before.run("SELECT n FROM t") == []
    assert numbers(engine) == [1]


def test_writers_take_turns(engine: Engine, open_engine: OpenEngine) -> None:
    """What a second writer reads is what the first left behind, also through another engine (another process)."""
    other = open_engine(False)
    entered, inside = threading.Event(), []

    def second() -> None:
        entered.set()
        with other.writing() as session:
            inside.append(session.run("SELECT count(*) FROM t")[0][0])

    thread = threading.Thread(target=second)
    with engine.writing() as session:
        thread.start()
        entered.wait(10)
        session.run("INSERT INTO t VALUES (1)")
        assert inside == []
    thread.join(30)
    assert inside == [1]


def test_more_readers_than_connections_wait(engine: Engine) -> None:
    found = []
    threads = [threading.Thread(target=lambda: found.append(numbers(engine))) for _ in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [[]] * 40


def test_a_missing_file_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="there is no database"):
        SqliteEngine(tmp_path / "none.db")


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    path.write_bytes(b"certainly no database\n" * 100)
    with pytest.raises(BadArtifact, match="not a database"):
        SqliteEngine(path)


def test_a_damaged_page_is_a_bad_artifact(tmp_path: Path) -> None:
    path = tmp_path / "registry.db"
    engine = SqliteEngine(path, create=True)
    with engine.writing() as session:
        session.run("CREATE TABLE t (n INTEGER PRIMARY KEY, b BLOB)")
        session.run_many("INSERT INTO t VALUES (?, ?)", [(n, b"x" * 500) for n in range(200)])
    engine.close()
    data = bytearray(path.read_bytes())
    for at in range(4096, len(data), 4096):
        data[at : at + 64] = b"\xff" * 64
    path.write_bytes(data)
    broken = SqliteEngine(path)
    with pytest.raises(BadArtifact, match="malformed"):
        numbers(broken)
    broken.close()


def test_commits_are_synchronous(tmp_path: Path) -> None:
    engine = SqliteEngine(tmp_path / "registry.db", create=True)
    with engine.writing() as session:
        assert session.run("PRAGMA synchronous") == [(2,)]  # FULL
        assert session.run("PRAGMA journal_mode") == [("wal",)]
    engine.close()
    assert sqlite3.connect(tmp_path / "registry.db").execute("PRAGMA application_id").fetchone() == (0x41756B74,)


# Only PostgreSQL can be unreachable, restarted, or misconfigured.
postgres = pytest.mark.parametrize("address", [POSTGRES], indirect=True)


@postgres
def test_a_connection_that_broke_is_replaced(engine: Engine, open_engine: OpenEngine) -> None:
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> "
    with open_engine(False).reading() as session:
        session.run(end + "pg_backend_pid()")
    with pytest.raises(Unavailable):
        numbers(engine)
    assert numbers(engine) == []


@postgres
def test_a_connection_that_breaks_in_a_transaction_stores_nothing(engine: Engine, open_engine: OpenEngine) -> None:
    with pytest.raises(Unavailable), engine.writing() as session:
        session.run("INSERT INTO t VALUES (1)")
        own = session.run("SELECT pg_backend_pid()")[0][0]
        with open_engine(False).reading() as other:
            other.run("SELECT pg_terminate_backend(?)", (own,))
    assert numbers(engine) == []


@postgres
def test_a_server_without_fsync_is_refused(address: str) -> None:
    from auditkit.registry.postgres import PostgresEngine
    from tests.registry import cluster

    programs = cluster.programs()
    assert programs is not None
    with cluster.started(programs, fsync="off") as careless:
        with pytest.raises(Unsupported, match="fsync = off"):
            PostgresEngine(careless.new_database(), create=True)


@postgres
def test_a_user_without_rights_is_told_what_is_missing(address: str, open_engine: OpenEngine) -> None:
    from auditkit.registry.postgres import PostgresEngine

    with open_engine(False).writing() as session:
        session.run("DROP ROLE IF EXISTS guest")
        session.run("CREATE ROLE guest LOGIN")
    with pytest.raises(Unsupported, match="permission denied") as caught:
        PostgresEngine(address.replace("auditkit@", "guest@"), create=True)
    assert "auditkit_registry" in caught.value.hint


def test_nobody_listens(tmp_path: Path) -> None:
    pytest.importorskip("psycopg")
    from auditkit.registry.postgres import PostgresEngine

    with pytest.raises(Unavailable) as caught:
        PostgresEngine(f"postgresql://user:secret@/registry?host={tmp_path}")
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("url", ["postgresql://user:secret@host:port/x", "postgresql://u:secret@h/d?nosuch=1"])
def test_an_address_that_is_none(url: str) -> None:
    from auditkit.registry.postgres import PostgresEngine

    with pytest.raises(UsageError, match="is not an address") as caught:
        PostgresEngine(url)
    assert "secret" not in caught.value.message


def test_passwords_are_not_shown() -> None:
    from auditkit.registry.postgres import without_password

    assert without_password("postgresql://a:b@h/d?x=1") == "postgresql://a:***@h/d?x=1"
    assert without_password("postgresql://h/d?password=p&x=1") == "postgresql://h/d?password=***&x=1"
    assert without_password("postgresql://a@h/d") == "postgresql://a@h/d"
