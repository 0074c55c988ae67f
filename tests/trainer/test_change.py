"""`python -m trainer change`: what it declares, what can be taken back, and what it refuses."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import auditkit
from auditkit.verdict import Verdict
from tests.golden import make_segments
from tests.golden.make_segments import FIRST, B
from tests.trainer import segmented, tiny
from trainer import cli
from trainer.segments import Course
from trainer.work import Work

GOLDEN: dict[str, Any] = json.loads(make_segments.FILE.read_text(encoding="ascii"))


@pytest.fixture(scope="module")
def finished(along: list[Path]) -> Path:
    """The work folder of the whole run; not to be changed."""
    return along[-1] / "work"


def test_a_declared_change_can_be_replaced_and_taken_back(
    along: list[Path], finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = segmented.copy(along, 2, tmp_path)
    segmented.run(work, 2, 3)
    before = segmented.bits(work)
    seeded = ["change", str(work), "--data", str(work.parent / "more"), "--data-seed", "3", "--steps", "12"]
    assert cli.main(seeded) == 0
    assert (work / "data-1").is_dir()
    capsys.readouterr()
    segmented.run(work, 3, 4)  # the right one
    assert "the change that was declared before for step 8 is replaced" in capsys.readouterr().err
    assert [path.name for path in work.glob("data-*")] == ["data-2"]
    assert cli.main(["change", str(work), "--withdraw"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "steps     8"
    assert segmented.bits(work) == before
    assert list(work.glob("data-*")) == []
    assert cli.main(["change", str(work), "--withdraw"]) == 2
    assert "no change is declared of which no step is complete" in capsys.readouterr().err
    segmented.run(work, 3, 7)
    segmented.assert_same_run(work, finished)


def test_the_first_change_can_be_taken_back(along: list[Path], tmp_path: Path) -> None:
    work = segmented.copy(along, 2, tmp_path)
    assert cli.main(["change", str(work), "--withdraw"]) == 0
    assert segmented.bits(work) == segmented.bits(along[1] / "work")


def test_what_a_change_says(along: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = segmented.copy(along, 5, tmp_path)
    capsys.readouterr()
    segmented.run(work, 5, 6)
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        "step      12",
        "changes   model.context_length 8 to 6, model.rope_theta 10000 to 20000, model.sliding_window 5 to 0,"
        " optimizer.beta2 0.95 to 0.98, optimizer.weight_decay 0.1 to 0, batch.sequences 2 to 4,"
        " batch.micro_batch_sequences 2 to 1, data.windows 52 to 69",
        "sequence  0",
        "steps     16",
        f"state     {GOLDEN['begun']['12']}",
    ]
    assert f"declared; python -m trainer resume {work} trains on" in err


def refusals() -> Iterator[Any]:
    """(before which command, arguments after WORK, exit code, what is said)."""
    yield pytest.param(1, ["{first}", "{work}"], 2, "nothing changes: recipe and data are those of", id="nothing")
    yield pytest.param(1, ["{work}"], 2, "nothing changes", id="no option")
    yield pytest.param(
        1, ["{wide}", "{work}"], 2, "change.recipe.model.hidden_size: 16, but the run began with 8", id="width"
    )
    yield pytest.param(1, ["{seeded}", "{work}"], 2, "change.recipe.init.seed: 8, but the run began with 7", id="seed")
    yield pytest.param(1, ["{lower}", "{work}", "--steps", "17"], 2, "17 steps are more than the 16", id="steps")
    yield pytest.param(
        1, ["{lower}", "{work}", "--steps", "4"], 2, "the run would end at step 4, and 4 are done", id="no step"
    )
    yield pytest.param(0, ["{lower}", "{work}"], 2, "no run has been started here", id="no run")
    yield pytest.param(1, ["{lower}", "{work}", "--data", "{nowhere}"], 2, "not prepared", id="not prepared")
    yield pytest.param(1, ["{work}", "--data", "{other}"], 2, "change.data.tokenizer.digest: ", id="another tokenizer")
    yield pytest.param(1, ["{work}", "--withdraw", "--steps", "9"], 2, "--withdraw takes back", id="withdraw")
    yield pytest.param(1, ["{work}", "--withdraw"], 2, "no change is declared", id="nothing to withdraw")
    yield pytest.param(1, ["{nowhere}/x.toml", "{work}"], 5, "no such file", id="no recipe")


@pytest.mark.parametrize(("number", "arguments", "code", "said"), list(refusals()))
def test_a_change_that_cannot_be_is_refused(
    number: int,
    arguments: list[str],
    code: int,
    said: str,
    along: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    work = segmented.copy(along, number, tmp_path)
    before = segmented.bits(work) if number else {}
    wide = replace(FIRST, model=replace(FIRST.model, hidden_size=16))
    other = segmented.write_prepared(tmp_path / "other", B)
    prepared = (other / "prepared.json").read_text(encoding="ascii")
    digest = json.loads(prepared)["data"]["tokenizer"]["digest"]
    (other / "tokenizer.json").write_bytes(b"[]")
    (other / "prepared.json").write_text(prepared.replace(digest, make_segments.b3(b"[]")), encoding="ascii")
    names = {
        "work": str(work),
        "first": str(work.parent / "first.toml"),
        "lower": str(work.parent / "lower.toml"),
        "wide": str(segmented.write_recipe(tmp_path / "wide.toml", wide)),
        "seeded": str(segmented.write_recipe(tmp_path / "s.toml", replace(FIRST, init=replace(FIRST.init, seed=8)))),
        "other": str(other),
        "nowhere": str(tmp_path / "nowhere"),
    }
    capsys.readouterr()
    assert cli.main(["change", *(word.format(**names) for word in arguments)]) == code
    assert said in capsys.readouterr().err
    if number:
        assert segmented.bits(work) == before


def test_before_the_first_step_there_is_nothing_to_change(
    along: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = segmented.copy(along, 1, tmp_path)
    for step in (1, 3, 4):
        shutil.rmtree(work / "states" / f"{step:08d}")
    assert cli.main(segmented.commands(work)[1]) == 9
    assert "no step is complete" in capsys.readouterr().err


def test_a_segment_whose_first_state_is_lost_comes_first(
    along: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = segmented.copy(along, 4, tmp_path)
    shutil.rmtree(work / "states" / "00000008")
    assert cli.main(["change", str(work), "--data-seed", "3"]) == 9
    assert "the segment from step 8 on has lost its first state" in capsys.readouterr().err


def test_data_that_are_there_are_not_brought_again(along: list[Path], tmp_path: Path) -> None:
    """The text of the first segment comes back in another order, and then that of the second."""
    work = segmented.copy(along, 5, tmp_path)
    assert (
        cli.main(["change", str(work), "--data", str(segmented.write_prepared(tmp_path / "a", make_segments.A))]) == 0
    )
    last = Course.load(Work(work)).stages[-1]
    assert (last.home, last.prepared.data.corpus.path, last.prepared.data.seed) == ("", "corpus.json", 5)
    assert cli.main(["resume", str(work), "--steps", "14"]) == 0
    assert cli.main(["change", str(work), "--data", str(work.parent / "more"), "--data-seed", "9"]) == 0
    last = Course.load(Work(work)).stages[-1]
    assert (last.home, last.prepared.data.corpus.path, last.prepared.data.seed) == ("data-1", "data-1/corpus.json", 9)
    assert tiny.resume(work) == 0
    for kind, options in (("frames", []), ("windows", ["--compact"])):
        out = tmp_path / kind
        assert cli.main(["publish", str(work), str(out), "--name", "again", *options]) == 0
        assert sorted(path.name for path in out.rglob("corpus.json")) == ["corpus.json"] * 2
        assert auditkit.verify(out, steps="10:16", device="cpu").verdict is Verdict.MATCH


def test_the_end_of_the_last_segment_can_be_moved(
    along: list[Path], finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = segmented.copy(along, 6, tmp_path)
    assert cli.main(["resume", str(work), "--steps", "14"]) == 0
    assert cli.main(["resume", str(work), "--steps", "12"]) == 2
    assert "12 steps are fewer than the 14 that are done" in capsys.readouterr().err
    assert cli.main(["resume", str(work), "--steps", "17"]) == 2
    assert cli.main(["resume", str(work), "--steps", "16"]) == 0
    found, expected = segmented.bits(work), segmented.bits(finished)
    assert {name: found[name] for name in expected} == expected
