"""A run in segments: the golden bits, through kills at any moment, and publications that verify across each change."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import auditkit
from auditkit.errors import BadArtifact
from auditkit.formats.run import RunManifest
from auditkit.formats.state import StateDocument
from auditkit.replay.run import open_run
from auditkit.trust.keys import PrivateKey, save_private
from auditkit.verdict import Verdict
from tests.audit.signed_runs import records_of
from tests.golden import make_segments
from tests.trainer import segmented, tiny
from tests.trainer.segmented import KEPT, STARTS, STEPS
from tests.trainer.test_run import DIE_AT_EVENT, SLOW_STEPS, posix_only
from trainer import cli
from trainer.segments import Course
from trainer.work import Work

GOLDEN: dict[str, Any] = json.loads(make_segments.FILE.read_text(encoding="ascii"))
KINDS = {"frames": [], "windows": ["--compact"]}


@pytest.fixture(scope="module")
def finished(along: list[Path]) -> Path:
    """The work folder of the whole run; not to be changed."""
    return along[-1] / "work"


@pytest.fixture(scope="module", params=list(KINDS))
def published(request: pytest.FixtureRequest, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run, published in both layouts; its folder is called by the layout."""
    out = tmp_path_factory.mktemp("published") / request.param
    name = ["--name", make_segments.NAME]
    assert cli.main(["publish", str(finished), str(out), *name, *KINDS[request.param]]) == 0
    return out


def test_the_states_are_golden(finished: Path) -> None:
    states = sorted(int(path.name) for path in (finished / "states").iterdir())
    assert states == KEPT
    for step in states:
        data = (finished / "states" / f"{step:08d}" / "state.json").read_bytes()
        assert StateDocument.parse(data).root() == GOLDEN["states"][str(step)]
    rates = [row["lr"] for row in tiny.metrics(finished)]
    assert len(rates) == STEPS
    begun = {str(stage.step): stage.state for stage in Course.load(Work(finished)).stages[1:]}
    assert begun == GOLDEN["begun"]


def test_the_publication_is_golden(published: Path) -> None:
    expected = GOLDEN["runs"][published.name]
    with open_run(str(published)) as run:
        assert (run.run_id, run.log_root) == (expected["run_id"], expected["log_root"])
        assert (run.manifest.log.root, run.manifest.log.size) == (expected["log_root"], expected["log_size"])
        assert [state.step for state in run.manifest.states] == KEPT
        assert [f"f32:{record.lr:08x}" for record in run.records] == GOLDEN["rates"]
    if published.name == "frames":
        entries = records_of(published)
        assert [entry.decode() for entry in entries if b"segment/v1" in entry] == GOLDEN["segments"]
        assert entries[-1].decode() == GOLDEN["last_record"]


def test_every_step_of_it_verifies(published: Path) -> None:
    report = auditkit.verify(published, steps=(0, STEPS), device="cpu")
    assert report.verdict is Verdict.MATCH, report.to_json()


@pytest.mark.parametrize("step", [step for start in STARTS for step in (start - 1, start)])
def test_both_sides_of_each_change_verify_alone(published: Path, step: int) -> None:
    assert auditkit.verify(published, step=step, device="cpu").verdict is Verdict.MATCH


@pytest.mark.parametrize("seed", range(3))
def test_random_steps_verify_from_few_states(finished: Path, tmp_path: Path, seed: int) -> None:
    """Only the first and the last state are published: every change is met by the replay."""
    out = tmp_path / "out"
    assert cli.main(["publish", str(finished), str(out), "--name", "few", "--states", "0,16"]) == 0
    report = auditkit.verify(out, random=2, seed=seed, device="cpu")
    assert report.verdict is Verdict.MATCH, report.to_json()


# A change of files in the work folder that kill -9 may meet, links included.
DIE_WITH_LINKS = DIE_AT_EVENT.replace('"os.rename"', '"os.link", "os.rename"')


def killed(arguments: list[str], before: str) -> bool:
    """Run a command in a process that may die at its own hand; whether it did."""
    child = tiny.start_child(arguments, before=before)
    _, story = child.communicate(timeout=tiny.SECONDS)
    assert child.returncode in (0, *tiny.KILLED), story
    return child.returncode != 0


@pytest.mark.parametrize(("number", "replaces"), [(1, False), (3, False), (3, True), (5, False)])
def test_a_change_that_is_killed_is_declared_or_is_not(
    number: int, replaces: bool, along: list[Path], tmp_path: Path
) -> None:
    """Whatever change of files the kill meets: the same command again, and the run ends in the same bits.

    A change that replaces another one takes its data away afterwards.
    """
    first = segmented.copy(along, number, tmp_path / "first")
    if replaces:
        seeded = ["change", str(first), "--data", str(first.parent / "more"), "--data-seed", "3", "--steps", "12"]
        assert cli.main(seeded) == 0
    before = segmented.bits(first).get("segments.json")
    whole = Path(shutil.copytree(first.parent, tmp_path / "whole")) / "work"
    segmented.run(whole, number, number + 1)
    after = segmented.bits(whole)["segments.json"]
    segmented.run(whole, number + 1, 7)
    declared = set()
    for event in range(1, 200):
        work = Path(shutil.copytree(first.parent, tmp_path / f"{event}")) / "work"
        dying = DIE_WITH_LINKS.format(event=event, work=str(work), kill=tiny.KILL_SELF)
        if not killed(segmented.commands(work)[number], dying):
            break
        now = segmented.bits(work).get("segments.json")
        assert now in (before, after)
        Course.load(Work(work))  # all that it names is there
        declared.add(now == after)
        if event % 4 == 1 or now == after:
            segmented.run(work, number if now == before else number + 1, 7)
            segmented.assert_same_run(work, whole)
    else:
        raise AssertionError("it never came to an end")
    assert len(declared) == 1 + replaces and event > (8 if number == 3 else 3)


@pytest.mark.parametrize("number", [2, 4, 6])
def test_a_training_that_is_killed_goes_on_to_the_same_bits_on_either_side(
    number: int, along: list[Path], finished: Path, tmp_path: Path
) -> None:
    for append in (1, 8):
        work = segmented.copy(along, number, tmp_path / f"{append}")
        dying = tiny.DIE_IN_APPEND.format(append=append, kill=tiny.KILL_SELF)
        assert killed(segmented.commands(work)[number], dying)
        segmented.run(work, number, 7)
        segmented.assert_same_run(work, finished)
    for event in (2, 16):
        work = segmented.copy(along, number, tmp_path / f"event-{event}")
        dying = DIE_AT_EVENT.format(event=event, work=str(work), kill=tiny.KILL_SELF)
        killed(segmented.commands(work)[number], dying)
        segmented.run(work, number, 7)
        segmented.assert_same_run(work, finished)


@pytest.mark.parametrize(("left", "removed"), [(3, 4), (1, 3), (6, 8), (0, 1)])
def test_lost_states_are_trained_again_through_all_changes(
    left: int, removed: int, along: list[Path], finished: Path, tmp_path: Path
) -> None:
    """Without the state that a segment begins from, the run goes on from an earlier one, by the recipe of then."""
    work = segmented.copy(along, 7, tmp_path)
    for step in KEPT:
        if step >= removed:
            shutil.rmtree(work / "states" / f"{step:08d}")
    assert max(int(path.name) for path in (work / "states").iterdir()) == left
    assert tiny.resume(work) == 0
    segmented.assert_same_run(work, finished)


@posix_only
def test_a_run_that_was_asked_to_stop_changes_where_it_stopped(along: list[Path], tmp_path: Path) -> None:
    """The state was saved only for a resume; now a segment begins from it, and it is kept and published."""
    work = segmented.copy(along, 0, tmp_path)
    arguments = [*segmented.commands(work)[0][:3], "--state-every", "8"]
    child = tiny.start_child(arguments, before=SLOW_STEPS.replace("0.02", "0.2"))
    metrics = work / "metrics.jsonl"
    while not metrics.exists() or not metrics.read_bytes():
        assert child.poll() is None
    child.send_signal(signal.SIGTERM)
    assert child.communicate(timeout=tiny.SECONDS) and child.returncode == 0
    (stopped,) = {int(path.name) for path in (work / "states").iterdir()} - {0}
    assert 0 < stopped < 8
    assert cli.main(["change", str(work), "--data-seed", "77", "--steps", "8"]) == 0
    assert tiny.resume(work) == 0
    assert cli.main(["publish", str(work), str(tmp_path / "out"), "--name", "stopped"]) == 0
    manifest = RunManifest.parse((tmp_path / "out" / "run.json").read_bytes())
    assert [state.step for state in manifest.states] == [0, stopped, 8]
    assert [(change.step, change.data.seed) for change in manifest.changes] == [(stopped, 77)]
    assert auditkit.verify(tmp_path / "out", steps=(0, 8), device="cpu").verdict is Verdict.MATCH


def test_a_change_without_a_step_is_not_published(
    along: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = segmented.copy(along, 6, tmp_path)
    out = tmp_path / "out"
    assert cli.main(["publish", str(work), str(out), "--name", make_segments.NAME]) == 9
    assert "the last complete state is that of step 12 of 16" in capsys.readouterr().err
    assert cli.main(["publish", str(work), str(out), "--name", make_segments.NAME, "--partial"]) == 0
    manifest = RunManifest.parse((out / "run.json").read_bytes())
    assert ([change.step for change in manifest.changes], manifest.steps, manifest.log.size) == ([4, 8], 12, 14)
    assert auditkit.verify(out, steps="7:12", device="cpu").verdict is Verdict.MATCH


def test_a_longer_publication_continues_the_signed_log_of_a_shorter_one(
    along: list[Path], finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUDITKIT_DATA", str(tmp_path / "data"))
    save_private(tmp_path / "key.pem", PrivateKey(bytes(range(32))))
    for name, work in (("short", segmented.copy(along, 6, tmp_path)), ("long", finished)):
        more = ["--name", make_segments.NAME, "--log-key", str(tmp_path / "key.pem"), "--partial"]
        assert cli.main(["publish", str(work), str(tmp_path / name), *more]) == 0
        report = auditkit.verify(tmp_path / name, steps="3:9", device="cpu")
        assert report.verdict is Verdict.MATCH, report.to_json()
    assert "continues the 14 entries seen before" in report.checks[2].detail
    assert records_of(tmp_path / "long")[:14] == records_of(tmp_path / "short")


def test_a_state_from_which_a_segment_begins_must_be_there(
    along: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = segmented.copy(along, 7, tmp_path)
    shutil.rmtree(work / "states" / "00000008")
    assert cli.main(["publish", str(work), str(tmp_path / "out"), "--name", "x", "--states", "0,16"]) == 9
    assert "the state of step 8, where a segment begins, is missing" in capsys.readouterr().err


def test_a_damaged_declaration_is_found(along: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = segmented.copy(along, 7, tmp_path)
    place = work / "segments.json"
    good = place.read_text(encoding="ascii")
    place.write_text(good.replace(GOLDEN["begun"]["8"], "0" * 64), encoding="ascii")
    assert cli.main(["publish", str(work), str(tmp_path / "out"), "--name", "x"]) == 4
    assert "segments.json: not the segment that was declared for step 8" in capsys.readouterr().err
    for damaged in (
        "",
        "{}",
        good[:-1],
        good.replace('"data-1"', '"../more"'),
        good.replace('"home":""', '"home":"."'),
    ):
        place.write_text(damaged, encoding="ascii")
        if damaged:
            with pytest.raises(BadArtifact):
                Course.load(Work(work))
        assert tiny.resume(work) == 4


def test_other_data_in_the_folder_of_a_segment_are_found(
    along: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = segmented.copy(along, 4, tmp_path)
    ids = work / "data-1" / "ids.bin"
    data = bytearray(ids.read_bytes())
    data[100] ^= 1
    ids.unlink()  # a link: the other folder is not to be damaged
    ids.write_bytes(data)
    assert tiny.resume(work) == 4
    assert "ids.bin: changed since it was prepared" in capsys.readouterr().err
    (work / "data-1" / "corpus.json").unlink()
    assert tiny.resume(work) == 5


def test_a_state_of_another_segment_is_refused(
    along: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The state before the change to other data, under the place in the data that comes after it."""
    work = segmented.copy(along, 7, tmp_path)
    for step in KEPT:
        if step > 6:
            shutil.rmtree(work / "states" / f"{step:08d}")
    place = work / "states" / "00000006" / "state.json"
    text = place.read_text(encoding="ascii")
    for wrong, told in (
        (text.replace('"sequence":16', '"sequence":0'), "a state of another seed or place in the data"),
        (text.replace(make_segments.LOWER.digest(), make_segments.FIRST.digest()), "a state of another recipe"),
    ):
        assert wrong != text
        place.write_text(wrong, encoding="ascii")
        capsys.readouterr()
        assert tiny.resume(work) == 4
        assert told in capsys.readouterr().err
