"""Where this process stands among the ranks: what torchrun says in its environment. No bit depends on it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from auditkit.errors import UsageError

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
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
    """This process's place, None where no launcher has started it. UsageError for an environment that is none."""
    if not all(environment.get(key) for key in _NEEDED):
        return None
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


def _number(environment: Mapping[str, str], key: str, low: int, high: int, default: int | None = None) -> int:
    text = environment.get(key, "")
    if not text and default is not None:
        return default
    if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
        raise UsageError(f"{key} is {text!r}, not a number from {low} to {high}", hint="torchrun sets it")
    return int(text)
