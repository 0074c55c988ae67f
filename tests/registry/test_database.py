"""Attestations are stored once, in an order without gaps, whoever writes at the same time; and nothing half."""

from __future__ import annotations

import hashlib
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from auditkit.errors import Unsupported, UsageError
from auditkit.formats.merkle import leaf_hash
from auditkit.registry import schema
from auditkit.registry.database import PARTS, Database, New, Stored, add_key
from tests.registry.conftest import META, OpenEngine

RUN = b"\x11" * 32
MOST = 3


def new(step: int, key: int = 1, word: str = "", run: int = 0) -> New:
    """An attestation whose envelope is unlike that of any other step, key and word."""
    body = f"{run} {step} {key} {word}".encode()
    keyid = bytes([key]) * 32
    return New(
        envelope=hashlib.sha256(body).digest(),
        leaf=leaf_hash(body),
        run=run,
        step=step,
        keyid=keyid,
        public=keyid[::-1],
        verdict=0,
        family="cpu-x86_64",
        automation="",
        outcome="",
        finished=1_700_000_000 + step,
        received=1_800_000_000,
        body=body,
    )


@pytest.fixture
def db(database: Database) -> Database:
    """With one run of 100 steps, number 0."""
    assert database.add_run(RUN, "tiny", 100) == 0
    return database


def append(db: Database, *items: New) -> list[Stored]:
    """Store some."""
    return db.append(items, most=MOST)


def test_positions_are_dense_and_in_order(db: Database) -> None:
    assert append(db, new(5), new(6), new(7)) == [Stored(0, False), Stored(1, False), Stored(2, False)]
    assert append(db, new(8)) == [Stored(3, False)]
    assert db.size() == 4
    assert db.bodies(0, most=10) == [new(step).body for step in (5, 6, 7, 8)]
    assert db.bodies(2, most=1) == [new(7).body]
    assert list(db.leaves(4)) == [new(step).leaf for step in (5, 6, 7, 8)]
    assert list(db.leaves(2)) == [new(5).leaf, new(6).leaf]


def test_the_same_envelope_keeps_its_position(db: Database) -> None:
    append(db, new(5), new(6))
    assert append(db, new(6), new(9), new(9)) == [Stored(1, True), Stored(2, False), Stored(2, True)]
    assert db.size() == 3
    assert db.positions([new(6).envelope, new(9).envelope, b"\0" * 32]) == {new(6).envelope: 1, new(9).envelope: 2}
    assert db.positions([]) == {}


def test_what_is_read_is_what_was_stored(db: Database) -> None:
    item = replace(new(5), verdict=3, family="cuda-sm_90", automation="ci", outcome="ab" * 32)
    append(db, item)
    (fact,) = db.facts(0)
    assert (fact.position, fact.run, fact.step, fact.verdict) == (0, 0, 5, 3)
    assert (fact.family, fact.automation, fact.outcome, fact.finished) == ("cuda-sm_90", "ci", "ab" * 32, item.finished)
    assert db.keys() == {fact.key: (item.keyid, item.public)}
    assert db.key(item.keyid) == item.public
    assert db.key(b"\0" * 32) is None
    assert db.body(item.envelope) == (0, item.body)
    assert db.body(b"\0" * 32) is None
    assert db.received(0, most=5) == [(1_800_000_000, item.body)]
    assert db.of_step(0, 5, most=5) == [(0, item.envelope, item.keyid, 3, "")]
    assert db.facts(1) == db.of_step(0, 6, most=5) == []


def test_a_key_may_say_only_so_much_about_a_step(db: Database) -> None:
    words = [append(db, new(5, word=str(n)))[0] for n in range(MOST + 1)]
    assert words == [Stored(0, False), Stored(1, False), Stored(2, False), Stored(None, False)]
    assert append(db, new(5, key=2), new(6)) == [Stored(3, False), Stored(4, False)]
    # what is known stays known, also within one transaction that reaches the limit
    assert append(db, new(5, word="0")) == [Stored(0, True)]
    many = append(db, *(new(7, word=str(n)) for n in range(MOST + 2)))
    assert [item.position for item in many] == [5, 6, 7, None, None]


def test_nothing_of_a_transaction_that_fails_is_stored(db: Database) -> None:
    append(db, new(1))
    bad = replace(new(3), run=77)  # no such run
    with pytest.raises(Exception, match="(?i)foreign key"):
        append(db, new(2), bad)
    assert db.size() == 1
    assert append(db, new(2)) == [Stored(1, False)]


def test_writers_in_many_threads_leave_no_gap_and_no_double(db: Database, open_engine: OpenEngine) -> None:
    other = Database(open_engine(False))  # as another process would
    start = threading.Barrier(8)

    def work(worker: int) -> list[tuple[bytes, int | None]]:
        where = db if worker % 2 else other
        start.wait()
        found = []
        for step in range(20):
            mine, shared = new(step, key=2 + worker), new(step, key=1)
            for item, done in zip((mine, shared), append(where, mine, shared), strict=True):
                found.append((item.envelope, done.position))
        return found

    with ThreadPoolExecutor(8) as pool:
        answers = [answer for found in pool.map(work, range(8)) for answer in found]
    positions = dict(answers)
    assert len(positions) == db.size() == 9 * 20
    assert sorted(positions.values(), key=int) == list(range(9 * 20))
    assert set(answers) == set(positions.items())  # everybody was told the same position
    assert [hashlib.sha256(body).digest() for body in db.bodies(0, most=1000)] == sorted(positions, key=positions.get)


def test_a_run_keeps_its_number(db: Database) -> None:
    assert db.add_run(b"\x22" * 32, "other", 7) == 1
    assert db.add_run(RUN, "tiny", 100) == 0
    assert db.add_run(RUN, "tiny", 120) == 0
    assert db.runs() == [(0, RUN, "tiny", 120), (1, b"\x22" * 32, "other", 7)]
    with pytest.raises(Unsupported, match="has 100 steps, and had 120"):
        db.add_run(RUN, "tiny", 100)


def test_tables_are_made_once(db: Database, open_engine: OpenEngine) -> None:
    assert db.meta == {"schema": "2", **META}
    with pytest.raises(UsageError, match="holds a registry already"):
        schema.create(open_engine(False), META)


def test_tables_of_version_1_are_brought_up_to_date(database: Database, open_engine: OpenEngine) -> None:
    """They held audits of whole steps only."""
    database.add_run(RUN, "tiny", 100)
    append(database, new(5))
    with database.engine.writing() as session:
        session.run("ALTER TABLE attestations DROP COLUMN part")
        session.run("UPDATE meta SET value = '1' WHERE name = 'schema'")
    again = Database(open_engine(False))
    assert again.meta["schema"] == "2"
    assert [fact.part for fact in again.facts(0)] == [""]
    append(again, replace(new(6), part="0-3/8"))
    assert [fact.part for fact in again.facts(0)] == ["", "0-3/8"]
    assert Database(open_engine(False)).meta == again.meta


def test_parts_of_a_step_are_limited_by_themselves(db: Database) -> None:
    """Or a key that has audited a few micro-batches could not hand in the whole step any more."""
    parts = [replace(new(5, word=f"part {n}"), part=f"{n}/99") for n in range(MOST * PARTS + 1)]
    taken = append(db, *parts)
    assert [one.position for one in taken[-2:]] == [MOST * PARTS - 1, None]
    wholes = append(db, *(new(5, word=f"whole {n}") for n in range(MOST + 1)))
    assert [one.position is None for one in wholes] == [False] * MOST + [True]
    assert append(db, replace(new(5, word="late"), part="1/99"))[0].position is None
    assert db.of_step(0, 5, most=1)[0][4] == "0/99"


def test_a_part_does_not_end_the_lease_on_its_step(db: Database) -> None:
    with db.engine.writing() as session:
        key = add_key(session, bytes([1]) * 32, bytes([1]) * 32)
        session.run("INSERT INTO leases VALUES (0, 5, ?, 9)", (key,))
    for item, left in ((replace(new(5), part="0/8"), 1), (new(5, word="whole"), 0)):
        append(db, item)
        with db.engine.reading() as session:
            assert session.run("SELECT count(*) FROM leases")[0][0] == left


def test_a_database_without_tables_is_refused(open_engine: OpenEngine) -> None:
    with pytest.raises(UsageError, match="holds no registry"):
        Database(open_engine(True))


def test_tables_of_a_newer_registry_are_refused(db: Database, open_engine: OpenEngine) -> None:
    with db.engine.writing() as session:
        session.run("UPDATE meta SET value = '3' WHERE name = 'schema'")
    with pytest.raises(Unsupported, match="tables of version 3, this registry knows 2") as caught:
        Database(open_engine(False))
    assert caught.value.hint
