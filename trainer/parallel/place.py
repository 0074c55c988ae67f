"""Where this process stands among the ranks: what torchrun, or Slurm's srun, says in its environment.

No bit depends on it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from auditkit.errors import UsageError

_MEET = ("MASTER_ADDR", "MASTER_PORT")
_NEEDED = ("RANK", "WORLD_SIZE", *_MEET)
_TASKS = re.compile(r"([1-9][0-9]{0,5})(?:\(x([1-9][0-9]{0,5})\))?")  # 8, or 8(x4): 8 on each of four machines
_MOST = 1 << 20


@dataclass(frozen=True)
class Place:
    """Rank and number of ranks, in all and on this machine; where they meet, and who holds the store there."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str
    port: int
    holds_store: bool
    prefix: str


def launched(environment: Mapping[str, str] = os.environ) -> Place | None:
    """This process's place, None where no launcher has started it. UsageError for an environment that is none.

    What torchrun says counts before what srun says, in whose tasks it may run.
    """
    if not all(environment.get(key) for key in _NEEDED):
        return _by_srun(environment)
    size = _number(environment, "WORLD_SIZE", 1, _MOST)
    rank = _number(environment, "RANK", 0, size - 1)
    local_size = _number(environment, "LOCAL_WORLD_SIZE", 1, size, 1)
    launcher_holds = environment.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True"
    run, restart = (environment.get(f"TORCHELASTIC_{key}", "") for key in ("RUN_ID", "RESTART_COUNT"))
    return Place(
        rank=rank,
        size=size,
        local_rank=_number(environment, "LOCAL_RANK", 0, local_size - 1, 0),
        local_size=local_size,
        address=environment["MASTER_ADDR"],
        port=_number(environment, "MASTER_PORT", 1, 65535),
        holds_store=rank == 0 and not launcher_holds,
        prefix=f"auditkit/{run}/{restart}",
    )


def _by_srun(environment: Mapping[str, str]) -> Place | None:
    """The place of a task of srun; it says nothing of where the ranks meet, which the job's script chooses."""
    if not all(environment.get(key) for key in ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")):
        return None
    size = _number(environment, "SLURM_STEP_NUM_TASKS", 1, _MOST)
    if not all(environment.get(key) for key in _MEET):
        if size == 1:
            return None
        raise UsageError(
            f"srun has started {size} tasks, and MASTER_ADDR and MASTER_PORT do not say where they meet",
            hint="export the name of the first machine and a free port of it, as docs/examples/train-slurm.sbatch does",
        )
    rank = _number(environment, "SLURM_PROCID", 0, size - 1)
    local_size = _tasks_here(environment, size)
    job, step, restart = (environment.get(f"SLURM_{key}", "") for key in ("JOB_ID", "STEP_ID", "RESTART_COUNT"))
    return Place(
        rank=rank,
        size=size,
        local_rank=_number(environment, "SLURM_LOCALID", 0, local_size - 1, 0),
        local_size=local_size,
        address=environment["MASTER_ADDR"],
        port=_number(environment, "MASTER_PORT", 1, 65535),
        holds_store=rank == 0,
        prefix=f"auditkit/{job}.{step}/{restart}",
    )


def _tasks_here(environment: Mapping[str, str], size: int) -> int:
    """How many of the tasks run on this machine, from a list such as 8(x4),2; one for each machine if there is none."""
    text = environment.get("SLURM_STEP_TASKS_PER_NODE", "")
    if not text:
        return 1
    node, counts = _number(environment, "SLURM_NODEID", 0, _MOST, 0), text.split(",")
    for part in counts:
        found = _TASKS.fullmatch(part)
        if found is None:
            break
        node -= int(found[2] or 1)
        if node < 0:
            return min(int(found[1]), size)
    raise UsageError(
        f"SLURM_STEP_TASKS_PER_NODE is {text!r}, which says nothing of machine {environment.get('SLURM_NODEID', '0')}",
        hint="srun sets it",
    )


def _number(environment: Mapping[str, str], key: str, low: int, high: int, default: int | None = None) -> int:
    text = environment.get(key, "")
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
        raise UsageError(f"{key} is {text!r}, not a number from {low} to {high}", hint="the launcher sets it")
    return int(text)
