"""A run that skips steps: the same bits after any kill, told to its user, published in both layouts, ended in time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import auditkit
from auditkit.formats.leaves import LeavesFile
from auditkit.formats.recipe import DivergenceConfig
from auditkit.formats.record import RecordFile
from auditkit.formats.skips import NO_RESULT, NO_RESULT_LEAF, NORM
from auditkit.replay.run import open_run
from auditkit.verdict import Verdict
from tests.trainer import tiny
from trainer import cli
from trainer.skips import MOST

RULE = '\n[divergence]\naction = "skip"\nmax_norm = {bound}\n'
WILD = tiny.RECIPE.replace("\nstd = 0.02", "\nstd = 3.6")  # gradients of some batches leave their range


def write(work: Path, text: str, bound: float | None = 200.0) -> Path:
    """Give a prepared folder a recipe, with the rule or without."""
    (work / "recipe.toml").write_text(text + ("" if bound is None else RULE.format(bound=bound)), encoding="utf-8")
    return work


def run_to(work: Path, steps: int) -> int:
    """Train the first steps."""
    return cli.main(["run", str(work / "recipe.toml"), str(work), "--state-every", "6", "--steps", str(steps)])


def rows_of(work: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (work / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def skipping_once(prepared_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The work folder of a run that skips steps of both kinds; not to be changed."""
    work = write(Path(shutil.copytree(prepared_once, tmp_path_factory.mktemp("skips") / "work")), WILD)
    assert tiny.run(work) == 0
    return work


@pytest.fixture(scope="module")
def kinds(skipping_once: Path) -> list[str]:
    """Why each step was skipped, or an empty text."""
    return [row.get("skipped", "") for row in rows_of(skipping_once)]


@pytest.fixture
def wild(prepared: Path) -> Path:
    """A prepared folder with the wild recipe and the rule."""
    return write(prepared, WILD)


def test_steps_of_both_kinds_are_skipped_and_recorded(skipping_once: Path, kinds: list[str]) -> None:
    assert len(kinds) == tiny.STEPS and min(kinds.count(kind) for kind in (NORM, NO_RESULT, "")) >= 3
    records = RecordFile.parse((skipping_once / "records.bin").read_bytes()).rows
    leaves = LeavesFile.parse((skipping_once / "leaves.bin").read_bytes(), micro_batches=2).steps
    for kind, row, parts in zip(kinds, records, leaves, strict=True):
        assert (row.lr == 0) == bool(kind)
        assert (parts == (NO_RESULT_LEAF,) * 2) == (kind == NO_RESULT)
        assert kind != NO_RESULT or (row.gradient, row.loss, row.norm) == ("0" * 64, 0, 0)
    assert len({row.state_after for row in records}) == tiny.STEPS  # the same tensors, another document


def test_each_is_told(wild: Path, kinds: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_to(wild, 6) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if " is skipped: " in line]
    assert [int(line.split()[1]) for line in told] == [step for step in range(6) if kinds[step]]
    assert any("the gradient's norm 2" in line and line.endswith("exceeds max_norm 200") for line in told)
    assert any("is skipped: a" in line for line in told)


@pytest.mark.parametrize("layout", [(), ("--compact",)])
def test_every_step_matches(layout: tuple[str, ...], skipping_once: Path, kinds: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli.main(["publish", str(skipping_once), str(out), "--name", "tiny", *layout]) == 0
    report = auditkit.verify(str(out), steps=f"0:{tiny.STEPS}")
    assert report.verdict is Verdict.MATCH
    assert [bool(step.skipped) for step in report.steps] == [bool(kind) for kind in kinds]


@pytest.mark.parametrize("layout", [(), ("--compact",)])
def test_it_may_be_published_while_it_is_trained(layout: tuple[str, ...], wild: Path, tmp_path: Path) -> None:
    assert tiny.run(wild, "--publish", str(tmp_path / "out"), "--name", "tiny", *layout) == 0
    assert cli.main(["publish", str(wild), str(tmp_path / "whole"), "--name", "tiny", *layout]) == 0
    files = ["run.json", "records.bin"]
    grown, whole = ([(out / name).read_bytes() for name in files] for out in (tmp_path / "out", tmp_path / "whole"))
    assert grown == whole
    assert auditkit.verify(str(tmp_path / "out"), steps="0:4").verdict is Verdict.MATCH


@pytest.mark.parametrize("threads", ["1", "3"])
def test_threads_change_no_bit(threads: str, wild: Path, skipping_once: Path) -> None:
    assert tiny.run(wild, "--threads", threads) == 0
    tiny.assert_same_run(wild, skipping_once)


@pytest.mark.parametrize("append", [1, 12, 40, 65])
def test_killed_around_a_skip_it_goes_on_to_the_same_bits(append: int, wild: Path, skipping_once: Path) -> None:
    dying = tiny.DIE_IN_APPEND.format(append=append, kill=tiny.KILL_SELF)
    child = tiny.start_child(tiny.run_arguments(wild), before=dying)
    _, story = child.communicate(timeout=tiny.SECONDS)
    assert child.returncode in tiny.KILLED, story
    assert tiny.resume(wild) == 0
    tiny.assert_same_run(wild, skipping_once)


def test_a_run_in_parts_is_the_run_in_one(wild: Path, skipping_once: Path) -> None:
    assert tiny.run(wild, "--steps", "9") == 0
    for steps in (10, 11, 14, 24):
        assert tiny.resume(wild, "--steps", str(steps)) == 0
    settings = json.loads((wild / "settings.json").read_text(encoding="ascii"))
    assert settings["steps"] == tiny.STEPS
    tiny.assert_same_run(wild, skipping_once)


def longest(kinds: list[str]) -> tuple[int, int]:
    """The most skipped steps on end, and the last of them."""
    best, count = (0, 0), 0
    for step, kind in enumerate(kinds):
        count = count + 1 if kind else 0
        best = max(best, (count, -step))
    return best[0], -best[1]


def test_too_many_on_end_stop_the_run(
    wild: Path, skipping_once: Path, kinds: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    most, last = longest(kinds)
    assert 2 <= most < MOST
    assert tiny.run(wild, "--max-skips", str(most)) == 2
    story = capsys.readouterr().err
    assert f"error: {most} steps on end were skipped, the last of them step {last}: " in story
    assert "the last complete state is kept" in story
    assert tiny.resume(wild, "--max-skips", str(most)) == 2  # a limit of the steps, not of the process
    assert f"the last of them step {last}: " in capsys.readouterr().err
    assert tiny.resume(wild, "--max-skips", str(most + 1)) == 0
    tiny.assert_same_run(wild, skipping_once)


def test_skips_before_a_state_count_after_it(wild: Path, kinds: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A stop saves a state in the middle of skipped steps."""
    most, last = longest(kinds)
    assert run_to(wild, last) == 0
    assert tiny.resume(wild, "--steps", str(tiny.STEPS), "--max-skips", str(most)) == 2
    assert f"error: {most} steps on end were skipped, the last of them step {last}: " in capsys.readouterr().err


def test_a_recipe_without_the_rule_stops_as_before(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(prepared, WILD, None)
    assert tiny.run(prepared) == 2
    story = capsys.readouterr().err
    assert "error: step 0 has no result: a" in story
    assert "[divergence] of the recipe" in story


def test_a_bound_may_stop_the_run(prepared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = RULE.format(bound=0.01).replace("skip", "stop")
    write(prepared, tiny.RECIPE + rule, None)
    assert tiny.run(prepared) == 2
    assert "error: step 0 has no result: the gradient's norm" in capsys.readouterr().err
    assert (prepared / "states" / "00000000" / "index.json").exists()


def test_a_segment_may_have_another_rule(
    prepared: Path, kinds: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The run stops without the rule; declared from the last complete state on, it goes on, and both parts match."""
    first = kinds.index("")  # a step that is taken
    write(prepared, WILD.replace("\nstd = 3.6", "\nstd = 2.0"), None)
    assert run_to(prepared, 4) == 0
    norms = [row["norm"] for row in rows_of(prepared)]
    text = WILD.replace("\nstd = 3.6", "\nstd = 2.0") + RULE.format(bound=sorted(norms)[1])
    (prepared / "rule.toml").write_text(text, encoding="utf-8")
    capsys.readouterr()
    assert cli.main(["change", str(prepared / "rule.toml"), str(prepared), "--steps", "12"]) == 0
    assert "divergence.action stop to skip, divergence.max_norm 0 to " in capsys.readouterr().out
    assert tiny.resume(prepared, "--max-skips", "100") == 0
    assert [row for row in rows_of(prepared)[4:] if row.get("skipped") == NORM] and first >= 0
    for number, layout in enumerate(((), ("--compact",))):
        out = tmp_path / f"out{number}"
        assert cli.main(["publish", str(prepared), str(out), "--name", "tiny", *layout]) == 0
        assert auditkit.verify(str(out), steps="0:12").verdict is Verdict.MATCH
        with open_run(str(out)) as run:
            rules = [segment.recipe.divergence for segment in run.timeline.segments]
            assert [rule.action for rule in rules] == ["stop", "skip"] and rules[0] == DivergenceConfig()


def test_a_compact_publication_refuses_a_rate_that_no_rule_gives(skipping_once: Path, tmp_path: Path) -> None:
    """What a compact row cannot say is found before anything is written."""
    work = Path(shutil.copytree(skipping_once, tmp_path / "work"))
    recipe = (work / "recipe.json").read_bytes()
    (work / "recipe.json").write_bytes(recipe.replace(b'"max_norm":"f32:43480000"', b'"max_norm":"f32:00000000"'))
    assert cli.main(["publish", str(work), str(tmp_path / "out"), "--name", "tiny", "--compact"]) == 4
    assert not (tmp_path / "out").exists()
