"""The log holds what the database holds, in its order, once; after any interruption, and never another history."""

from __future__ import annotations

import base64
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from auditkit.errors import AuditkitError, BadArtifact, Unavailable, Untrusted
from auditkit.formats.limits import LIMITS
from auditkit.formats.note import NoteKey
from auditkit.registry.appending import Log
from auditkit.registry.backup import backup, restore
from auditkit.registry.database import Database
from auditkit.registry.folder import Folder, init, open_database
from auditkit.registry.limits import REGISTRY_LIMITS
from auditkit.registry.runs import KnownRun
from auditkit.store.progress import Silent
from auditkit.trust.log_reader import LogReader
from auditkit.trust.log_writer import LogWriter
from tests.registry.inprocess import ORIGIN, HandClock, Options, Service, open_registry, serving
from tests.registry.makers import Maker, key


def reader(service: Service) -> LogReader:
    """The log as a client reads it, over HTTP, believing only its key."""

    def fetch(path: str, limit: int) -> bytes:
        answer = service.get(f"/log/{path}")
        if answer.status_code != 200:
            raise Unavailable(f"{path}: {answer.status_code}")
        assert len(answer.content) <= limit
        return answer.content

    return LogReader(fetch, NoteKey.parse(service.get("/v1/runs").json()["log_key"]))


def settle(service: Service) -> None:
    """Let the log catch up."""
    while service.registry.log.catch_up():
        pass


def test_the_log_of_a_new_registry_has_a_checkpoint_before_its_first_entry(service: Service) -> None:
    log = reader(service)
    assert (log.checkpoint().size, log.checkpoint().origin) == (0, ORIGIN)
    assert log.entries(0, 0) == []


def test_the_log_has_every_envelope_in_the_order_of_the_receipts(service: Service, maker: Maker) -> None:
    envelopes = [maker.signed(step, key(1 + step % 4)) for step in range(300)]
    answers = service.post_many(envelopes)
    by_position = {answer.json()["position"]: data for answer, data in zip(answers, envelopes, strict=True)}
    settle(service)
    log = reader(service)
    assert log.checkpoint().size == 300
    assert log.checkpoint().origin == ORIGIN
    assert log.entries(0, 300) == [by_position[n] for n in range(300)]
    proof = log.proof(123)
    assert proof.index == 123
    tile = service.get("/log/tile/0/000")
    assert (tile.status_code, "immutable" in tile.headers["Cache-Control"]) == (200, True)
    assert service.get("/log/checkpoint").headers["Cache-Control"] == "no-cache"


def test_checkpoints_continue_each_other(service: Service, maker: Maker) -> None:
    roots = []
    for first in range(0, 60, 20):
        service.post_many([maker.signed(step, key(1)) for step in range(first, first + 20)])
        settle(service)
        roots.append(reader(service).checkpoint())
    log = reader(service)
    assert [log.root_at(checkpoint.size) for checkpoint in roots] == [checkpoint.root for checkpoint in roots]


def test_the_log_follows_by_itself(service: Service, maker: Maker) -> None:
    service.post(maker.signed(1, key(1)))
    for _ in range(600):
        if service.get("/v1/health").json()["logged"] == 1:
            break
        service.wait(pause())
    assert service.get("/v1/health").json() == {"status": "ok", "attestations": 1, "logged": 1}


async def pause() -> None:
    """Let others work."""
    import asyncio

    await asyncio.sleep(0.01)


def test_it_catches_up_at_the_end(run: KnownRun, maker: Maker, tmp_path: Path) -> None:
    slow = replace(REGISTRY_LIMITS, log_seconds=3600.0)
    with serving(tmp_path / "registry", run, Options(limits=slow)) as service:
        service.clock.seconds += 1
        for step in range(3):
            service.post(maker.signed(step, key(1)))
        service.registry._news.clear()
    assert written(tmp_path / "registry").checkpoint().size == 3


def written(folder: Path) -> LogReader:
    """The log of a folder, read from its files."""
    place = Folder(folder)
    public = NoteKey.parse(place.public.read_text(encoding="utf-8").strip())

    def fetch(path: str, limit: int) -> bytes:
        data = (place.log / path).read_bytes()
        assert len(data) <= limit
        return data

    return LogReader(fetch, public)


class Crash(Exception):
    """The process ends here."""


@pytest.mark.parametrize("when", ["before anything", "tiles", "half a checkpoint", "after the checkpoint"])
def test_a_crash_at_any_moment_is_made_up_for(
    run: KnownRun, maker: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    folder = tmp_path / "registry"
    with serving(folder, run) as service:
        service.post_many([maker.signed(step, key(1)) for step in range(300)])
    database = open_database(Folder(folder))
    origin, private = Folder(folder).key()
    shutil.rmtree(Folder(folder).log)
    writer = LogWriter(Folder(folder).log, origin, private)
    log = Log(database, writer, Folder(folder).log, entries=130)
    log.catch_up()
    crash(monkeypatch, when)
    with pytest.raises(Crash):
        log.catch_up()
    monkeypatch.undo()
    entries = database.bodies(0, most=1000)
    database.close()
    with serving(folder, run) as service:
        settle(service)
        assert reader(service).entries(0, 300) == entries


def crash(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    """Arrange for an interruption within an append."""
    from auditkit.trust import disk

    def stop(*_: object, **__: object) -> None:
        raise Crash

    if when == "before anything":
        monkeypatch.setattr("auditkit.registry.appending.LogWriter.append", stop)
    elif when == "tiles":
        monkeypatch.setattr(disk, "sync", stop)
    elif when == "half a checkpoint":
        monkeypatch.setattr(disk.os, "replace", stop)
    else:
        monkeypatch.setattr("auditkit.trust.log_writer._Edge.remove_partial", stop)


def test_a_log_that_is_ahead_gives_its_entries_back(run: KnownRun, maker: Maker, tmp_path: Path) -> None:
    """The database was restored from an older backup: what was promised is in the log, and is stored again."""
    folder, older = tmp_path / "registry", tmp_path / "older.db"
    with serving(folder, run) as service:
        service.post_many([maker.signed(step, key(1)) for step in range(20)])
    shutil.copy(Folder(folder).database, older)
    with serving(folder, run) as service:
        service.post_many([maker.signed(step, key(2)) for step in range(300)])
        settle(service)
        everything = service.registry.database.bodies(0, most=1000)
        checkpoint = reader(service).checkpoint()
    shutil.copy(older, Folder(folder).database)
    with serving(folder, run) as service:
        assert service.told == ["300 attestations were stored again from the log"]
        assert service.registry.database.bodies(0, most=1000) == everything
        assert reader(service).checkpoint() == checkpoint
        assert service.post(everything[310]).json()["position"] == 310
        assert service.post(maker.signed(5, key(3))).json()["position"] == 320


def stranger(number: int) -> dict[str, str]:
    """The header that brings along the key of that number."""
    return {"Auditkit_Key": base64.b64encode(key(number).public.raw).decode("ascii")}


def filled_by_strangers(folder: Path, run: KnownRun, maker: Maker) -> list[bytes]:
    """Make an open registry of 3 attestations, and take it back to a backup of before the last 2."""
    with serving(folder, run, Options(is_open=True)) as service:
        assert service.post(maker.signed(1, key(50)), **stranger(50)).status_code == 201
        database = open_database(Folder(folder))
        backup(database, folder.with_name("backup"), Silent())
        database.close()
        for number in (51, 52):
            assert service.post(maker.signed(2, key(number)), **stranger(number)).status_code == 201
        settle(service)
        path = f"/log/keys/{key(51).public.keyid}.pem"
        assert service.get(path).content == key(51).public.pem()
        assert service.get(path.replace(".pem", "")).status_code == 404
        entries = service.registry.database.bodies(0, most=10)
    Folder(folder).database.unlink()
    database = fresh(folder)
    restore(database, folder.with_name("backup"), Silent())
    assert database.size() == 1
    database.close()
    return entries


@pytest.mark.parametrize("is_open", [True, False])
def test_the_keys_of_strangers_are_beside_the_log(run: KnownRun, maker: Maker, tmp_path: Path, is_open: bool) -> None:
    folder = tmp_path / "registry"
    entries = filled_by_strangers(folder, run, maker)
    with serving(folder, run, Options(is_open=is_open)) as service:
        assert service.told == ["2 attestations were stored again from the log"]
        assert service.registry.database.bodies(0, most=10) == entries
        assert service.get(f"/v1/keys/{key(52).public.keyid}").content == key(52).public.pem()


@pytest.mark.parametrize(
    ("content", "error"), [(None, Untrusted), (b"", BadArtifact), (key(50).public.pem(), BadArtifact)]
)
def test_a_key_beside_the_log_must_be_the_one_of_its_name(
    run: KnownRun, maker: Maker, tmp_path: Path, content: bytes | None, error: type[AuditkitError]
) -> None:
    folder = tmp_path / "registry"
    filled_by_strangers(folder, run, maker)
    place = Folder(folder).log / "keys" / f"{key(51).public.keyid}.pem"
    place.unlink()
    if content is not None:
        place.write_bytes(content)
    database = open_database(Folder(folder))
    with pytest.raises(error):
        open_registry(folder, run, Options(is_open=True), HandClock(), [], database)
    assert database.size() == 1
    database.close()


def test_keys_are_written_for_a_log_that_has_none(run: KnownRun, maker: Maker, tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    with serving(folder, run) as service:
        service.post(maker.signed(1, key(1)))
        settle(service)
    shutil.rmtree(Folder(folder).log / "keys")
    with serving(folder, run) as service:
        settle(service)
        assert service.get(f"/log/keys/{key(1).public.keyid}.pem").content == key(1).public.pem()


def test_a_log_of_another_history_is_refused(run: KnownRun, maker: Maker, tmp_path: Path) -> None:
    """The database lost an attestation, or has another one: nothing is signed over it."""
    folder = tmp_path / "registry"
    with serving(folder, run) as service:
        service.post_many([maker.signed(step, key(1)) for step in range(5)])
        settle(service)
    before = (Folder(folder).log / "checkpoint").read_bytes()
    with serving(tmp_path / "other", run) as service:
        service.post(maker.signed(77, key(1)))
    shutil.copy(Folder(tmp_path / "other").database, Folder(folder).database)
    claim_log(folder)
    database = open_database(Folder(folder))
    with pytest.raises(Untrusted, match="the first 1 entries are not the attestations of the database"):
        open_registry(folder, run, Options(), HandClock(), [], database)
    assert database.size() == 1
    database.close()
    assert (Folder(folder).log / "checkpoint").read_bytes() == before


def fresh(folder: Path) -> Database:
    """An empty database in place of one that was lost."""
    other = folder.with_name("empty")
    init(other, ORIGIN)
    shutil.copy(Folder(other).database, Folder(folder).database)
    claim_log(folder)
    return open_database(Folder(folder))


def claim_log(folder: Path) -> None:
    """Let a database say that it belongs to the folder's log."""
    from auditkit.registry.sqlite import SqliteEngine

    engine = SqliteEngine(Folder(folder).database)
    with engine.writing() as session:
        vkey = Folder(folder).public.read_text(encoding="utf-8").strip()
        session.run("UPDATE meta SET value = ? WHERE name = 'vkey'", (vkey,))
    engine.close()


def test_a_database_of_another_log_is_refused(run: KnownRun, tmp_path: Path) -> None:
    init(tmp_path / "a", ORIGIN)
    init(tmp_path / "b", ORIGIN)
    shutil.copy(Folder(tmp_path / "a").database, Folder(tmp_path / "b").database)
    with pytest.raises(Untrusted, match="the database belongs to the log"):
        open_database(Folder(tmp_path / "b"))


def test_an_entry_that_was_changed_is_not_taken_back(run: KnownRun, maker: Maker, tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    with serving(folder, run) as service:
        service.post_many([maker.signed(step, key(1)) for step in range(5)])
        settle(service)
    bundle = Folder(folder).log / "tile/entries/000.p/5"
    bundle.write_bytes(bundle.read_bytes().replace(b"A", b"B", 1))
    Folder(folder).database.unlink()
    database = fresh(folder)
    with pytest.raises((BadArtifact, Untrusted)):
        open_registry(folder, run, Options(), HandClock(), [], database)
    assert database.size() == 0
    database.close()


def test_a_log_that_cannot_be_written_waits_and_is_told_once(
    service: Service, maker: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise Unavailable("the disk is full")

    monkeypatch.setattr("auditkit.registry.service.RETRY_SECONDS", 0.0)
    monkeypatch.setattr(service.registry.log, "catch_up", full)
    assert service.post(maker.signed(1, key(1))).status_code == 201
    for _ in range(20):
        service.wait(pause())
    assert service.told == ["the log waits: the disk is full"]
    monkeypatch.undo()
    settle(service)
    assert reader(service).checkpoint().size == 1


def test_every_error_of_a_log_is_an_expected_one(tmp_path: Path) -> None:
    log = Log(None, None, tmp_path, entries=1)  # type: ignore[arg-type]
    with pytest.raises(AuditkitError):
        log.read("checkpoint", LIMITS.note_bytes)
    (tmp_path / "checkpoint").write_bytes(b"x" * 10)
    with pytest.raises(BadArtifact):
        log.read("checkpoint", 9)
