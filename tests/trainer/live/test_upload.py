"""Uploads: in order, again after a failure, ended in time, and never in the way of the training."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from auditkit.formats.run import RunManifest
from tests.trainer import tiny
from tests.trainer.live import grown
from tests.trainer.test_run import posix_only
from trainer import cli
from trainer.live import worker
from trainer.live.upload import changed

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="the commands are those of a POSIX shell"),
    pytest.mark.optional("Windows has another shell"),
]

# Copies the files of the list, one after the other, to where auditors fetch them.
COPY = (
    'while read -r path; do mkdir -p "$(dirname "{target}/$path")" && cp "$path" "{target}/$path" || exit 3;'
    ' done < "$AUDITKIT_FILES"; echo "$AUDITKIT_STEP $AUDITKIT_FOLDER" >> {said}'
)


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PAUSES", (0.01, 0.05))


def copy(folder: Path) -> str:
    """The command that copies into `folder`/mirror."""
    return COPY.format(target=folder / "mirror", said=folder / "said")


def test_what_is_published_is_uploaded(prepared: Path, tmp_path: Path) -> None:
    assert grown.train(prepared, tmp_path, "--state-every", "1", "--upload", copy(tmp_path)) == 0
    found, expected = grown.files(tmp_path / "mirror"), grown.files(tmp_path / "out")
    assert [path for path in expected if ".p/" not in path and found.get(path) != expected[path]] == []
    assert {f"log/tile/0/000.p/{tiny.STEPS}", f"log/tile/entries/000.p/{tiny.STEPS}"} <= set(found)
    said = [line.split() for line in (tmp_path / "said").read_text(encoding="utf-8").splitlines()]
    assert said[-1] == [str(tiny.STEPS), str(tmp_path / "out")]
    assert tiny.resume(prepared) == 0  # nothing is left to do
    assert len((tmp_path / "said").read_text(encoding="utf-8").splitlines()) == len(said)
    grown.assert_verifies(tmp_path / "mirror", tmp_path, random=2)


def test_the_list_has_what_changed_and_the_manifest_last(prepared: Path, tmp_path: Path) -> None:
    assert tiny.run(prepared, *grown.options(tmp_path), "--steps", "9") == 0
    before = grown.manifest(tmp_path / "out")
    all_files = set(grown.files(tmp_path / "out"))
    first = changed(tmp_path / "out", None, before)
    assert first[-2:] == ["log/checkpoint", "run.json"]
    assert {path for path in all_files - set(first) if "/000.p/" not in path} == set()
    assert tiny.resume(prepared, "--steps", "12") == 0
    now = grown.manifest(tmp_path / "out")
    assert changed(tmp_path / "out", before, now) == [
        "leaves.bin",
        "records.bin",
        "states/00000012/index.json",
        "states/00000012/state.json",
        "stream.bin",
        "stream.idx",
        "states/00000012/shard-00000.safetensors.zst",
        "log/tile/0/000.p/12",
        "log/tile/entries/000.p/12",
        "log/checkpoint",
        "run.json",
    ]
    assert changed(tmp_path / "out", now, now) == ["log/checkpoint", "run.json"]


def test_a_failure_is_told_once_and_the_next_list_holds_what_it_left(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = f'test "$AUDITKIT_STEP" -gt 12 || {{ echo no route to host >&2; exit 7; }}; {copy(tmp_path)}'
    assert grown.train(prepared, tmp_path, "--upload", failing, "--upload-tries", "2") == 0
    story = capsys.readouterr().err
    assert story.count("upload failed, the training goes on: ended with code 7: no route to host") <= 1
    found, expected = grown.files(tmp_path / "mirror"), grown.files(tmp_path / "out")
    assert [path for path in expected if ".p/" not in path and found.get(path) != expected[path]] == []


def test_an_upload_that_never_succeeds_ends_with_5_and_can_be_repeated(
    prepared: Path, finished_once: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grown.train(prepared, tmp_path, "--upload", "echo oh dear; exit 9", "--upload-tries", "2") == 5
    story = capsys.readouterr().err
    assert "error: the last upload has not succeeded: ended with code 9: oh dear" in story
    assert f"hint: python -m trainer upload {prepared} repeats it" in story
    tiny.assert_same_run(prepared, finished_once)
    assert cli.main(["upload", str(prepared), "--upload-tries", "1"]) == 5
    assert "ended with code 9" in capsys.readouterr().err
    assert cli.main(["upload", str(prepared), "--upload", copy(tmp_path)]) == 0
    assert "uploaded 24 steps" in capsys.readouterr().out
    assert cli.main(["upload", str(prepared)]) == 0
    assert "nothing to upload" in capsys.readouterr().out
    grown.assert_verifies(tmp_path / "mirror", tmp_path)


def test_an_upload_that_hangs_is_ended(prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.monotonic()
    hanging = "echo $$ >> ../pids; sleep 1000 & wait"
    limits = ["--upload-tries", "1", "--upload-seconds", "1"]
    assert grown.train(prepared, tmp_path, "--upload", hanging, *limits) == 5
    assert time.monotonic() - started < tiny.SECONDS  # the command would take 1000
    assert "the last upload has not succeeded: took longer than 1 s" in capsys.readouterr().err


@pytest.mark.parametrize("stubborn", ["", "trap '' TERM; "])
def test_a_command_does_not_outlive_a_trainer_that_is_killed(prepared: Path, tmp_path: Path, stubborn: str) -> None:
    """It would read a folder that the next training changes, and end with an older run.json behind a newer one."""
    hanging = f"{stubborn}sleep 1000 & echo $$ $! > ../pids.new; mv ../pids.new ../pids; wait; sleep 1000"
    child = tiny.start_child(tiny.run_arguments(prepared, *grown.options(tmp_path, "--upload", hanging)))
    wait_for(lambda: (tmp_path / "pids").exists() or child.poll() is not None)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text(encoding="ascii").split()]
    assert all(map(lives, pids))
    child.kill()
    child.communicate()
    wait_for(lambda: not any(map(lives, pids)))


def wait_for(done: Callable[[], bool]) -> None:
    """Until something is so."""
    until = time.monotonic() + tiny.SECONDS
    while not done():
        assert time.monotonic() < until
        time.sleep(0.05)


def lives(pid: int) -> bool:
    """Whether there is a process that has not ended."""
    state = Path(f"/proc/{pid}/stat")  # one that nobody has waited for has ended all the same
    try:
        os.kill(pid, 0)
        return not state.exists() or state.read_text(encoding="ascii").rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):  # at any time: before it is looked at, opened or read
        return False


@posix_only
def test_asked_to_stop_it_breaks_an_upload_off_and_repeats_it_later(prepared: Path, tmp_path: Path) -> None:
    words = grown.options(tmp_path, "--upload", "touch ../begun; sleep 1000")
    child = tiny.start_child(tiny.run_arguments(prepared, *words))
    until = time.monotonic() + tiny.SECONDS
    while not (tmp_path / "begun").exists():
        assert child.poll() is None and time.monotonic() < until
        time.sleep(0.01)
    time.sleep(0.5)  # the training is over by now, or is asked to stop
    child.send_signal(signal.SIGTERM)
    _, story = child.communicate(timeout=tiny.SECONDS)
    assert child.returncode == 0, story
    assert "the last upload is not complete; python -m trainer upload" in story
    assert tiny.resume(prepared, "--upload", copy(tmp_path)) == 0
    assert RunManifest.parse((tmp_path / "mirror" / "run.json").read_bytes()).steps == tiny.STEPS


def test_without_a_publication_there_is_nothing_to_upload(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["upload", str(finished)]) == 2
    assert "is not published while it is trained" in capsys.readouterr().err
