"""What torchrun and srun say in the environment."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from auditkit.errors import UsageError
from tests.trainer import tiny
from trainer.parallel.place import Place, launched

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RUN_ID": "job",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def test_a_rank_of_torchrun() -> None:
    assert launched(TORCHRUN) == Place(5, 8, 1, 4, "node-0", 29500, False, "auditkit/job/2")


def test_rank_0_holds_the_store_where_the_launcher_does_not() -> None:
    plain = {key: value for key, value in TORCHRUN.items() if not key.startswith("TORCHELASTIC")}
    for rank in ("0", "5"):
        found = launched(plain | {"RANK": rank})
        assert found is not None and found.holds_store == (rank == "0") and found.prefix == "auditkit//"


def test_one_machine_for_each_rank_is_what_nothing_says() -> None:
    found = launched({key: TORCHRUN[key] for key in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")})
    assert found is not None and (found.local_rank, found.local_size) == (0, 1)


@pytest.mark.parametrize("key", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_without_all_four_there_is_no_launcher(key: str) -> None:
    assert launched({name: value for name, value in TORCHRUN.items() if name != key}) is None
    assert launched(TORCHRUN | {key: ""}) is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("RANK", "8"),
        ("RANK", "-1"),
        ("RANK", "two"),
        ("WORLD_SIZE", "0"),
        ("LOCAL_RANK", "4"),
        ("LOCAL_WORLD_SIZE", "9"),
        ("MASTER_PORT", "70000"),
        ("MASTER_PORT", "٣"),
    ],
)
def test_what_is_no_number_in_its_range_is_refused(key: str, value: str) -> None:
    with pytest.raises(UsageError, match=f"^{key} is "):
        launched(TORCHRUN | {key: value})


SRUN = {
    "SLURM_PROCID": "17",
    "SLURM_STEP_NUM_TASKS": "18",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2),2",
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "0",
    "SLURM_RESTART_COUNT": "3",
    "MASTER_ADDR": "node-0",
    "MASTER_PORT": "29500",
}


def test_a_task_of_srun() -> None:
    assert launched(SRUN) == Place(17, 18, 1, 2, "node-0", 29500, False, "auditkit/4711.0/3")
    first = launched(SRUN | {"SLURM_PROCID": "0", "SLURM_NODEID": "0", "SLURM_LOCALID": "0"})
    assert first == Place(0, 18, 0, 8, "node-0", 29500, True, "auditkit/4711.0/3")


def test_torchrun_inside_a_task_of_srun_counts() -> None:
    assert launched(SRUN | TORCHRUN) == launched(TORCHRUN)


def test_one_task_of_srun_that_nothing_is_said_to_is_a_process_like_any_other() -> None:
    alone = SRUN | {"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "MASTER_ADDR": "", "MASTER_PORT": ""}
    assert launched(alone) is None
    assert launched({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}) is None  # the job's script itself


def test_tasks_of_srun_must_be_told_where_they_meet() -> None:
    with pytest.raises(UsageError, match="^srun has started 18 tasks, and MASTER_ADDR and MASTER_PORT") as found:
        launched(SRUN | {"MASTER_PORT": ""})
    assert "train-slurm.sbatch" in found.value.hint


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("SLURM_PROCID", "18"),
        ("SLURM_STEP_NUM_TASKS", "many"),
        ("SLURM_LOCALID", "2"),
        ("SLURM_NODEID", "3"),
        ("SLURM_STEP_TASKS_PER_NODE", "8(x2"),
        ("SLURM_STEP_TASKS_PER_NODE", "8(x0),2"),
        ("SLURM_STEP_TASKS_PER_NODE", "8(x2),٢"),
    ],
)
def test_what_srun_would_not_say_is_refused(key: str, value: str) -> None:
    with pytest.raises(UsageError, match="^SLURM_"):
        launched(SRUN | {key: value})


def test_without_torchrun_torch_is_not_imported(prepared: Path) -> None:
    code = (
        "import sys; from trainer.cli import main; code = main(sys.argv[1:]); sys.exit(code or 'torch' in sys.modules)"
    )
    arguments = tiny.run_arguments(prepared, "--steps", "12")
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=tiny.ROOT, check=False, timeout=tiny.SECONDS)
    assert done.returncode == 0
