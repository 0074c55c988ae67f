"""A signed publication: the log beside the files, the key in the manifest, and keys that cannot sign."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import auditkit
from auditkit.formats.run import RunManifest
from auditkit.trust.keys import PrivateKey, save_private, save_public
from auditkit.trust.log_reader import LogReader
from auditkit.trust.notes import note_key
from tests.trainer.test_publish import _publish

KEY = PrivateKey(b"publisher of the tiny test run!!")


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The private key in a file."""
    save_private(tmp_path / "publisher.pem", KEY)
    return tmp_path / "publisher.pem"


def published(folder: Path) -> tuple[RunManifest, LogReader]:
    """The manifest and the log of a published run."""
    manifest = RunManifest.parse((folder / "run.json").read_bytes())
    assert manifest.publisher is not None
    return manifest, LogReader(lambda path, limit: (folder / "log" / path).read_bytes(), manifest.publisher)


@pytest.mark.parametrize("more", [[], ["--compact"]])
def test_the_log_holds_the_records(finished_once: Path, tmp_path: Path, key: Path, more: list[str]) -> None:
    assert _publish(finished_once, tmp_path / "out", "--log-key", str(key), *more) == 0
    manifest, log = published(tmp_path / "out")
    assert manifest.publisher == note_key(f"auditkit-run/{manifest.run_id()}", KEY.public)
    assert (log.checkpoint().size, log.checkpoint().root.hex()) == (manifest.log.size, manifest.log.root)
    with auditkit.open_run(str(tmp_path / "out")) as run:
        assert log.entries(0, manifest.log.size) == [record.encode() for record in run.records]


def test_all_else_is_as_without_a_key(finished_once: Path, tmp_path: Path, key: Path) -> None:
    for name, more in (("plain", []), ("signed", ["--log-key", str(key)]), ("again", ["--log-key", str(key)])):
        assert _publish(finished_once, tmp_path / name, *more) == 0
    plain, signed, again = (
        {p.relative_to(tmp_path / name).as_posix(): p.read_bytes() for p in (tmp_path / name).rglob("*") if p.is_file()}
        for name in ("plain", "signed", "again")
    )
    assert signed == again
    assert {name for name in signed if not name.startswith("log/")} == set(plain)
    assert {name for name in plain if plain[name] != signed[name]} == {"run.json"}
    assert RunManifest.parse(plain["run.json"]).run_id() == RunManifest.parse(signed["run.json"]).run_id()


def test_an_origin_of_ones_own(
    finished_once: Path, tmp_path: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _publish(finished_once, tmp_path / "out", "--log-key", str(key), "--origin", "lab.example/runs/tiny") == 0
    manifest, log = published(tmp_path / "out")
    assert manifest.publisher is not None
    assert log.checkpoint().origin == manifest.publisher.name == "lab.example/runs/tiny"
    assert f"signed {manifest.publisher.text}" in capsys.readouterr().out


def test_a_part_of_a_run_is_the_begin_of_the_whole(finished_once: Path, tmp_path: Path, key: Path) -> None:
    """Publishing an unfinished run first does not make two histories."""
    work = tmp_path / "work"
    shutil.copytree(finished_once, work)
    assert _publish(finished_once, tmp_path / "whole", "--log-key", str(key)) == 0
    last = max(int(path.name) for path in (work / "states").iterdir())
    shutil.rmtree(work / "states" / f"{last:08d}")
    assert _publish(work, tmp_path / "part", "--log-key", str(key), "--partial") == 0
    (_, part), (_, whole) = published(tmp_path / "part"), published(tmp_path / "whole")
    assert part.checkpoint().size < whole.checkpoint().size
    assert whole.root_at(part.checkpoint().size) == part.checkpoint().root


@pytest.mark.parametrize("origin", ["two words", "a+b", "", "n" * 256])
def test_an_origin_that_cannot_be_one(
    finished_once: Path, tmp_path: Path, key: Path, capsys: pytest.CaptureFixture[str], origin: str
) -> None:
    assert _publish(finished_once, tmp_path / "out", "--log-key", str(key), "--origin", origin) == 2
    assert "error: --origin" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_keys_that_cannot_sign(finished_once: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_public(tmp_path / "public.pem", KEY.public)
    (tmp_path / "cut.pem").write_bytes(KEY.pem()[:60])
    os.chmod(tmp_path / "cut.pem", 0o600)
    for name, code in (("nothing.pem", 5), ("public.pem", 2), ("cut.pem", 4)):
        assert _publish(finished_once, tmp_path / "out", "--log-key", str(tmp_path / name)) == code
        assert KEY.pem().decode().splitlines()[1] not in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    assert _publish(finished_once, tmp_path / "out", "--origin", "lab.example") == 2
    assert "--log-key" in capsys.readouterr().err


def test_a_disk_that_is_full_leaves_nothing(
    finished_once: Path, tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if "log" in path.parts:
            raise OSError(28, "No space left on device", str(path))
        return real(path, data)

    monkeypatch.setattr(Path, "write_bytes", full)
    assert _publish(finished_once, tmp_path / "out", "--log-key", str(key)) == 6
    assert "the disk is full" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["publisher.pem"]
