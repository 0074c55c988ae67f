"""`explain` and `trace` on a run with a wrong step: what they print, what they write, and how they end."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from auditkit.errors import Unsupported
from auditkit.trust.page_file import PageFile
from tests.cli.conftest import Cli
from tests.replay import make_run


@pytest.fixture(scope="module")
def lie(parts: make_run.Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose step 4 was taken with twice the learning rate."""
    return make_run.publish(make_run.train_with(parts, wrong_step=4), tmp_path_factory.mktemp("lie") / "tiny")


def test_verify_names_the_command(main: Cli, lie: Path) -> None:
    done = main("verify", "--run", lie, "--steps", "3:6")
    assert done.code == 3
    assert done.stdout.endswith(f"auditkit explain --run {lie} --step 4\n") or os.name == "nt"
    assert "auditkit explain" not in main("verify", "--run", lie, "--step", 3).stdout
    json.loads(main("verify", "--run", lie, "--step", 4, "--json").stdout)


def test_the_cause_is_told_in_all_three_forms(main: Cli, lie: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = main("explain", "--run", lie, "--step", 4, "--html", page)
    assert (done.code, done.stderr) == (3, "")
    lines = done.stdout.splitlines()
    assert lines[:3] == ["run        tiny", "step       4", lines[2]]
    assert lines[2].startswith("first failed check: 7 end state root: computed ")
    assert "  same        gradient" in lines
    assert "MISMATCH: confirmed: replaying with the learning rate" in done.stdout
    assert "(2 times the recipe's) gives all that is published of the step, bit for bit" in done.stdout
    assert "first moments and no second moments" in done.stdout
    value = json.loads(main("explain", "--run", lie, "--step", 4, "--json").stdout)
    assert value["causes"][0]["key"] == "learning-rate" and value["confirmed"] is True
    assert {row["role"] for row in value["state"]["tensors"]} == {"param"}
    assert b"2 times the recipe" in page.read_bytes()


def test_a_page_that_cannot_be_written_takes_nothing_back(
    main: Cli, lie: Path, honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise Unsupported("the disk is full")

    monkeypatch.setattr(PageFile, "write", full)
    page = tmp_path / "page.html"
    done = main("explain", "--run", lie, "--step", 4, "--html", page)
    assert (done.code, done.stderr) == (3, "error: the disk is full\n")
    assert "MISMATCH: confirmed: replaying with the learning rate" in done.stdout
    assert "page  " not in done.stdout
    done = main("explain", "--run", honest, "--step", 4, "--html", page, "--json")
    assert (done.code, json.loads(done.stdout)["verdict"], json.loads(done.stdout)["code"]) == (6, "MATCH", 6)
    done = main("coverage", tmp_path, "--run", honest, "--html", page, "--json")
    assert (done.code, json.loads(done.stdout)["verdict"], json.loads(done.stdout)["code"]) == (6, "INCOMPLETE", 6)


def test_a_step_behind_it_is_explained_by_it(main: Cli, parts: make_run.Parts, tmp_path: Path) -> None:
    lie = make_run.publish(make_run.train_with(parts, wrong_step=5), tmp_path / "lie")
    done = main("explain", "--run", lie, "--step", 7)
    assert done.code == 3
    assert "note: step 5 on the way to step 7 is the first that does not match" in done.stdout
    assert "step       5" in done.stdout


def test_traces_are_written_and_compared(main: Cli, honest: Path, lie: Path, tmp_path: Path) -> None:
    whole, part, other = (tmp_path / name for name in ("whole.json", "part.json", "other.json"))
    assert main("trace", "--run", honest, "--step", 4, "-o", whole).code == 0
    assert main("trace", "--run", honest, "--step", 4, "--micro-batch", 1, "-o", part).code == 0
    assert main("trace", "--run", honest, "--step", 3, "-o", other).code == 0
    done = main("trace", "--compare", whole, part)
    assert done.code == 0 and done.stdout.endswith("EQUAL\n")
    assert main("trace", "--compare", whole, other).code == 2
    again = main("trace", "--run", honest, "--step", 4, "-o", whole)
    assert again.code == 2 and "exists" in again.stderr
    changed = whole.read_bytes().replace(b'"op":"swiglu_forward","out":["', b'"op":"swiglu_forward","out":["', 1)
    at = changed.index(b'"op":"swiglu_forward","out":["') + len(b'"op":"swiglu_forward","out":["')
    flipped = changed[:at] + (b"0" if changed[at : at + 1] != b"0" else b"1") + changed[at + 1 :]
    part.write_bytes(flipped)
    done = main("trace", "--compare", whole, part, "--json")
    value = json.loads(done.stdout)
    assert done.code == 3 and value["format"] == "auditkit/trace-comparison/v1"
    assert value["left"]["op"] == "swiglu_forward" and value["differing"] == 1
    assert main("explain", "--run", lie, "--step", 4, "--trace", other).code == 2


def test_without_a_card_back_ends_cannot_be_compared(main: Cli, honest: Path) -> None:
    done = main("trace", "--run", honest, "--step", 4, "--compare-backends")
    assert done.code in (0, 6)  # a machine with a card compares them, and they are equal
    assert ("EQUAL" in done.stdout) == (done.code == 0)
