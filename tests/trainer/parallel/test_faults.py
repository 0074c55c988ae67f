"""What goes wrong on a cluster: a full disk, ranks that stand still or are slow, two runs in one folder."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from auditkit.verdict import Verdict
from tests.trainer import tiny
from tests.trainer.parallel.conftest import FORKS, Zygote
from tests.trainer.parallel.test_run import AT_STEP_3, FLUSH, LOSING, QUICK, SLOW, errors, resume, start, wait_for_steps

pytestmark = FORKS

FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({most}, {most}))"


@pytest.mark.parametrize(
    ("most", "more", "where"),
    [(1_100, ("--state-every", "24"), "/records.bin"), (60_000, (), "/states/00000006")],
    ids=["log", "state"],
)
def test_a_disk_that_is_full_for_the_leading_rank_ends_all(
    zygote: Zygote, prepared: Path, finished_once: Path, most: int, more: tuple[str, ...], where: str
) -> None:
    ranks = start(zygote, prepared, 3, *more, before=FLUSH, rank_0=AT_STEP_3.format(what=FULL.format(most=most)))
    assert ranks.wait() == [Verdict.UNSUPPORTED.code] * 3, [ranks.said(rank) for rank in range(3)]
    (told,) = errors(ranks)
    assert told.startswith("error: ") and told.endswith(f"{prepared}{where}: file too large")
    assert "make room, then resume" in ranks.said(0)
    assert resume(zygote, prepared, 2).wait() == [0, 0]
    if not more:
        tiny.assert_same_run(prepared, finished_once)
    else:  # fewer states were kept
        assert (prepared / "records.bin").read_bytes() == (finished_once / "records.bin").read_bytes()


def test_a_rank_that_is_slow_but_alive_is_waited_for(zygote: Zygote, prepared: Path, finished_once: Path) -> None:
    """Longer than one may be silent, and less than one may keep others waiting."""
    soon = "launch.Times = functools.partial(launch.Times, silence=3.0, suspicion=3.0)\n"
    ranks = start(zygote, prepared, 3, before=soon, rank_1=AT_STEP_3.format(what="time.sleep(4)"))
    assert ranks.wait() == [0] * 3, errors(ranks)
    tiny.assert_same_run(prepared, finished_once)


def test_the_leading_rank_stands_still(zygote: Zygote, prepared: Path, finished_once: Path) -> None:
    """It holds the store as well, as under srun: whatever the others ask of it gets no answer."""
    ranks = start(zygote, prepared, 3, before=LOSING + SLOW + FLUSH)
    wait_for_steps(ranks, prepared, 4)
    ranks.signal(0, signal.SIGSTOP)
    assert ranks.wait(but=0) == [Verdict.UNAVAILABLE.code] * 2, [ranks.said(rank) for rank in range(3)]
    ranks.signal(0, signal.SIGKILL)
    assert errors(ranks) and all("rank 0" in told for told in errors(ranks))
    assert "resume goes on" in ranks.said(1) + ranks.said(2)
    ranks.wait()
    assert resume(zygote, prepared, 2).wait() == [0, 0]
    tiny.assert_same_run(prepared, finished_once)


def test_all_ranks_stand_still_for_a_while(zygote: Zygote, prepared: Path, finished_once: Path) -> None:
    """As `scontrol suspend` does it, for longer than one of them alone may be silent."""
    soon = "launch.Times = functools.partial(launch.Times, silence=3.0, suspicion=1.0)\n"
    ranks = start(zygote, prepared, 3, before=soon + SLOW + FLUSH)
    wait_for_steps(ranks, prepared, 4)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for rank in range(3):
            ranks.signal(rank, number)
        time.sleep(4 if number == signal.SIGSTOP else 0)
    assert ranks.wait() == [0] * 3, errors(ranks)
    tiny.assert_same_run(prepared, finished_once)


def test_a_second_run_in_the_folder_ends_and_the_first_goes_on(
    zygote: Zygote, prepared: Path, finished_once: Path
) -> None:
    first = start(zygote, prepared, 3, before=SLOW.replace("0.03", "0.1") + FLUSH)
    wait_for_steps(first, prepared, 1)
    second = zygote.start(2, "resume", str(prepared), before={rank: QUICK for rank in range(2)})
    assert second.wait() == [Verdict.USAGE.code] * 2
    assert errors(second) == [f"error: {prepared}: another trainer is at work in this folder"]
    assert first.wait() == [0] * 3, errors(first)
    tiny.assert_same_run(prepared, finished_once)
