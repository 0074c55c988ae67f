"""A run folder that grows with its run: whole at every moment, and in the end the one that `publish` writes."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest

import auditkit
from auditkit.store.lock import only_writer
from auditkit.trust.keys import PrivateKey, save_private
from auditkit.verdict import Verdict
from tests.store.servers import forgetful, honest, serve
from tests.trainer import segmented, tiny
from tests.trainer.live import grown
from trainer import cli
from trainer.live import publisher
from trainer.live.publisher import Publisher

EXTEND = Publisher.extend


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, dict[str, bytes]]]:
    """How many steps each publication has, and all files then."""
    seen: list[tuple[int, dict[str, bytes]]] = []

    def extend(self: Publisher, step: int) -> Any:
        made = EXTEND(self, step)
        seen.append((made.steps, grown.files(self.out)))
        return made

    monkeypatch.setattr(Publisher, "extend", extend)
    return seen


@pytest.mark.parametrize("more", [[], ["--compact"], ["--publish-every", "10"]])
def test_it_ends_as_what_publish_writes(
    prepared: Path, tmp_path: Path, moments: list[tuple[int, dict[str, bytes]]], more: list[str]
) -> None:
    mirror = ["--mirror", "https://example.org/runs/tiny"]
    assert grown.train(prepared, tmp_path, *more, *mirror) == 0
    grown.assert_same(tmp_path / "out", grown.published(prepared, tmp_path, *more[: len(more) % 2], *mirror))
    steps = [count for count, _ in moments]
    assert steps[-1] == tiny.STEPS and steps == sorted(set(steps))
    if "--publish-every" in more:
        assert all(b - a >= 10 for a, b in zip([0, *steps], steps[:-1], strict=False))
    grown.assert_verifies(tmp_path / "out", tmp_path, random=3)


def test_at_every_moment_it_is_a_run_that_verifies(
    prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also before run.json is replaced, when everything else is there already."""
    write, seen = publisher.write_atomic, []

    def look(path: Path, data: bytes) -> None:
        out = tmp_path / "out"
        if path == out / "run.json":
            grown.assert_verifies(out, tmp_path, seed=len(seen))
        write(path, data)
        seen.append(path.name)
        if path == out / "run.json":
            grown.assert_verifies(out, tmp_path, seed=len(seen))

    monkeypatch.setattr(publisher, "write_atomic", look)
    assert grown.train(prepared, tmp_path) == 0
    assert 1 < len(seen) <= 5


def test_whoever_read_run_json_before_reads_on(
    prepared: Path, tmp_path: Path, moments: list[tuple[int, dict[str, bytes]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder or a server, with ranges and without, whose files have grown behind the manifest."""
    assert tiny.run(prepared, *grown.options(tmp_path), "--steps", "9") == 0
    for steps in ("12", "24"):
        assert tiny.resume(prepared, "--steps", steps) == 0
    (first, old), _, (last, new) = moments[0], moments[-2], moments[-1]
    assert first < last
    later = new | {"run.json": old["run.json"]}
    for behaviour in (honest, forgetful):
        with serve(behaviour, later) as server:
            cache = tmp_path / behaviour.__name__
            report = auditkit.verify(
                server.url, steps=f"0:{first}", device="cpu", cache_dir=cache, data_dir=tmp_path / "seen"
            )
            assert report.verdict is Verdict.MATCH, report.to_json()
    shutil.copytree(tmp_path / "out", tmp_path / "copy")
    (tmp_path / "copy" / "run.json").write_bytes(old["run.json"])
    grown.assert_verifies(tmp_path / "copy", tmp_path, random=first)


@pytest.mark.parametrize("behaviour", [honest, forgetful])
def test_a_mirror_that_is_behind_is_unavailable(
    behaviour: Any, prepared: Path, tmp_path: Path, moments: list[tuple[int, dict[str, bytes]]]
) -> None:
    assert tiny.run(prepared, *grown.options(tmp_path), "--steps", "9") == 0
    assert tiny.resume(prepared, "--steps", "24") == 0
    (_, old), (_, new) = moments[0], moments[-1]
    log = {path: new[path] for path in new if path.startswith("log/")}
    behind = old | log | {"run.json": new["run.json"]}
    with serve(behaviour, behind) as server:
        report = auditkit.verify(
            server.url, steps="20:22", device="cpu", cache_dir=tmp_path / "cache", data_dir=tmp_path / "seen"
        )
    assert report.verdict is Verdict.UNAVAILABLE, report.to_json()
    assert "the copy there may be older than the manifest" in report.to_json()


def test_segments_are_published_as_they_come(
    along: list[Path], tmp_path: Path, moments: list[tuple[int, dict[str, bytes]]]
) -> None:
    work = segmented.copy(along, 0, tmp_path)
    for number, command in enumerate(segmented.commands(work)):
        more = grown.options(tmp_path) if number == 0 else []
        assert cli.main([*command, *more]) == 0
        if number % 2 == 0:
            grown.assert_verifies(tmp_path / "out", tmp_path, random=2)
    assert len(grown.manifest(tmp_path / "out").changes) == 3
    grown.assert_same(tmp_path / "out", grown.published(work, tmp_path))
    assert [count for count, _ in moments][-1] == segmented.STEPS


def test_a_last_state_that_was_published_stays_when_the_run_goes_further(prepared: Path, tmp_path: Path) -> None:
    assert tiny.run(prepared, *grown.options(tmp_path), "--steps", "10") == 0
    assert [state.step for state in grown.manifest(tmp_path / "out").states] == [0, 6, 9, 10]
    assert tiny.resume(prepared, "--steps", "24") == 0
    assert [state.step for state in grown.manifest(tmp_path / "out").states] == [0, 6, 9, 10, 12, 18, 24]
    grown.assert_same(tmp_path / "out", grown.published(prepared, tmp_path))


def test_a_publication_may_begin_late_and_its_folder_be_lost(prepared: Path, tmp_path: Path) -> None:
    assert tiny.run(prepared, "--steps", "12") == 0
    assert tiny.resume(prepared, *grown.options(tmp_path), "--steps", "18") == 0
    assert grown.manifest(tmp_path / "out").steps == 18
    shutil.rmtree(tmp_path / "out")
    assert tiny.resume(prepared, "--steps", "24") == 0
    grown.assert_same(tmp_path / "out", grown.published(prepared, tmp_path))


def test_a_lost_log_is_signed_again_from_its_begin(prepared: Path, tmp_path: Path) -> None:
    assert tiny.run(prepared, *grown.options(tmp_path), "--steps", "12") == 0
    shutil.rmtree(tmp_path / "out" / "log")
    assert tiny.resume(prepared, "--steps", "24") == 0
    grown.assert_same(tmp_path / "out", grown.published(prepared, tmp_path))


def test_a_full_disk_does_not_stop_the_training(
    prepared: Path,
    finished_once: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    link, refused = publisher.link_or_copy, {"00000009", "00000012"}

    def full(source: Path, target: Path) -> None:
        if source.parent.name in refused:
            raise OSError(errno.ENOSPC, "No space left on device")
        link(source, target)

    monkeypatch.setattr(publisher, "link_or_copy", full)
    assert tiny.run(prepared, *grown.options(tmp_path)) == 6
    story = capsys.readouterr().err
    assert story.count("not published, the training goes on: ") == 1
    assert "error: " in story and "no space left on device" in story
    assert grown.manifest(tmp_path / "out").steps in (6, 9)
    grown.assert_verifies(tmp_path / "out", tmp_path)
    refused.clear()
    assert tiny.resume(prepared) == 0
    grown.assert_same(tmp_path / "out", grown.published(prepared, tmp_path))
    (prepared / "publication.json").unlink()
    tiny.assert_same_run(prepared, finished_once)


def test_another_folder_key_or_run_is_refused(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "something").touch()
    assert grown.train(prepared, tmp_path) == 2
    assert "exists already" in capsys.readouterr().err
    assert not (prepared / "recipe.json").exists()
    shutil.rmtree(tmp_path / "out")
    assert grown.train(prepared, tmp_path, "--steps", "9") == 0
    other = PrivateKey(b"somebody else's key of 32 bytes!")
    save_private(tmp_path / "other.pem", other)
    for words, message in (
        (["--name", "other"], "--name: this run is published with 'tiny'"),
        (["--origin", "other"], "--origin: this run is published with an origin made of its run id"),
        (["--compact"], "--compact: this run is published with its token stream"),
        (["--log-key", str(tmp_path / "other.pem")], "its log is signed as auditkit-run/"),
    ):
        assert tiny.resume(prepared, *words) == 2, words
        assert message in capsys.readouterr().err
    with only_writer(tmp_path / "out"):
        assert tiny.resume(prepared) == 5
    assert "another process is writing there" in capsys.readouterr().err
    assert tiny.resume(prepared, "--steps", "24") == 0
    grown.assert_same(tmp_path / "out", grown.published(prepared, tmp_path))


def test_a_folder_that_is_ahead_or_of_another_run_is_refused(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Path(shutil.copytree(prepared, tmp_path / "other"))
    assert grown.train(prepared, tmp_path) == 0
    assert tiny.run(other, "--steps", "12") == 0
    foreign = prepared / "states" / ".tmp-00000100-7"  # a state that another training is writing just now
    foreign.mkdir()
    assert tiny.resume(other, *grown.options(tmp_path), "--publish", str(prepared)) == 2
    assert "holds no run" in capsys.readouterr().err and foreign.is_dir()
    foreign.rmdir()
    assert tiny.resume(other, *grown.options(tmp_path)) == 2
    assert "has 24 steps, but the last complete state here is that of step 12" in capsys.readouterr().err
    assert tiny.resume(other, *grown.options(tmp_path), "--name", "another") == 2
    assert "this one has" in capsys.readouterr().err
    before = grown.files(tmp_path / "out")
    for name in ("records.bin", "stream.bin"):
        data = bytearray(before[name])
        data[100] ^= 1
        (tmp_path / "out" / name).write_bytes(data)
        assert tiny.resume(prepared) == 4
        assert f"{name}: not the bytes that were published" in capsys.readouterr().err
        (tmp_path / "out" / name).write_bytes(before[name])
    (tmp_path / "out" / "tokenizer.json").unlink()
    assert tiny.resume(prepared) == 4
    assert "tokenizer.json: was published with" in capsys.readouterr().err
