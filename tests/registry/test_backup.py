"""A backup made at any moment is one state of the database, goes into either kind of database, and is not believed."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from auditkit.errors import AuditkitError, BadArtifact, Unavailable, Untrusted, UsageError
from auditkit.registry.backup import backup, restore
from auditkit.registry.folder import Folder, init, open_database
from auditkit.registry.runs import KnownRun
from auditkit.store.progress import Silent
from auditkit.trust.keys import load_private
from tests.registry.inprocess import LINES, ORIGIN, Options, serving
from tests.registry.makers import Maker, key


@pytest.fixture
def filled(run: KnownRun, maker: Maker, tmp_path: Path) -> Path:
    """The folder of a registry with 40 attestations of two keys, one of them not in the policy."""
    import base64

    folder = tmp_path / "registry"
    header = base64.b64encode(key(50).public.raw).decode("ascii")
    with serving(folder, run, Options(is_open=True)) as service:
        for by in (1, 50):
            lines = b"\n".join(maker.signed(step, key(by)) for step in range(20))
            answer = service.ask(
                "POST", "/v1/attestations/batch", content=lines, headers={**LINES, "Auditkit-Key": header}
            )
            assert {result["status"] for result in answer.json()["results"]} == {"taken"}
    return folder


def twin(filled: Path, path: Path, address: str | None = None) -> Path:
    """An empty registry with the same log key."""
    init(path, ORIGIN, address=address, private=load_private(Folder(filled).private))
    return path


def made(filled: Path) -> Path:
    """A backup of the filled registry."""
    path = filled.with_name("backup")
    database = open_database(Folder(filled))
    assert backup(database, path, Silent())[0] == 40
    database.close()
    return path


def test_restored_into_either_kind_it_is_the_same(filled: Path, tmp_path: Path, address: str) -> None:
    source = open_database(Folder(filled))
    count, root = backup(source, tmp_path / "backup", Silent())
    copy = open_database(Folder(twin(filled, tmp_path / "twin", address)), address)
    assert restore(copy, tmp_path / "backup", Silent()) == (count, root) == (40, root)
    assert copy.received(0, most=100) == source.received(0, most=100)
    assert copy.facts(0) == source.facts(0)
    assert copy.runs() == source.runs()
    assert copy.keys() == source.keys()
    again = backup(copy, tmp_path / "again", Silent())
    assert again == (count, root)
    assert lines_of(tmp_path / "again") == lines_of(tmp_path / "backup")
    copy.close()
    source.close()


def test_a_restored_registry_goes_on(filled: Path, run: KnownRun, maker: Maker, tmp_path: Path) -> None:
    copy = open_database(Folder(twin(filled, tmp_path / "twin")))
    restore(copy, made(filled), Silent())
    copy.close()
    with serving(tmp_path / "twin", run) as service:
        assert service.post(maker.signed(3, key(1))).json() == {
            "format": "auditkit/registry-receipt/v1",
            "status": "known",
            "envelope": service.registry.database.of_step(0, 3, most=1)[0][1].hex(),
            "position": 3,
        }
        assert service.post(maker.signed(500, key(2))).json()["position"] == 40
        while service.registry.log.catch_up():
            pass
        assert service.registry.log.size == 41


def test_a_backup_while_the_registry_serves(run: KnownRun, maker: Maker, tmp_path: Path) -> None:
    folder = tmp_path / "registry"
    envelopes = [maker.signed(step, key(1)) for step in range(200)]
    with serving(folder, run) as service:
        start = threading.Event()

        def submit() -> None:
            for number, envelope in enumerate(envelopes):
                assert service.post(envelope).status_code == 201
                if number == 20:
                    start.set()

        thread = threading.Thread(target=submit)
        thread.start()
        assert start.wait(60)
        other = open_database(Folder(folder))  # as the command does, in a process of its own
        counts = [backup(other, tmp_path / f"backup{n}", Silent()) for n in range(3)]
        other.close()
        thread.join(120)
    assert 20 < counts[0][0] <= counts[1][0] <= counts[2][0] <= 200
    for number, (count, root) in enumerate(counts):
        copy = open_database(Folder(twin(folder, tmp_path / f"twin{number}")))
        assert restore(copy, tmp_path / f"backup{number}", Silent()) == (count, root)
        assert copy.bodies(0, most=500) == envelopes[:count]
        copy.close()


def test_an_existing_file_stays(filled: Path, tmp_path: Path) -> None:
    path = tmp_path / "backup"
    path.write_text("mine", encoding="utf-8")
    database = open_database(Folder(filled))
    with pytest.raises(UsageError, match="never overwritten"):
        backup(database, path, Silent())
    with pytest.raises(AuditkitError):
        backup(database, tmp_path / "nowhere" / "backup", Silent())
    database.close()
    assert path.read_text(encoding="utf-8") == "mine"
    assert sorted(place.name for place in tmp_path.iterdir()) == ["backup", "registry"]


def lines_of(path: Path) -> list[dict[str, object]]:
    """What a backup says."""
    with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as reader:
        return [json.loads(line) for line in io.TextIOWrapper(reader, encoding="utf-8")]


def rewritten(path: Path, change: Callable[[list[dict[str, object]]], object]) -> Path:
    """The same backup after `change` was at its lines."""
    found = lines_of(path)
    change(found)
    data = "".join(json.dumps(line) + "\n" for line in found).encode("utf-8")
    path.write_bytes(zstandard.ZstdCompressor().compress(data))
    return path


def put(index: int, **values: object) -> Callable[[list[dict[str, object]]], object]:
    """Change some values of a line."""
    return lambda lines: lines[index].update(values)


CHANGES: dict[str, tuple[Callable[[list[dict[str, object]]], object], type[AuditkitError]]] = {
    "an attestation is missing": (lambda lines: lines.pop(10), Untrusted),
    "two changed places": (lambda lines: lines.insert(10, lines.pop(11)), Untrusted),
    "an attestation twice": (lambda lines: lines.insert(10, lines[10]), BadArtifact),
    "the end is missing": (lambda lines: lines.pop(), BadArtifact),
    "more behind the end": (lambda lines: lines.append(lines[10]), BadArtifact),
    "another count": (put(-1, attestations=39), Untrusted),
    "another root": (put(-1, root="ab" * 32), Untrusted),
    "a key is missing": (lambda lines: lines.pop(2), Untrusted),
    "the run is missing": (lambda lines: lines.pop(1), BadArtifact),
    "a forged attestation": (
        lambda lines: put(10, envelope=str(lines[10]["envelope"]).replace('"sig":"A', '"sig":"B', 1) + " ")(lines),
        BadArtifact,
    ),
    "an unknown key of a line": (put(10, note="x"), BadArtifact),
    "an unknown key of the head": (put(0, note="x"), BadArtifact),
    "another registry": (put(0, vkey="other"), Untrusted),
    "a float": (put(10, received=1.5), BadArtifact),
    "no object": (lambda lines: lines.insert(3, []), BadArtifact),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_backup_is_refused_and_nothing_is_stored(filled: Path, tmp_path: Path, name: str) -> None:
    change, error = CHANGES[name]
    path = rewritten(made(filled), change)
    copy = open_database(Folder(twin(filled, tmp_path / "twin")))
    with pytest.raises(error):
        restore(copy, path, Silent())
    assert copy.size() == 0
    assert copy.keys() == {}
    copy.close()


@pytest.mark.parametrize("part", [0, 1, 100, -1, -100])
def test_a_cut_backup_is_refused(filled: Path, tmp_path: Path, part: int) -> None:
    path = made(filled)
    path.write_bytes(path.read_bytes()[:part])
    copy = open_database(Folder(twin(filled, tmp_path / "twin")))
    with pytest.raises(BadArtifact):
        restore(copy, path, Silent())
    assert copy.size() == 0
    copy.close()


def test_a_flipped_bit_is_damage_and_no_forgery(filled: Path, tmp_path: Path) -> None:
    path = made(filled)
    data = path.read_bytes()
    copy = open_database(Folder(twin(filled, tmp_path / "twin")))
    for place in range(6, len(data), max(1, len(data) // 400)):  # the frame's own header says how to read the rest
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        with pytest.raises(BadArtifact):
            restore(copy, path, Silent())
    assert copy.size() == 0
    copy.close()


def test_no_backup_at_all(filled: Path, tmp_path: Path) -> None:
    copy = open_database(Folder(twin(filled, tmp_path / "twin")))
    with pytest.raises(Unavailable):
        restore(copy, tmp_path / "nowhere", Silent())
    (tmp_path / "text").write_text("no backup", encoding="utf-8")
    with pytest.raises(BadArtifact):
        restore(copy, tmp_path / "text", Silent())
    copy.close()


def test_only_an_empty_database_is_filled(filled: Path) -> None:
    path = made(filled)
    database = open_database(Folder(filled))
    with pytest.raises(UsageError, match="holds attestations already"):
        restore(database, path, Silent())
    assert database.size() == 40
    database.close()
