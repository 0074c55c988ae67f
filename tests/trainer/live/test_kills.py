"""Killed at any moment: the run folder verifies as it lies there, and the run that goes on leaves the same bytes."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest

from tests.trainer import tiny
from tests.trainer.live import grown
from trainer import cli

# Dies at the n-th change of a file in the run folder or in what becomes it, as kill -9 does.
DIE_AT_EVENT = """
import os, signal
count = 0
def hook(event, args):
    global count
    if event == "open" and args[1] in (None, "r", "rb"):
        return
    if event in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link"):
        if any(str(arg).startswith(({out!r}, {new!r})) for arg in args[:2]):
            count += 1
            if count == {event}:
                {kill}
sys.addaudithook(hook)
"""
OFTEN = ["--state-every", "2"]
SLOW_STEPS = """
import time
from auditkit.replay.backend import Backend
before = Backend.step
Backend.step = lambda *a, **k: (time.sleep(0.03), before(*a, **k))[1]
"""


@pytest.fixture(scope="module")
def reference(prepared_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `publish` makes of a training that nothing disturbed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    work = Path(shutil.copytree(prepared_once, folder / "work"))
    assert grown.train(work, folder, *OFTEN) == 0
    made = grown.published(work, folder)
    grown.assert_same(folder / "out", made)
    return made


def command(work: Path, folder: Path) -> list[str]:
    """The command that trains and publishes."""
    return tiny.run_arguments(work, *grown.options(folder), *OFTEN)


def go_on(work: Path, folder: Path) -> int:
    """Resume; killed before the recipe has its name there is no run yet, and the same command starts it."""
    return tiny.resume(work) if (work / "recipe.json").exists() else cli.main(command(work, folder))


def check(folder: Path, seed: int) -> None:
    """What is there verifies, and its log continues the one seen before."""
    if (folder / "out").exists():
        grown.assert_verifies(folder / "out", folder, seed=seed)


@pytest.mark.parametrize("event", [1, 26, 42, 44, 51, 56, 58, 60])
def test_killed_at_a_change_of_the_run_folder(event: int, prepared: Path, reference: Path, tmp_path: Path) -> None:
    places = {"out": str(tmp_path / "out"), "new": str(tmp_path / ".tmp-out")}
    before = DIE_AT_EVENT.format(event=event, kill=tiny.KILL_SELF, **places)
    child = tiny.start_child(command(prepared, tmp_path), before=before)
    _, story = child.communicate(timeout=tiny.SECONDS)
    assert child.returncode in tiny.KILLED, story
    check(tmp_path, event)
    assert go_on(prepared, tmp_path) == 0
    grown.assert_same(tmp_path / "out", reference)
    names = [path.name for path in [*tmp_path.iterdir(), *(tmp_path / "out").rglob("*")]]
    assert [name for name in names if name.startswith(".tmp-")] == []


def test_killed_again_and_again(prepared: Path, reference: Path, tmp_path: Path) -> None:
    chance = random.Random(5)
    words = command(prepared, tmp_path)
    for number in range(4):
        child = tiny.start_child(words, before=SLOW_STEPS)
        until, steps = time.monotonic() + 60, 5 * number + chance.randrange(5)
        while _steps(prepared) < steps and time.monotonic() < until and child.poll() is None:
            time.sleep(0.01)
        time.sleep(0.3 * chance.random())
        child.kill()
        child.communicate()
        check(tmp_path, number)
        if (prepared / "recipe.json").exists():
            words = ["resume", str(prepared)]
    assert go_on(prepared, tmp_path) == 0
    grown.assert_same(tmp_path / "out", reference)
    check(tmp_path, 9)


def _steps(work: Path) -> int:
    records = work / "records.bin"
    return (records.stat().st_size - 16) // 140 if records.exists() else 0
