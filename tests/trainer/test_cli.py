"""The command line: exit codes, and what is said where."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from auditkit.errors import UsageError
from auditkit.verdict import Verdict
from tests.trainer import tiny
from trainer import cli


def _child(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trainer", *arguments],
        cwd=tiny.ROOT,
        env=os.environ | environment,
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=tiny.SECONDS,
    )


def test_the_whole_path_as_a_user_types_it(tmp_path: Path) -> None:
    texts, work, out = tiny.write_texts(tmp_path / "texts"), str(tmp_path / "work"), str(tmp_path / "run")
    (tmp_path / "recipe.toml").write_text(tiny.RECIPE, encoding="utf-8")
    done = _child(
        *("prepare", str(texts), work, "--vocab-size", "300", "--context-length", "16"),
        *("--title", "tiny texts", "--license", "CC0-1.0"),
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (0, "tokenising 5/5 4.txt")
    assert done.stdout == (
        "documents 5\nbytes     581\ntokens    182 (3.19 bytes each)\nwindows   11 of 16 tokens an epoch\n"
    )
    done = _child("run", str(tmp_path / "recipe.toml"), work, "--steps", "6", "--state-every", "3", "--threads", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("step 6 of 6\nstate ")
    assert done.stderr.startswith("training 6/6 loss 5.")
    done = _child("publish", work, out, "--name", "tiny")
    assert done.returncode == 0, done.stderr
    assert "steps  6\nstates 0 3 6\n" in done.stdout
    assert (tmp_path / "run" / "run.json").is_file()


@pytest.mark.parametrize("command", [[], ["prepare"], ["run"], ["resume"], ["publish"]])
def test_help_says_what_each_command_wants(command: list[str]) -> None:
    done = _child(*command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: python -m trainer")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["bake"],
        ["run", "recipe.toml"],
        ["run", "r", "w", "--steps", "0"],
        ["run", "r", "w", "--steps", "-1"],
        ["run", "r", "w", "--steps", "1.5"],
        ["run", "r", "w", "--keep-states", "1,,2"],
        ["run", "r", "w", "--keep-states", "x"],
        ["prepare", "t", "w"],
        ["publish", "w", "o"],
    ],
)
def test_wrong_usage_is_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    captured = capsys.readouterr()
    assert (captured.out, "usage:" in captured.err) == ("", True)


def test_an_error_is_two_lines_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.resume(tmp_path) == Verdict.USAGE.code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        f"error: {tmp_path}: no run has been started here\nhint: python -m trainer run RECIPE WORK\n"
    )


def test_a_missing_work_folder_is_unavailable(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.resume(tmp_path / "none") == Verdict.UNAVAILABLE.code
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        (UsageError("no", hint="yes"), 2, "error: no\nhint: yes\n"),
        (OSError(28, "No space left on device", "x"), 6, "no space left on device"),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
        (MemoryError(), 6, "error: out of memory\n"),
        (KeyError("bug"), 70, "error: internal error"),
    ],
)
def test_every_end_has_its_code(
    raised: BaseException, code: int, words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr("trainer.run.resume", fail)
    assert tiny.resume(Path("work")) == code
    assert words in capsys.readouterr().err


def test_names_beyond_the_terminal_are_shown_and_change_no_code(tmp_path: Path) -> None:
    work = tmp_path / "wörk 😀"
    texts = tiny.write_texts(tmp_path / "texts")
    (texts / "é😀.txt").write_bytes(b"more text")
    done = _child(
        *("prepare", str(texts), str(work), "--vocab-size", "300", "--context-length", "16"),
        *("--title", "tiny 😀", "--license", "CC0-1.0"),
        PYTHONIOENCODING="ascii",
        NO_COLOR="1",
    )
    assert done.returncode == 0, done.stderr
    assert "\\U0001f600.txt" in done.stderr
    assert "\x1b" not in done.stderr + done.stdout


@pytest.mark.optional("no /dev/full but on Linux")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_stdout_is_named_and_the_publication_is_there(finished_once: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainer", "publish", str(finished_once), str(tmp_path / "o"), "--name", "t"]
    with Path("/dev/full").open("w", encoding="ascii") as full:
        done = subprocess.run(
            command, cwd=tiny.ROOT, stdout=full, stderr=subprocess.PIPE, encoding="utf-8", check=False, timeout=60
        )
    assert done.returncode == Verdict.UNAVAILABLE.code
    assert done.stderr.splitlines()[-1] == (
        "error: the work is done, but the result could not be written to stdout: no space left on device"
    )
    assert (tmp_path / "o" / "run.json").is_file()


@pytest.mark.optional("no /dev/full but on Linux")
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_stderr_stops_no_training(prepared: Path, finished_once: Path) -> None:
    with Path("/dev/full").open("w", encoding="ascii") as full:
        done = subprocess.run(
            [sys.executable, "-m", "trainer", *tiny.run_arguments(prepared)],
            cwd=tiny.ROOT,
            stdout=subprocess.PIPE,
            stderr=full,
            check=False,
            timeout=60,
        )
    assert done.returncode == 0
    tiny.assert_same_run(prepared, finished_once)


@pytest.mark.optional("Windows has no such limit")
@pytest.mark.skipif(sys.platform == "win32", reason="no such limit on Windows")
def test_a_publication_that_finds_no_room_names_where(finished_once: Path, tmp_path: Path) -> None:
    child = tiny.start_child(
        ["publish", str(finished_once), str(tmp_path / "o"), "--name", "t"],
        before="import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))",
    )
    _, story = child.communicate(timeout=tiny.SECONDS)
    assert child.returncode == Verdict.UNSUPPORTED.code
    assert f"error: {tmp_path / 'o'}: file too large" in story
    assert "make room, then publish again" in story
    assert list(tmp_path.iterdir()) == []


@pytest.mark.optional("Windows has no such signal")
@pytest.mark.skipif(not hasattr(signal, "SIGPIPE"), reason="no such signal on Windows")
def test_a_closed_pipe_gives_no_traceback(finished_once: Path, tmp_path: Path) -> None:
    command = (
        f"('{sys.executable}' -m trainer publish '{finished_once}' '{tmp_path / 'o'}' --name t; echo $? >&2) | true"
    )
    done = subprocess.run(
        ["sh", "-c", command], cwd=tiny.ROOT, capture_output=True, encoding="utf-8", check=False, timeout=60
    )
    assert done.stderr.splitlines() == ["checking steps 24/24", "checking states 6/6 step 24", "0"]
    assert (tmp_path / "o" / "run.json").is_file()
