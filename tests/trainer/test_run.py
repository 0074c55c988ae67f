"""Training, and the promise that an interrupted run goes on to the same bits."""

from __future__ import annotations

import json
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from auditkit.formats.leaves import LeavesFile
from auditkit.formats.record import RecordFile
from auditkit.formats.stream import StreamIndex
from tests import forked
from tests.trainer import tiny


def posix_only(test: Callable[..., None]) -> Callable[..., None]:
    """For what Windows does not have; kill -9 has its like there, and is tried on it too."""
    skipped = pytest.mark.skipif(sys.platform == "win32", reason="no such signals or limits on Windows")(test)
    return pytest.mark.optional("Windows ends processes without asking")(skipped)


# Dies at the n-th change of a file in the work folder (opened, named, removed, cut), as kill -9 does.
DIE_AT_EVENT = """
import os, signal
count = 0
def hook(event, args):
    global count
    if event == "open" and args[1] in (None, "r", "rb"):
        return
    if event in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate"):
        if str(args[0]).startswith({work!r}):
            count += 1
            if count == {event}:
                {kill}
sys.addaudithook(hook)
"""


def _die(arguments: list[str], before: str) -> None:
    child = tiny.start_child(arguments, before=before)
    _, story = child.communicate(timeout=tiny.SECONDS)
    assert child.returncode in tiny.KILLED, story


def _go_on(work: Path) -> int:
    """Resume; killed before the recipe has its name there is no run yet, and the same command starts it."""
    return tiny.resume(work) if (work / "recipe.json").exists() else tiny.run(work)


def test_a_run_writes_what_the_formats_say(finished_once: Path) -> None:
    rows = RecordFile.parse((finished_once / "records.bin").read_bytes()).rows
    leaves = LeavesFile.parse((finished_once / "leaves.bin").read_bytes(), micro_batches=2)
    index = StreamIndex.parse((finished_once / "stream.idx").read_bytes())
    assert len(rows) == len(leaves.steps) == len(index.rows) == tiny.STEPS
    assert index.total_length == (finished_once / "stream.bin").stat().st_size
    assert [int(path.name) for path in sorted((finished_once / "states").iterdir())] == tiny.KEPT
    losses = [row["loss"] for row in tiny.metrics(finished_once)]
    assert len(losses) == tiny.STEPS
    assert losses[-1] < losses[0] - 0.1
    assert (finished_once / "loss.svg").read_bytes().lstrip().startswith(b"<?xml")


def test_one_and_two_threads_give_the_same_run(prepared: Path, finished_once: Path) -> None:
    assert tiny.run(prepared, "--threads", "1") == 0
    tiny.assert_same_run(prepared, finished_once)


@pytest.mark.parametrize("event", [3, 4, 5, 6, 7, 9, 12, 14, 17, 18, 25, 40, 53, 54])
def test_killed_at_a_change_of_files_it_goes_on_to_the_same_bits(
    event: int, prepared: Path, finished_once: Path
) -> None:
    _die(tiny.run_arguments(prepared), DIE_AT_EVENT.format(event=event, work=str(prepared), kill=tiny.KILL_SELF))
    assert _go_on(prepared) == 0
    tiny.assert_same_run(prepared, finished_once)


@pytest.mark.parametrize("append", [1, 6, 37, 38, 39, 40, 65, 119])
def test_killed_in_the_middle_of_a_write_it_goes_on_to_the_same_bits(
    append: int, prepared: Path, finished_once: Path
) -> None:
    _die(tiny.run_arguments(prepared), tiny.DIE_IN_APPEND.format(append=append, kill=tiny.KILL_SELF))
    assert tiny.resume(prepared) == 0
    tiny.assert_same_run(prepared, finished_once)


def test_killed_again_and_again_at_random_moments(prepared: Path, finished_once: Path) -> None:
    chance = random.Random(11)
    arguments = tiny.run_arguments(prepared)
    for _ in range(6):
        child = tiny.start_child(arguments, before=SLOW_STEPS)
        time.sleep(0.3 + 0.5 * chance.random())
        child.kill()
        child.communicate()
        arguments = ["resume", str(prepared)] if (prepared / "recipe.json").exists() else arguments
    assert _go_on(prepared) == 0
    tiny.assert_same_run(prepared, finished_once)


# So that a kill after a random wait meets a step, a state or a start about as often.
SLOW_STEPS = """
import time
from auditkit.replay.backend import Backend
before = Backend.step
Backend.step = lambda *a, **k: (time.sleep(0.02), before(*a, **k))[1]
"""


@posix_only
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_asked_to_stop_it_saves_a_state_and_goes_on_to_the_same_bits(
    number: signal.Signals, code: int, prepared: Path, finished_once: Path
) -> None:
    child = tiny.start_child(tiny.run_arguments(prepared), before=SLOW_STEPS)
    _wait_for_steps(child, prepared, 2)
    child.send_signal(number)
    out, story = child.communicate(timeout=tiny.SECONDS)
    assert child.returncode == code, story
    assert f"{number.name.lower()}: finishing this step" in story
    reached = int(out.split()[1])
    assert 2 <= reached < tiny.STEPS
    assert (prepared / "states" / f"{reached:08d}" / "index.json").exists()
    assert len((prepared / "metrics.jsonl").read_text(encoding="utf-8").splitlines()) == reached
    assert tiny.resume(prepared) == 0
    tiny.assert_same_run(prepared, finished_once)  # also: the state kept for the resume alone is gone


@posix_only
def test_interrupted_twice_it_stops_at_once_and_goes_on_to_the_same_bits(prepared: Path, finished_once: Path) -> None:
    slower = SLOW_STEPS.replace("0.02", "5 if a[0].step == 3 else 0")
    child = tiny.start_child(tiny.run_arguments(prepared), before=slower)
    _wait_for_steps(child, prepared, 3)
    child.send_signal(signal.SIGINT)
    assert child.stderr is not None
    while "finishing this step" not in (line := child.stderr.readline()):
        assert line, "it ended without a word"
    started = time.monotonic()
    child.send_signal(signal.SIGINT)
    _, story = child.communicate(timeout=tiny.SECONDS)
    assert (child.returncode, time.monotonic() - started < 4) == (130, True), story
    assert "Traceback" not in story
    assert tiny.resume(prepared) == 0
    tiny.assert_same_run(prepared, finished_once)


# A disk that is full after so many bytes of one file: the first state with moments does not fit.
SMALL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, 60_000))"


@posix_only
def test_out_of_room_it_says_where_and_goes_on_to_the_same_bits(prepared: Path, finished_once: Path) -> None:
    child = tiny.start_child(tiny.run_arguments(prepared), before=SMALL_DISK)
    _, story = child.communicate(timeout=tiny.SECONDS)
    assert child.returncode == 6, story
    assert f"error: {prepared / 'states' / '00000006'}: file too large" in story
    assert "bytes are free there; make room, then resume" in story
    assert [path.name for path in (prepared / "states").glob("0*")] == ["00000000"]
    assert tiny.resume(prepared) == 0
    tiny.assert_same_run(prepared, finished_once)


def _wait_for_steps(child: forked.Process, work: Path, steps: int) -> None:
    end = time.monotonic() + tiny.SECONDS
    while not (work / "metrics.jsonl").exists() or (work / "metrics.jsonl").read_bytes().count(b"\n") < steps:
        assert child.poll() is None, child.communicate()[1]
        assert time.monotonic() < end, f"no step within {tiny.SECONDS:g} s"
        time.sleep(0.01)


def test_a_run_in_two_parts_is_the_run_in_one(prepared: Path, finished_once: Path) -> None:
    assert tiny.run(prepared, "--steps", "10") == 0
    assert tiny.resume(prepared, "--steps", str(tiny.STEPS)) == 0
    tiny.assert_same_run(prepared, finished_once)


def test_resume_of_a_finished_run_changes_nothing(finished: Path, finished_once: Path) -> None:
    assert tiny.resume(finished) == 0
    tiny.assert_same_run(finished, finished_once)


def test_a_second_process_is_refused(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    child = tiny.start_child(tiny.run_arguments(prepared), before=SLOW_STEPS)
    try:
        _wait_for_steps(child, prepared, 1)
        assert tiny.resume(prepared) == 2
        assert "another trainer is at work in this folder" in capsys.readouterr().err
    finally:
        child.kill()
        child.communicate()


def _story(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err


def test_a_second_run_in_one_folder_is_refused(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.run(finished) == 2
    assert "a run was started here already" in _story(capsys)


def test_resume_without_a_run_is_refused(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.resume(prepared) == 2
    assert "no run has been started here" in _story(capsys)


def test_run_without_data_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe.toml").write_text(tiny.RECIPE, encoding="utf-8")
    assert tiny.run(tmp_path) == 2
    assert "not prepared" in _story(capsys)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--steps", "25"], "25 steps are more than the 24 of the recipe's schedule"),
        (["--steps", "8"], "state 9 cannot be kept: the run ends at step 8"),
    ],
)
def test_steps_beyond_the_run_are_refused(
    more: list[str], words: str, prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tiny.run(prepared, *more) == 2
    assert words in _story(capsys)
    assert not (prepared / "recipe.json").exists()


def test_fewer_steps_than_are_done_are_refused(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tiny.resume(finished, "--steps", "7") == 2
    assert "7 steps are fewer than the 24 that are done" in _story(capsys)


@pytest.mark.parametrize(
    ("old", "new", "key"), [("= 300", "= 301", "vocab_size"), ("= 16\nh", "= 32\nh", "context_length")]
)
def test_a_recipe_for_other_data_is_refused(
    old: str, new: str, key: str, prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (prepared / "recipe.toml").write_text(tiny.RECIPE.replace(old, new), encoding="utf-8")
    assert tiny.run(prepared) == 2
    assert f"model.{key} is" in _story(capsys)


def test_a_recipe_that_diverges_ends_with_an_error_and_nothing_of_the_step(
    prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wild = tiny.RECIPE.replace("peak_lr = 3e-3", "peak_lr = 1e38").replace("weight_decay = 0.1", "weight_decay = 0.0")
    (prepared / "recipe.toml").write_text(wild.replace("min_lr = 3e-4", "min_lr = 1e38"), encoding="utf-8")
    assert tiny.run(prepared) == 2
    story = _story(capsys)
    assert "has no result: " in story
    assert "hint: the recipe diverges" in story
    failed = int(story.split("error: step ")[1].split()[0])
    assert len(RecordFile.parse((prepared / "records.bin").read_bytes()).rows) == failed


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("std", "words"),
    [
        ("3e38", "of state 0 is not finite"),
        ("1e300", "init.std: 1e+300 is not a finite binary32"),
    ],
)
def test_wild_initial_weights_end_in_words_not_in_a_warning(
    std: str, words: str, prepared: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = tiny.RECIPE.replace("\nstd = 0.02", f"\nstd = {std}")
    (prepared / "recipe.toml").write_text(text, encoding="utf-8")
    assert tiny.run(prepared) in (2, 4)
    story = _story(capsys)
    assert words in story
    assert "Warning" not in story


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("states/00000024/shard-00000.safetensors.zst", "not the bytes its digest names"),
        ("records.bin", "not the state that record 23 leads to"),
        ("checks.bin", "record 12, or its leaves, are not what was written"),
        ("ids.bin", "changed since it was prepared"),
        ("tokenizer.json", "changed since it was prepared"),
    ],
)
def test_damage_that_no_kill_explains_stops_the_resume(
    name: str, words: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray((finished / name).read_bytes())
    at = 16 + 23 * 140 if name == "records.bin" else len(data) // 2
    data[at] ^= 1
    (finished / name).write_bytes(data)
    assert tiny.resume(finished) == 4
    assert words in _story(capsys)


def test_a_flipped_bit_in_a_record_long_past_stops_the_resume(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = bytearray((finished / "records.bin").read_bytes())
    data[16 + 12 * 140 + 64] ^= 1
    (finished / "records.bin").write_bytes(data)
    assert tiny.resume(finished) == 4
    assert "record 12, or its leaves, are not what was written" in _story(capsys)


def test_a_folder_from_before_the_checks_goes_on_and_has_them_then(
    prepared: Path, finished_once: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tiny.run(prepared, "--steps", "10") == 0
    (prepared / "checks.bin").unlink()
    assert tiny.resume(prepared, "--steps", str(tiny.STEPS)) == 0
    assert "note: no checks.bin in" in _story(capsys)
    tiny.assert_same_run(prepared, finished_once)


@pytest.mark.parametrize("left", [None, b"", b'{"step":0,"loss":1.0,"lr":0.1}\n{"step"', b"\xff\n[]\n"])
def test_the_run_does_not_need_its_metrics(
    left: bytes | None, prepared: Path, finished_once: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tiny.run(prepared, "--steps", "10") == 0
    (prepared / "metrics.jsonl").unlink()
    if left is not None:
        (prepared / "metrics.jsonl").write_bytes(left)
    assert tiny.resume(prepared, "--steps", "12") == 0
    kept = 1 if left and b"loss" in left else 0
    assert f"figures of {10 - kept} steps are missing" in _story(capsys)
    assert tiny.resume(prepared, "--steps", str(tiny.STEPS)) == 0
    found = [json.loads(line)["step"] for line in (prepared / "metrics.jsonl").read_bytes().splitlines()]
    assert found == [*range(kept), *range(10, tiny.STEPS)]
    assert tiny.bits(prepared) == tiny.bits(finished_once)


def test_a_finished_run_without_metrics_is_still_finished(finished: Path) -> None:
    (finished / "metrics.jsonl").write_bytes(b"")
    assert tiny.resume(finished) == 0


def test_a_file_shorter_than_its_state_says_stops_the_resume(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = (finished / "leaves.bin").read_bytes()
    (finished / "leaves.bin").write_bytes(data[:-1])
    assert tiny.resume(finished) == 4
    assert "but 24 steps fill" in _story(capsys)


def test_records_without_states_stop_the_resume(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(finished / "states")
    assert tiny.resume(finished) == 4
    assert "there are records but no state" in _story(capsys)
    assert len((finished / "records.bin").read_bytes()) == 16 + 24 * 140
