"""States written beside the training: never two at a time, never before their records, waited for at any end."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from auditkit.errors import Unsupported
from auditkit.formats.record import RecordFile
from auditkit.replay.backend import Backend
from tests.trainer import tiny
from tests.trainer.test_run import posix_only
from trainer import runner
from trainer.states import complete_steps

WRITE = runner.write_shards


def test_steps_go_on_while_a_state_is_written(
    prepared: Path, finished_once: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed = {step: threading.Event() for step in range(tiny.STEPS + 1)}
    step = Backend.step

    def noted(self: Backend, state: Any, *more: Any, **options: Any) -> Any:
        computed[state.step].set()
        return step(self, state, *more, **options)

    def late(temporary: Path, *more: Any, **options: Any) -> Any:
        number = int(temporary.name.split("-")[1])
        if 0 < number < tiny.STEPS:
            assert computed[number + 1].wait(60), "the training waits for the state"
        return WRITE(temporary, *more, **options)

    monkeypatch.setattr(Backend, "step", noted)
    monkeypatch.setattr(runner, "write_shards", late)
    assert tiny.run(prepared) == 0
    tiny.assert_same_run(prepared, finished_once)


def test_one_state_is_written_at_a_time_and_behind_its_records(prepared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way, seen = threading.Lock(), []

    def slow(temporary: Path, *more: Any, **options: Any) -> Any:
        assert under_way.acquire(blocking=False), "two states at the same time"
        number = int(temporary.name.split("-")[1])
        rows = RecordFile.parse((prepared / "records.bin").read_bytes()[: 16 + number * 140]).rows
        seen.append((number, len(rows)))
        time.sleep(0.005)
        found = WRITE(temporary, *more, **options)
        under_way.release()
        return found

    monkeypatch.setattr(runner, "write_shards", slow)
    assert tiny.run(prepared, "--state-every", "1") == 0
    assert seen == [(step, step) for step in range(tiny.STEPS + 1)]
    assert complete_steps(prepared / "states") == list(range(tiny.STEPS + 1))


def test_a_disk_that_refuses_ends_the_training_between_two_steps(
    prepared: Path, finished_once: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(temporary: Path, *more: Any, **options: Any) -> Any:
        if temporary.name.startswith(".tmp-00000009"):
            raise Unsupported("states: no space left on device", hint="make room")
        return WRITE(temporary, *more, **options)

    monkeypatch.setattr(runner, "write_shards", full)
    assert tiny.run(prepared) == 6
    story = capsys.readouterr().err
    assert "error: states: no space left on device\nhint: make room" in story
    assert story.count("error:") == 1
    assert complete_steps(prepared / "states") == [0, 6]
    rows = RecordFile.parse((prepared / "records.bin").read_bytes()).rows
    assert 9 <= len(rows) <= 12  # the state of step 12 would have waited for it
    monkeypatch.setattr(runner, "write_shards", WRITE)
    assert tiny.resume(prepared) == 0
    tiny.assert_same_run(prepared, finished_once)


def test_a_step_without_a_result_does_not_cost_the_state_before_it(
    prepared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from auditkit.model.step import NonFinite

    step = Backend.step

    def last(self: Backend, state: Any, *more: Any, **options: Any) -> Any:
        if state.step == 9:
            raise NonFinite("not finite")
        return step(self, state, *more, **options)

    def slow(*more: Any, **options: Any) -> Any:
        time.sleep(0.1)
        return WRITE(*more, **options)

    monkeypatch.setattr(Backend, "step", last)
    monkeypatch.setattr(runner, "write_shards", slow)
    assert tiny.run(prepared) == 2
    assert complete_steps(prepared / "states") == [0, 6, 9]


SLOW_WRITER = """
import sys, time
from trainer import runner
write = runner.write_shards
def slow(temporary, *more, **options):
    if not temporary.name.startswith(".tmp-00000000"):
        print("writing", file=sys.stderr, flush=True)
        for _ in range({tenths}):
            time.sleep(0.1)
            if options["stop"].is_set():
                break
    return write(temporary, *more, **options)
runner.write_shards = slow
"""


@posix_only
def test_asked_to_stop_it_waits_for_the_state(prepared: Path, finished_once: Path) -> None:
    child = tiny.start_child(tiny.run_arguments(prepared), before=SLOW_WRITER.format(tenths=5))
    assert child.stderr is not None
    while "writing" not in (line := child.stderr.readline()):
        assert line, "it ended without a word"
    child.send_signal(signal.SIGTERM)
    out, story = child.communicate(timeout=tiny.SECONDS)
    assert child.returncode == 0, story
    assert complete_steps(prepared / "states")[-1] == int(out.split()[1]) >= 6
    assert tiny.resume(prepared) == 0
    tiny.assert_same_run(prepared, finished_once)


@posix_only
def test_interrupted_twice_it_breaks_the_state_off(prepared: Path, finished_once: Path) -> None:
    child = tiny.start_child(tiny.run_arguments(prepared), before=SLOW_WRITER.format(tenths=600))
    assert child.stderr is not None
    while "writing" not in (line := child.stderr.readline()):
        assert line, "it ended without a word"
    child.send_signal(signal.SIGINT)
    while "finishing this step" not in (line := child.stderr.readline()):
        assert line, "it ended without a word"
    child.send_signal(signal.SIGINT)
    _, story = child.communicate(timeout=tiny.SECONDS)
    assert (child.returncode, "Traceback" in story) == (130, False), story
    assert complete_steps(prepared / "states") == [0]
    assert tiny.resume(prepared) == 0
    tiny.assert_same_run(prepared, finished_once)
