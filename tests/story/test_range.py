"""Many steps on many machines: the array job of docs/examples, task by task, in any order, and its merge."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from auditkit.trust.keys import PrivateKey, save_private
from tests.cli.conftest import environment
from tests.conftest import ROOT
from tests.replay import make_run
from tests.replay.conftest import honest, parts

__all__ = ["honest", "parts"]

JOB = ROOT / "docs" / "examples" / "range.slurm"
STEPS = make_run.STEPS

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="Windows has no bash"),
    pytest.mark.optional("array jobs run on Linux; the parts themselves are tested everywhere"),
]


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """The command `auditkit` of this checkout."""
    path = tmp_path / "auditkit"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m auditkit "$@"\n', encoding="utf-8")
    path.chmod(0o755)
    return path


def task(program: Path, folder: Path, run: Path, part: int, *, of: int = 4) -> subprocess.CompletedProcess[str]:
    """One task of the array."""
    env = environment(folder / f"cache-{part}") | {
        "RUN": str(run),
        "STEPS": f"0:{STEPS}",
        "KEY": str(folder / "auditor.pem"),
        "PARTS": str(of),
        "AUDITKIT": str(program),
        "SLURM_ARRAY_TASK_ID": str(part),
    }
    words = ["bash", str(JOB)]
    return subprocess.run(words, capture_output=True, encoding="utf-8", env=env, cwd=folder, check=False)


def command(program: Path, folder: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Any other command."""
    line = [str(program), *map(str, words)]
    env = environment(folder / "cache")
    return subprocess.run(line, capture_output=True, encoding="utf-8", env=env, cwd=folder, check=False)


@pytest.mark.parametrize("published", [(0, STEPS), tuple(range(STEPS + 1))])
def test_four_tasks_in_any_order_make_one_report_in_which_each_step_is_there_once(
    parts: make_run.Parts, tmp_path: Path, program: Path, published: tuple[int, ...]
) -> None:
    made = parts.copy()
    made.published = published
    run = make_run.publish(made, tmp_path / "run")
    save_private(tmp_path / "auditor.pem", PrivateKey(bytes(range(32))))

    with ThreadPoolExecutor(2) as pool:
        for done in pool.map(lambda part: task(program, tmp_path, run, part), (3, 1, 4, 2)):
            assert done.returncode == 0, done.stderr
    names = [path.name.split(".")[0] for path in (tmp_path / "attested").glob("step-*.json") if ".svr" not in path.name]
    assert sorted(names) == [f"step-{step}" for step in range(STEPS)]

    public = command(program, tmp_path, "key", "show", "auditor.pem").stdout
    (tmp_path / "attested" / "auditor.pem").write_text(public, encoding="ascii")
    merged = command(program, tmp_path, "coverage", "--run", run, "attested", "--html", "coverage.html", "--json")
    assert merged.returncode == 0, merged.stdout + merged.stderr
    found = json.loads(merged.stdout)
    assert found["verdict"] == "MATCH"
    assert (tmp_path / "coverage.html").stat().st_size > 1000


def test_a_task_that_finds_a_mismatch_ends_with_it_and_the_merge_says_where(
    parts: make_run.Parts, tmp_path: Path, program: Path
) -> None:
    run = make_run.publish(make_run.train_with(parts, wrong_step=5), tmp_path / "run")
    save_private(tmp_path / "auditor.pem", PrivateKey(bytes(range(32))))
    codes = [task(program, tmp_path, run, part, of=2).returncode for part in (2, 1)]
    assert sorted(codes) == [0, 3]
    public = command(program, tmp_path, "key", "show", "auditor.pem").stdout
    (tmp_path / "attested" / "auditor.pem").write_text(public, encoding="ascii")
    merged = command(program, tmp_path, "coverage", "--run", run, "attested")
    assert merged.returncode == 3
    assert "MISMATCH" in merged.stdout


def test_a_task_with_a_wrong_setting_says_so(tmp_path: Path, program: Path, honest: Path) -> None:
    done = task(program, tmp_path, honest, 1)  # there is no key
    assert done.returncode == 5
    assert "auditor.pem" in done.stderr
    save_private(tmp_path / "auditor.pem", PrivateKey(bytes(range(32))))
    assert task(program, tmp_path, honest, 5).returncode == 2  # part 5 of 4


def test_the_workflow_merges_what_its_parts_attested() -> None:
    workflow = (ROOT / ".github" / "workflows" / "range.yml").read_text(encoding="utf-8")
    assert '--steps "$STEPS" --part "$PART/$PARTS"' in workflow
    verify, merge = workflow.split("\n  verify:")[1].split("\n  merge:")
    assert "if: always()" in verify and "fail-fast: false" in verify
    assert "merge-multiple: true" in merge and "if: always()" in merge.split("steps:")[0]
