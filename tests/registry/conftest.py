"""Databases for the registry's tests: a SQLite file, and a database of a PostgreSQL server that the tests start."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from auditkit.registry import schema
from auditkit.registry.database import Database
from auditkit.registry.engine import Engine
from auditkit.registry.runs import KnownRun
from auditkit.registry.sqlite import SqliteEngine
from auditkit.replay.run import Run, open_run
from tests.registry.inprocess import Service, serving
from tests.registry.makers import Maker

if TYPE_CHECKING:
    from tests.registry.cluster import Cluster

META = {"origin": "registry.test/log", "vkey": "none"}

OpenEngine = Callable[[bool], Engine]

# Elsewhere nobody promises a PostgreSQL server; what is tested is the same on every system.
POSTGRES = pytest.param(
    "postgresql",
    marks=[] if sys.platform == "linux" else [pytest.mark.optional("PostgreSQL is installed for CI on Linux only")],
)
KINDS = ["sqlite", POSTGRES]


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server; the test is skipped where it is not installed."""
    if sys.platform == "win32":
        pytest.skip("the PostgreSQL server of the tests needs a local socket")
    from tests.registry import cluster as postgres

    programs = postgres.programs()
    if programs is None:
        pytest.skip("no PostgreSQL server is installed (Debian: apt-get install postgresql)")
    with postgres.started(programs) as running:
        yield running


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty database is to be: a path or a postgresql:// address, as `--database` takes it."""
    if request.param == "sqlite":
        return str(tmp_path / "registry.db")
    running: Cluster = request.getfixturevalue("cluster")
    return running.new_database()


@pytest.fixture
def open_engine(address: str) -> Iterator[OpenEngine]:
    """Open the database at `address`, as often as wanted; all are closed at the end."""
    opened: list[Engine] = []

    def open_one(create: bool = False) -> Engine:
        if address.startswith("postgresql:"):
            from auditkit.registry.postgres import PostgresEngine

            engine: Engine = PostgresEngine(address, create=create)
        else:
            engine = SqliteEngine(Path(address), create=create)
        opened.append(engine)
        return engine

    yield open_one
    for engine in opened:
        engine.close()


@pytest.fixture
def database(open_engine: OpenEngine) -> Database:
    """A database with tables and no rows."""
    engine = open_engine(True)
    schema.create(engine, META)
    return Database(engine)


@pytest.fixture(scope="session")
def opened() -> Run:
    """The bundled run of 1,000 steps."""
    return open_run("sotu-tiny")


@pytest.fixture
def run(opened: Run) -> Iterator[KnownRun]:
    """The same as a registry knows it."""
    known = KnownRun(opened.manifest, opened.records)
    yield known
    known.close()


@pytest.fixture
def maker(run: KnownRun) -> Maker:
    """Makes attestations of its steps."""
    return Maker(run)


@pytest.fixture
def service(run: KnownRun, tmp_path: Path) -> Iterator[Service]:
    """A registry on SQLite in this process."""
    with serving(tmp_path / "registry", run) as running:
        yield running
