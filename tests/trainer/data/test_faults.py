"""What ends a preparation leaves nothing under a final name and no process: bad input, a crash, Ctrl-C, a full disk."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.trainer import tiny
from tests.trainer.data import mix

NOT_ON_WINDOWS = pytest.mark.skipif(sys.platform == "win32", reason="no such signals or limits there")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Both sources, to be changed."""
    mix.write(tmp_path / "sources")
    return tmp_path / "sources"


def nothing_left(work: Path) -> bool:
    """Only the lock lies in a work folder."""
    return [path.name for path in work.iterdir()] == [".lock"]


@pytest.mark.parametrize("processes", ["1", "2"])
@pytest.mark.parametrize(
    ("file", "data", "words"),
    [
        ("web/a.jsonl", b'{"text":"a"}\n{"txt":"b"}\n', "a.jsonl, line 2 (byte 13): there is no key 'text'"),
        ("web/deep/b.jsonl.zst", b"(\xb5/\xfd", "b.jsonl.zst: ends within a zstd frame"),
        ("books/c.parquet", b"PAR1", "c.parquet, after row 0: not a Parquet file"),
        ("books/d.txt", b"good \xff", "d.txt: not UTF-8 at byte 5 (0xff"),
    ],
)
def test_a_bad_file_is_named_and_the_same_folder_can_be_used_after(
    file: str, data: bytes, words: str, processes: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (folder / file).read_bytes()
    (folder / file).write_bytes(data)
    assert mix.prepare(folder, tmp_path / "work", f"--processes={processes}") == 4
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error
    assert nothing_left(tmp_path / "work")
    (folder / file).write_bytes(before)
    assert mix.prepare(folder, tmp_path / "work") == 0


def test_a_crashed_process_ends_the_preparation(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.trainer.data import work

    monkeypatch.setattr("trainer.data.sources.DocumentEncoder", work.DyingEncoder)
    (folder / "books/d.txt").write_bytes(b"die here " * 50)
    assert mix.prepare(folder, tmp_path / "work", "--processes=2") == 7
    error = capfd.readouterr().err
    assert "ended with exit code 9 before its work was done" in error and "Traceback" not in error
    assert nothing_left(tmp_path / "work")


SLOW = """
import trainer.data.sources
from tests.trainer.data.work import SlowEncoder
trainer.data.sources.DocumentEncoder = SlowEncoder
"""


def started(folder: Path, work: Path, pids: Path) -> subprocess.Popen[str]:
    """A preparation in two processes that take their time; returns when both are at work."""
    pids.mkdir()
    # who runs the tests in the background ignores SIGINT, and a child inherits that
    heard = "import signal, sys\nsignal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{heard}\n{SLOW}\nfrom trainer.cli import main\nsys.exit(main(sys.argv[1:]))"
    child = subprocess.Popen(
        [sys.executable, "-c", code, *mix.arguments(folder, work, "--processes=2")],
        cwd=tiny.ROOT, env=os.environ | {"TEST_PROCESSES": str(pids)}, stderr=subprocess.PIPE, encoding="utf-8",
        start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + tiny.SECONDS
    while len(list(pids.iterdir())) < 1 and child.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    return child


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def all_gone(pids: Path) -> bool:
    """Whether all processes of a pool have ended within a while."""
    deadline = time.monotonic() + tiny.SECONDS
    while time.monotonic() < deadline:
        if not any(is_alive(int(path.name)) for path in pids.iterdir()):
            return True
        time.sleep(0.05)
    return False


@NOT_ON_WINDOWS
@pytest.mark.optional("no process groups on Windows")
@pytest.mark.parametrize("whom", ["the group, as Ctrl-C does", "the first process"])
def test_ctrl_c_ends_all_processes_and_leaves_nothing(whom: str, folder: Path, tmp_path: Path) -> None:
    """Case 56."""
    child = started(folder, tmp_path / "work", tmp_path / "pids")
    with contextlib.ExitStack() as stack:
        stack.callback(child.kill)
        if whom == "the first process":
            child.send_signal(signal.SIGINT)
        else:
            os.killpg(child.pid, signal.SIGINT)
        _, error = child.communicate(timeout=tiny.SECONDS)
    assert (child.returncode, error.splitlines()[-1]) == (130, "error: interrupted")
    assert "Traceback" not in error
    assert nothing_left(tmp_path / "work")
    assert all_gone(tmp_path / "pids")


@NOT_ON_WINDOWS
@pytest.mark.optional("no such signals on Windows")
def test_sigterm_does_the_same(folder: Path, tmp_path: Path) -> None:
    child = started(folder, tmp_path / "work", tmp_path / "pids")
    child.send_signal(signal.SIGTERM)
    _, error = child.communicate(timeout=tiny.SECONDS)
    assert child.returncode == 143 and "Traceback" not in error
    assert nothing_left(tmp_path / "work")
    assert all_gone(tmp_path / "pids")


@NOT_ON_WINDOWS
@pytest.mark.optional("no SIGKILL on Windows")
def test_a_killed_preparation_leaves_no_process_and_no_final_name(folder: Path, tmp_path: Path) -> None:
    child = started(folder, tmp_path / "work", tmp_path / "pids")
    child.kill()
    child.communicate(timeout=tiny.SECONDS)
    assert child.returncode == -signal.SIGKILL
    assert all(path.name.startswith((".tmp-", ".lock")) for path in (tmp_path / "work").iterdir())
    assert all_gone(tmp_path / "pids")
    assert mix.prepare(folder, tmp_path / "work") == 0
    assert not [path for path in (tmp_path / "work").iterdir() if path.name.startswith(".tmp-")]


@NOT_ON_WINDOWS
@pytest.mark.optional("no such limits on Windows")
@pytest.mark.parametrize("limit", [200, 3000])
def test_a_full_disk_leaves_nothing(limit: int, folder: Path, tmp_path: Path) -> None:
    """Case 25: no file may have more than so many bytes, which reads like a disk that is full."""
    before = (
        "import resource, signal\nsignal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))"
    )
    child = tiny.start_child(mix.arguments(folder, tmp_path / "work"), before=before)
    _, error = child.communicate(timeout=tiny.SECONDS)
    assert child.returncode == 6, error
    assert "file too large" in error and "make room, then prepare again" in error and "Traceback" not in error
    assert nothing_left(tmp_path / "work")


def test_what_a_killed_attempt_left_does_not_matter(folder: Path, tmp_path: Path) -> None:
    """Killed between the names: some files are there under their names, but not the last one."""
    assert mix.prepare(folder, tmp_path / "a") == 0
    work = tmp_path / "b"
    (work / "corpus/old").mkdir(parents=True)
    (work / "corpus/old/00000.zst").write_bytes(b"of another corpus")
    (work / "ids.bin").write_bytes(b"half")
    (work / ".tmp-data-1/corpus").mkdir(parents=True)
    assert mix.prepare(folder, work) == 0
    assert mix.files(work) == mix.files(tmp_path / "a")
