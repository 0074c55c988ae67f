"""Places of attestations: logs in folders and on a static host, keys beside attestations, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from auditkit.audit import candidates
from auditkit.audit.collect import Collection, Collector
from auditkit.audit.record_table import RecordTable
from auditkit.audit.sources import Sources
from auditkit.errors import AuditkitError, BadArtifact, Unavailable, Untrusted, UsageError
from auditkit.formats.note import NoteKey
from auditkit.store import Silent
from auditkit.verdict import Verdict
from tests.audit.envelopes import KEYS, PUBLIC, chain, envelope, put, summary
from tests.formats import samples
from tests.store.servers import honest as honestly
from tests.store.servers import serve
from tests.trust import logs

ENTRIES = [envelope(step % 20, step // 20 % 5) for step in range(700)]


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints are remembered in a folder of this test."""
    monkeypatch.setenv("AUDITKIT_DATA", str(tmp_path / "data"))


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 700 entries, 100 of them different; do not write into it."""
    folder = tmp_path_factory.mktemp("log")
    logs.write(folder, ENTRIES)
    return folder


def sources(*places: object, key: NoteKey | None = logs.KEY, **options: Any) -> Sources:
    """Places, with the key of the log."""
    return Sources.of([str(place) for place in places], key, progress=Silent(), **options)


def collected(found: Sources) -> Collection:
    """What comes from some places."""
    with found:
        collector = Collector(samples.RUN_ID, RecordTable(chain()), PUBLIC, 1_800_000_000.0, processes=1)
        return collector.collect(found.batches(), found.count)


def test_a_log_in_a_folder_is_read_through_its_tiles(log: Path) -> None:
    found = collected(sources(log))
    assert len(found.rows) == 100
    assert (found.repeats, found.refused) == (600, [])


def test_a_log_on_a_static_host_gives_the_same(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "BATCH_ENTRIES", 256)  # several readers, one after the other
    with serve(honestly, {f"some/log/{name}": data for name, data in logs.files(log).items()}) as server:
        found = collected(sources(f"{server.url}some/log"))
        asked = [a.path for a in server.asked if "entries" in a.path]
    assert len(found.rows) == 100
    assert len(asked) == len(set(asked)) == 3


def test_a_log_with_a_forged_entry_is_no_log(log: Path) -> None:
    files = logs.files(log)
    bundle = next(name for name in files if "entries" in name)
    with serve(honestly, files | {bundle: logs.flip(300)(files[bundle])}) as server:
        with pytest.raises(BadArtifact):
            collected(sources(server.url))


def test_a_log_of_another_key_or_history_is_refused(log: Path, tmp_path: Path) -> None:
    from auditkit.trust.notes import note_key

    with pytest.raises(Untrusted):
        sources(log, key=note_key(logs.ORIGIN, logs.OTHER.public))
    collected(sources(log))
    other = tmp_path / "other"
    logs.write(other, [*ENTRIES[:10], *reversed(ENTRIES[10:])])
    with pytest.raises(Untrusted):
        sources(other)


def test_a_bare_old_copy_that_nothing_shows_to_be_the_same_log_is_not_read(log: Path, tmp_path: Path) -> None:
    collected(sources(log))
    logs.write(tmp_path / "old", ENTRIES[:300])
    with pytest.raises(Unavailable, match="300 entries where 700 were seen before") as caught:
        sources(tmp_path / "old")
    assert caught.value.hint == "take another place of this log: this one is old"


def test_a_log_needs_its_key_and_the_network(log: Path) -> None:
    with pytest.raises(UsageError, match="who signs it"):
        sources(log, key=None)
    with pytest.raises(Unavailable, match="offline"):
        sources("http://127.0.0.1:9/log", offline=True)
    with pytest.raises(AuditkitError):
        sources("ftp://127.0.0.1/log")


def test_a_log_inside_a_folder_is_not_taken_for_attestations(log: Path, tmp_path: Path) -> None:
    put(tmp_path, "in/a.json", envelope(0))
    logs.write(tmp_path / "in" / "log", [b"something else"])
    with sources(tmp_path / "in") as found:
        assert found.found.logs == [tmp_path / "in" / "log"]
        assert len(collected(found).rows) == 1


def test_keys_beside_attestations_are_known_by_their_file_names(tmp_path: Path) -> None:
    put(tmp_path, "in/alice.pem", KEYS[0].public.pem())
    put(tmp_path, "in/deep/bob.pem", KEYS[1].public.pem())
    put(tmp_path, "in/secret.pem", KEYS[2].pem())
    put(tmp_path, "in/small-order.pem", b"-----BEGIN PUBLIC KEY-----\nrubbish\n-----END PUBLIC KEY-----\n")
    with sources(tmp_path / "in") as found:
        assert {key.keyid: name for key, name in found.keys.items()} == {
            KEYS[0].public.keyid: "alice",
            KEYS[1].public.keyid: "bob",
        }
        assert [Path(refused.where).name for refused in found.refused] == ["small-order.pem"]
        assert found.found.others == 1  # secret.pem, a private key, which is nobody's attestation


def test_files_and_logs_together(log: Path, tmp_path: Path) -> None:
    put(tmp_path, "in/a.json", envelope(3, 4, Verdict.MISMATCH))
    put(tmp_path, "in/a.svr.json", summary(3))
    found = collected(sources(tmp_path / "in", log))
    assert len(found.rows) == 101
