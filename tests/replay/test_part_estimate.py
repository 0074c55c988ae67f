"""What an audit of some micro-batches would cost: what is read, what is refused, and the steps on the way to it."""

from __future__ import annotations

from pathlib import Path

import pytest

import auditkit
from auditkit.errors import UsageError
from auditkit.replay.backend import choose
from auditkit.replay.estimate import estimate
from auditkit.replay.part_estimate import estimate_part
from auditkit.replay.run import open_run
from auditkit.replay.selection import select
from auditkit.verdict import Verdict
from tests.store.servers import honest as honestly
from tests.store.servers import serve


def bytes_below(run: Path, folder: str) -> int:
    """Of all files in a folder of the run."""
    return sum(path.stat().st_size for path in (run / folder).iterdir())


def test_of_a_published_step_the_parameters_and_nothing_of_other_states(honest: Path) -> None:
    backend = choose("cpu", 1)
    with open_run(str(honest)) as run:
        found, whole = estimate_part(run, 4, "1", backend), estimate(run, select(step=4), backend)
    assert (found.verdict, found.steps, found.selection) == (Verdict.MATCH, 1, "step 4, micro-batch 1 of 2")
    assert found.total_bytes < whole.total_bytes - bytes_below(honest, "states/00000005")
    assert found.plan == "the parameters and the micro-batches alone in memory"


def test_of_a_step_between_published_states_the_way_to_it_and_no_end_state(honest: Path, tmp_path: Path) -> None:
    backend = choose("cpu", 1)
    with open_run(str(honest)) as run:
        with pytest.raises(UsageError, match="state 3 is not published"):
            estimate_part(run, 3, "0", backend)
        found = estimate_part(run, 3, "0", backend, replay_to=True)
        way, whole = estimate(run, select(steps="0:3"), backend), estimate(run, select(step=3), backend)
    assert (found.steps, found.selection) == (4, "step 3, micro-batch 0 of 2")
    assert found.plan.startswith("up to step 3 everything in memory") and found.plan.endswith(" alone in memory")
    assert found.memory == max(way.memory, found.memory)
    assert found.total_bytes == whole.total_bytes - bytes_below(honest, "states/00000004")
    files = {p.relative_to(honest).as_posix(): p.read_bytes() for p in honest.rglob("*") if p.is_file()}
    with serve(honestly, files) as server:
        report = auditkit.verify(server.url, step=3, micro_batches="0", replay_to=True, cache_dir=tmp_path)
    assert report.verdict is Verdict.MATCH
    assert not [asked for asked in server.asked if "states/00000004" in asked.path]


def test_where_the_micro_batches_have_no_room_the_plan_says_so_too(honest: Path) -> None:
    with open_run(str(honest)) as run:
        for step in (3, 4):
            found = estimate_part(run, step, "0", choose("cpu", 1), memory=80_000_000, replay_to=True)
            assert found.verdict is Verdict.UNSUPPORTED and found.refused.startswith("an audit of micro-batch 0 of 2")
            report = auditkit.verify(honest, step=step, micro_batches="0", memory=80_000_000, replay_to=True)
            assert (report.verdict, report.message) == (Verdict.UNSUPPORTED, found.refused)
