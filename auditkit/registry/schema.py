"""The tables, and their version: a database that a newer registry made is refused, not guessed at."""

from __future__ import annotations

from auditkit.errors import BadArtifact, Unsupported, UsageError
from auditkit.formats.fields import UPDATE
from auditkit.registry.engine import Engine, Session

VERSION = 2

# Digests are their 32 bytes, times seconds since 1970 UTC. `position` is the place in the log: 0, 1, .. without a gap.
# Envelopes have a table of their own, so that coverage is read without them. Leases are advice that runs out.
TABLES = (
    "CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL)",
    "CREATE TABLE runs (id {integer} PRIMARY KEY, run {bytes} NOT NULL UNIQUE, name TEXT NOT NULL, "
    "size {integer} NOT NULL)",
    "CREATE TABLE keys (id {integer} PRIMARY KEY, keyid {bytes} NOT NULL UNIQUE, public {bytes} NOT NULL)",
    "CREATE TABLE attestations (position {integer} PRIMARY KEY, envelope {bytes} NOT NULL UNIQUE, "
    "leaf {bytes} NOT NULL, run {integer} NOT NULL REFERENCES runs (id), step {integer} NOT NULL, "
    "key {integer} NOT NULL REFERENCES keys (id), verdict {integer} NOT NULL, family TEXT NOT NULL, "
    "automation TEXT NOT NULL, outcome TEXT NOT NULL, finished {integer} NOT NULL, received {integer} NOT NULL, "
    "part TEXT NOT NULL)",
    "CREATE INDEX attestations_of_step ON attestations (run, step, key)",
    "CREATE INDEX attestations_of_key ON attestations (key, run, step)",
    "CREATE TABLE envelopes (position {integer} PRIMARY KEY REFERENCES attestations (position), body {bytes} NOT NULL)",
    "CREATE TABLE leases (run {integer} NOT NULL REFERENCES runs (id), step {integer} NOT NULL, "
    "key {integer} NOT NULL REFERENCES keys (id), expires {integer} NOT NULL, PRIMARY KEY (run, step, key))",
    "CREATE INDEX leases_of_key ON leases (key)",
    "CREATE TABLE lease_requests (key {integer} NOT NULL REFERENCES keys (id), nonce {bytes} NOT NULL, "
    "expires {integer} NOT NULL, PRIMARY KEY (key, nonce))",
)

# What brings tables of a version to the next: those of version 1 knew audits of whole steps only, whose part is "".
CHANGES = {1: ("ALTER TABLE attestations ADD COLUMN part TEXT NOT NULL DEFAULT ''",)}

_FIND = {
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'meta'",
    "postgresql": "SELECT count(*) FROM pg_tables WHERE schemaname = current_schema() AND tablename = 'meta'",
}


def create(engine: Engine, meta: dict[str, str]) -> None:
    """Make the tables, all or none, and note `meta`. UsageError: there are tables already."""
    with engine.writing() as session:
        if _has_tables(engine, session):
            raise _there_are_tables()
        for statement in TABLES:
            session.run(statement.format(**engine.types))
        session.run_many("INSERT INTO meta VALUES (?, ?)", [("schema", str(VERSION)), *meta.items()])


def require_none(engine: Engine) -> None:
    """UsageError: there are tables already."""
    with engine.reading() as session:
        if _has_tables(engine, session):
            raise _there_are_tables()


def read_meta(engine: Engine) -> dict[str, str]:
    """What `create` noted. UsageError: no tables; Unsupported: made by a newer registry; BadArtifact: no version."""
    with engine.reading() as session:
        if not _has_tables(engine, session):
            raise UsageError("the database holds no registry", hint="auditkit registry init makes one")
        meta = {str(name): str(value) for name, value in session.run("SELECT name, value FROM meta")}
    version = meta.get("schema", "")
    if not (version.isascii() and version.isdigit()):
        raise BadArtifact("the database names no version of its tables")
    if int(version) > VERSION:
        raise Unsupported(f"the database has tables of version {version}, this registry knows {VERSION}", hint=UPDATE)
    return meta


def bring_up_to_date(engine: Engine) -> None:
    """Change the tables of an older registry into those of this one, all or nothing; errors as `read_meta`."""
    if int(read_meta(engine)["schema"]) == VERSION:
        return
    with engine.writing() as session:  # where several begin at once, one changes them
        for version in range(int(session.run("SELECT value FROM meta WHERE name = 'schema'")[0][0]), VERSION):
            for statement in CHANGES[version]:
                session.run(statement)
        session.run("UPDATE meta SET value = ? WHERE name = 'schema'", (str(VERSION),))


def _there_are_tables() -> UsageError:
    return UsageError("the database holds a registry already", hint="serve it, or name another database")


def _has_tables(engine: Engine, session: Session) -> bool:
    return bool(session.run(_FIND[engine.kind])[0][0])
