"""The scripts of docs/examples that train: torchrun itself, and a job of Slurm with the commands that it calls."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.trainer import tiny
from tests.trainer.parallel.conftest import FORKS, free_port
from trainer.states import complete_steps

pytestmark = FORKS

EXAMPLES = ROOT / "docs" / "examples"
STEPS = 5000  # more than a machine makes in the time of a test

# srun, as far as it goes on one machine: TASKS tasks, signals to all of them, the largest exit code.
SRUN = """#!/bin/bash
while [ "${1#--}" != "$1" ]; do shift; done
tasks=()
for task in $(seq 0 $((TASKS - 1))); do
    SLURM_PROCID=$task SLURM_LOCALID=$task SLURM_NODEID=0 SLURM_STEP_ID=0 SLURM_STEP_NUM_TASKS=$TASKS \\
        SLURM_STEP_TASKS_PER_NODE=$TASKS "$@" &
    tasks+=($!)
done
trap 'kill -TERM "${tasks[@]}"' TERM
echo $$ >"$FAKE/srun.pid"
code=0
for task in "${tasks[@]}"; do
    wait "$task"; ended=$?
    while kill -0 "$task" 2>/dev/null; do wait "$task"; ended=$?; done
    [ "$ended" -le "$code" ] || code=$ended
done
exit "$code"
"""
SCONTROL = """#!/bin/bash
case $1 in
show) echo 127.0.0.1; echo node-1 ;;
*) echo "$@" >>"$FAKE/asked" ;;
esac
"""


@pytest.fixture
def work(prepared: Path) -> Path:
    """A prepared folder with a recipe for a long run."""
    pytest.importorskip("torch", reason="torch is not installed")
    recipe = tiny.RECIPE.replace("total_steps = 24", f"total_steps = {STEPS}")
    (prepared / "recipe.toml").write_text(recipe, encoding="utf-8", newline="\n")
    return prepared


def executable(path: Path, text: str) -> Path:
    """A script."""
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def environment(work: Path, **more: object) -> dict[str, str]:
    """What the scripts are told."""
    told = {"WORK": work, "RECIPE": work / "recipe.toml", "DEVICE": "cpu", "STATE_EVERY": STEPS} | more
    own = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # ranks look up this machine's name
    return own | {"OMP_NUM_THREADS": "1"} | {key: str(value) for key, value in told.items()}


def begin(script: str, env: dict[str, str]) -> subprocess.Popen[str]:
    """A script of docs/examples that has begun."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "encoding": "utf-8"}
    return subprocess.Popen(["bash", str(EXAMPLES / script)], cwd=ROOT, env=env, **piped)  # type: ignore[call-overload, no-any-return]


def wait_for_steps(child: subprocess.Popen[str], work: Path) -> None:
    """Until it has made some."""
    until = time.monotonic() + 300
    while not (work / "metrics.jsonl").exists() or not (work / "metrics.jsonl").read_bytes():
        assert child.poll() is None and time.monotonic() < until, child.communicate()
        time.sleep(0.05)


def assert_goes_on(work: Path, beside: Path, reached: int) -> None:
    """What was stopped at a step goes on to the bits of a run that was not."""
    assert 0 < reached < STEPS and complete_steps(work / "states") == [0, reached]
    steps = str(reached + 5)
    assert tiny.resume(work, "--steps", steps) == 0
    arguments = ["run", str(beside / "recipe.toml"), str(beside), "--steps", steps, "--state-every", str(STEPS)]
    assert tiny.cli.main(arguments) == 0
    tiny.assert_same_run(work, beside)


def test_torchrun_is_asked_to_stop(work: Path, tmp_path: Path) -> None:
    """The launcher itself, which holds the store, by the script; SIGTERM to it is one to all ranks."""
    beside = Path(shutil.copytree(work, tmp_path / "beside"))
    launcher = executable(
        tmp_path / "torchrun", f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m torch.distributed.run "$@"\n'
    )
    child = begin("train-torchrun.sh", environment(work, TORCHRUN=launcher, RANKS=2))
    wait_for_steps(child, work)
    child.send_signal(signal.SIGTERM)
    out, story = child.communicate(timeout=300)
    assert "sigterm: finishing this step, then saving" in story, story
    assert "stopped; python -m trainer resume" in story and "Traceback" not in story.split("torch/distributed")[0]
    assert_goes_on(work, beside, int(out.split()[1]))


class Job:
    """A job of Slurm, on a machine that has none."""

    def __init__(self, folder: Path, work: Path) -> None:
        self.folder, self.work = folder, work
        for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
            executable(folder / name, text)

    def begin(self, tasks: int, restarts: int, **more: object) -> subprocess.Popen[str]:
        """The script in its n-th life."""
        told = {"TASKS": tasks, "FAKE": self.folder, "PYTHON": sys.executable, "MASTER_PORT": free_port()}
        slurm = {"SLURM_JOB_ID": 4711, "SLURM_JOB_NODELIST": "node-[0-1]", "SLURM_RESTART_COUNT": restarts}
        env = environment(self.work, **(told | slurm | more))
        return begin("train-slurm.sbatch", env | {"PATH": f"{self.folder}:{env['PATH']}"})

    def told(self) -> list[str]:
        """What scontrol was asked for besides names."""
        found = self.folder / "asked"
        return found.read_text(encoding="utf-8").splitlines() if found.exists() else []


@pytest.fixture
def job(tmp_path: Path, work: Path) -> Job:
    """A job with a folder of its own."""
    (tmp_path / "slurm").mkdir()
    return Job(tmp_path / "slurm", work)


def test_a_job_of_slurm_stops_in_time_and_queues_again(job: Job, work: Path, tmp_path: Path) -> None:
    beside = Path(shutil.copytree(work, tmp_path / "beside"))
    child = job.begin(2, 0)
    wait_for_steps(child, work)
    os.kill(int((job.folder / "srun.pid").read_text()), signal.SIGTERM)
    out, story = child.communicate(timeout=300)
    assert child.returncode == 0, story
    assert job.told() == ["requeue 4711"] and "sigterm: finishing this step, then saving" in story
    assert_goes_on(work, beside, int(out.split()[1]))


@pytest.mark.parametrize(
    ("code", "says", "restarts", "ends", "requeued"),
    [
        (0, "step 90 of 90", 20, 0, False),
        (0, "step 9 of 90", 0, 0, True),
        (0, "step 9 of 90", 20, 5, False),
        (5, "", 0, 0, True),
        (5, "", 20, 5, False),
        (7, "", 0, 7, False),
        (2, "", 0, 2, False),
    ],
)
def test_what_a_job_does_with_a_code(job: Job, code: int, says: str, restarts: int, ends: int, requeued: bool) -> None:
    """Trained to its end, or asked to stop; a rank lost; a fault; wrong usage."""
    ranks = executable(job.folder / "python", f"#!/bin/sh\n[ -z '{says}' ] || echo '{says}'\nexit {code}\n")
    child = job.begin(1, restarts, PYTHON=ranks)
    _, story = child.communicate(timeout=60)
    assert (child.returncode, bool(job.told())) == (ends, requeued), story


@pytest.mark.optional("shellcheck is no package of this project")
@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_the_scripts_are_clean() -> None:
    found = str(shutil.which("shellcheck"))
    scripts = sorted(path for path in EXAMPLES.iterdir() if path.suffix in (".sh", ".sbatch", ".slurm"))
    done = subprocess.run([found, *map(str, scripts)], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout
