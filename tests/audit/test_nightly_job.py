"""The job around a night: what a scheduler sees, and that workflow and Makefile call what is there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from auditkit.audit import history
from auditkit.audit.history import History, Night
from auditkit.formats.times import time_text
from auditkit.verdict import Verdict
from tests.cli.conftest import environment
from tests.conftest import ROOT
from tests.replay import make_run

WORKFLOW = (ROOT / ".github" / "workflows" / "nightly.yml").read_text(encoding="utf-8")
BEACON = "5a" * 32

pytestmark = [
    pytest.mark.skipif(os.name == "nt", reason="Windows has no sh"),
    pytest.mark.optional("jobs run on Linux or macOS; the program itself is tested everywhere"),
]

Job = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Run tools/nightly.sh with the real program; `github` as a step of a workflow."""
    program = tmp_path / "auditkit"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m auditkit "$@"\n', encoding="utf-8")
    program.chmod(0o755)

    def start(*arguments: object, github: bool = False) -> subprocess.CompletedProcess[str]:
        env = environment(tmp_path / "cache")
        for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "AUDITKIT_KEY"):
            env.pop(name, None)
        if github:
            env |= {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
        words = ["sh", str(ROOT / "tools" / "nightly.sh"), str(program), "--beacon", BEACON, *map(str, arguments)]
        return subprocess.run(words, capture_output=True, encoding="utf-8", env=env, cwd=tmp_path, check=False)

    return start


def good_night_before(base: Path) -> None:
    """A history in which the night before was good."""
    import time

    history.write(base / "history.json", History((Night(time_text(time.time() - 80000), Verdict.MATCH),)))


def test_a_good_night_is_quiet(job: Job, honest: Path, tmp_path: Path) -> None:
    done = job("--run", honest, "--out", tmp_path / "nights")
    assert (done.returncode, done.stderr) == (0, "")
    assert "MATCH: every step drawn" in done.stdout


def test_a_busy_mirror_is_a_warning(job: Job, tmp_path: Path) -> None:
    good_night_before(tmp_path)
    done = job("--run", "http://127.0.0.1:9/run", "--out", tmp_path, "--tries", 1)
    assert done.returncode == 0
    assert "UNAVAILABLE" in done.stdout
    assert "warning: UNAVAILABLE" in done.stderr


def test_a_busy_mirror_is_a_failure_when_nothing_is_known_of_earlier_nights(job: Job, tmp_path: Path) -> None:
    done = job("--run", "http://127.0.0.1:9/run", "--out", tmp_path, "--tries", 1)
    assert done.returncode == 9
    assert "error: INCOMPLETE" in done.stderr


def test_a_mismatch_is_an_annotation_a_summary_and_a_failure(job: Job, parts: make_run.Parts, tmp_path: Path) -> None:
    lying = make_run.publish(make_run.train_with(parts, wrong_step=3), tmp_path / "lying")
    done = job("--run", lying, "--count", 8, "--out", tmp_path / "nights", github=True)
    assert done.returncode == 3
    lines = done.stdout.splitlines()
    # what the program says lies between the two marks, where the runner obeys nothing
    (begin,) = [i for i, line in enumerate(lines) if line.startswith("::stop-commands::")]
    end = lines.index(f"::{lines[begin].removeprefix('::stop-commands::')}::")
    assert any(line.startswith("step 3  MISMATCH") for line in lines[begin:end])
    assert [line for line in lines[end + 1 :] if line][0].startswith("::error title=nightly::MISMATCH")
    summary = (tmp_path / "summary.md").read_text(encoding="utf-8")
    assert "    step 3  MISMATCH" in summary
    (folder,) = [path for path in (tmp_path / "nights").iterdir() if path.is_dir()]
    assert (folder / "report.json").exists()


def test_a_wrong_option_keeps_its_exit_code(job: Job) -> None:
    done = job("--count", "none")
    assert done.returncode == 2
    assert "error: the night ended with exit code 2" in done.stderr


def test_the_workflow_keeps_the_evidence_whatever_happened() -> None:
    steps = WORKFLOW.split("\n      - ")
    (upload,) = [step for step in steps if "actions/upload-artifact@" in step]
    assert "if: always()" in upload
    (run,) = [step for step in steps if "tools/nightly.sh" in step]
    assert "AUDITKIT_KEY: ${{ secrets." in run
    folder = re.search(r"--out (\S+)", run)
    assert folder and f"path: {folder[1]}\n" in upload
    remembered = "".join(f"            {folder[1]}/{name}\n" for name in ("history.json", "data"))
    assert WORKFLOW.count(f"path: |\n{remembered}") == 2


def test_make_and_the_workflow_start_the_same_job() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = makefile.split("\nnightly:")[1].split("\n\n")[0]
    for place in (recipe, WORKFLOW):
        assert re.search(r"sh tools/nightly\.sh \S+/auditkit --run .* --count .* --out build/nights", place)
