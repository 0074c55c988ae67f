"""`python -m trainer` on several ranks: the files that one process writes, and one clear end when a rank is missing."""

from __future__ import annotations

import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import auditkit
from auditkit.verdict import Verdict
from tests.trainer import tiny
from tests.trainer.parallel.conftest import FORKS, Started, Zygote
from trainer import cli, state_files

pytestmark = FORKS

FOLDED = tiny.RECIPE.replace("sequences = 3\nmicro_batch_sequences = 2", "sequences = 7\nmicro_batch_sequences = 1")
FOLDED = FOLDED.replace("body_bits = 14", "body_bits = 14\nfold = [2, 2]")

# All learn of an end sooner than people need to.
QUICK = """
import functools
from trainer.parallel import launch
launch.Times = functools.partial(launch.Times, beat=0.1, leave=2.0)
"""
# A rank is lost after 5 s, or 3 s when the network has failed: a busy machine may keep one waiting for a second.
LOSING = """
launch.Times = functools.partial(launch.Times, silence=5.0, suspicion=3.0)
"""
SLOW = """
import time
from trainer.parallel import runner
before = runner.Ranks.step
runner.Ranks.step = lambda self, state, *more: (time.sleep(0.03), before(self, state, *more))[1]
"""
# Something at step 3, in place of reading its tokens.
AT_STEP_3 = """
import time
from auditkit.errors import BadArtifact, MachineFault
from auditkit.replay import windows
read = windows.Windows.tokens
def tokens(self, step):
    if step == 3:
        {what}
    return read(self, step)
windows.Windows.tokens = tokens
"""


def start(zygote: Zygote, work: Path, size: int, *more: str, before: str = "", **of: str) -> Started:
    """Ranks that begin the tiny run; `before` on all of them, `rank_2=..` on one."""
    code = {rank: QUICK + before + of.get(f"rank_{rank}", "") for rank in range(size)}
    return zygote.start(size, *tiny.run_arguments(work, *more), before=code)


def resume(zygote: Zygote, work: Path, size: int, *more: str) -> Started:
    """Ranks that go on."""
    return zygote.start(size, "resume", str(work), *more, before={rank: QUICK for rank in range(size)})


def errors(ranks: Started) -> list[str]:
    """What the ranks tell of errors, all together."""
    told = [line for rank in range(len(ranks.processes)) for line in ranks.said(rank).splitlines()]
    assert not [line for line in told if "Traceback" in line]
    return [line for line in told if line.startswith("error:")]


def wait_for_steps(ranks: Started, work: Path, steps: int) -> None:
    """Until so many steps are in the metrics."""
    until = time.monotonic() + tiny.SECONDS
    metrics = work / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_bytes().splitlines()) < steps:
        assert None in ranks.codes() and time.monotonic() < until, ranks.said(0)
        time.sleep(0.01)


FLUSH = """
from trainer import log
log.FLUSH_SECONDS = 0.0
"""


@pytest.mark.parametrize("size", [1, 4])
def test_ranks_write_the_files_of_one_process(zygote: Zygote, prepared: Path, finished_once: Path, size: int) -> None:
    ranks = start(zygote, prepared, size)
    assert ranks.wait() == [0] * size, errors(ranks)
    tiny.assert_same_run(prepared, finished_once)
    assert ranks.said(0, "out").startswith("step 24 of 24\nstate ")
    assert all(ranks.said(rank) + ranks.said(rank, "out") == "" for rank in range(1, size))


MANY_SHARDS = """
from trainer import state_files
state_files.SHARD_BYTES = 20_000
"""


def test_each_rank_writes_shards_of_its_own(
    zygote: Zygote, prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Path(shutil.copytree(prepared, tmp_path / "alone"))
    ranks = start(zygote, prepared, 3, "--state-every", "1", before=MANY_SHARDS)
    assert ranks.wait() == [0] * 3, errors(ranks)
    monkeypatch.setattr(state_files, "SHARD_BYTES", 20_000)
    assert tiny.run(alone, "--state-every", "1") == 0
    assert len(list((alone / "states" / "00000007").glob("shard-*"))) > 3
    tiny.assert_same_run(prepared, alone)


FULL_DISK = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (9, 9))"


def test_a_disk_that_refuses_one_rank_ends_all(zygote: Zygote, prepared: Path, finished_once: Path) -> None:
    ranks = start(
        zygote, prepared, 3, "--state-every", "1", before=MANY_SHARDS, rank_1=AT_STEP_3.format(what=FULL_DISK)
    )
    assert ranks.wait() == [Verdict.UNSUPPORTED.code] * 3
    (told,) = errors(ranks)
    assert told.startswith("error: rank 1: ") and told.endswith("file too large")
    assert "what was complete is kept" in ranks.said(0)
    assert not (prepared / "states" / "00000005").exists()


@pytest.fixture(scope="module")
def folded_once(prepared_once: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one process whose recipe declares a fold of 7 micro-batches; not to be changed."""
    work = Path(shutil.copytree(prepared_once, tmp_path_factory.mktemp("folded") / "work"))
    (work / "recipe.toml").write_text(FOLDED, encoding="utf-8", newline="\n")
    assert tiny.run(work) == 0
    return work


def test_a_fold_on_ranks_is_verified_like_any_run(
    zygote: Zygote, prepared: Path, folded_once: Path, tmp_path: Path
) -> None:
    (prepared / "recipe.toml").write_text(FOLDED, encoding="utf-8", newline="\n")
    ranks = start(zygote, prepared, 3)
    assert ranks.wait() == [0] * 3, errors(ranks)
    tiny.assert_same_run(prepared, folded_once)
    assert cli.main(["publish", str(prepared), str(tmp_path / "out"), "--name", "folded"]) == 0
    report = auditkit.verify(str(tmp_path / "out"), random=3, seed=8, device="cpu", cache_dir=tmp_path / "cache")
    assert report.verdict is Verdict.MATCH and len(report.steps) == 3


def test_an_exact_run_on_ranks_is_verified(zygote: Zygote, prepared: Path, tmp_path: Path) -> None:
    ranks = start(zygote, prepared, 3)
    assert ranks.wait() == [0] * 3, errors(ranks)
    assert cli.main(["publish", str(prepared), str(tmp_path / "out"), "--name", "exact", "--compact"]) == 0
    report = auditkit.verify(str(tmp_path / "out"), random=3, seed=9, device="cpu", cache_dir=tmp_path / "cache")
    assert report.verdict is Verdict.MATCH and len(report.steps) == 3


def test_a_run_goes_on_on_another_number_of_ranks(zygote: Zygote, prepared: Path, finished_once: Path) -> None:
    assert start(zygote, prepared, 3, "--steps", "9").wait() == [0] * 3
    assert resume(zygote, prepared, 2, "--steps", "13").wait() == [0] * 2
    assert tiny.resume(prepared, "--steps", "16") == 0
    assert resume(zygote, prepared, 4, "--steps", "24").wait() == [0] * 4
    tiny.assert_same_run(prepared, finished_once)
    assert resume(zygote, prepared, 2).wait() == [0] * 2  # nothing is left to do
    tiny.assert_same_run(prepared, finished_once)


@pytest.mark.parametrize(("number", "asked", "code"), [(signal.SIGTERM, [1], 0), (signal.SIGINT, [0, 1, 2], 130)])
def test_asked_to_stop_all_ranks_save_a_state_together(
    zygote: Zygote, prepared: Path, finished_once: Path, number: int, asked: list[int], code: int
) -> None:
    ranks = start(zygote, prepared, 3, before=SLOW + FLUSH)
    wait_for_steps(ranks, prepared, 3)
    for rank in asked:
        ranks.signal(rank, number)
    assert ranks.wait() == [code] * 3, errors(ranks)
    assert "stopped; python -m trainer resume" in ranks.said(0)
    reached = int(ranks.said(0, "out").split()[1])
    assert 3 <= reached < tiny.STEPS and (prepared / "states" / f"{reached:08d}" / "index.json").exists()
    assert resume(zygote, prepared, 2).wait() == [0, 0]
    tiny.assert_same_run(prepared, finished_once)


@pytest.mark.parametrize(("number", "rank"), [(signal.SIGKILL, 2), (signal.SIGKILL, 0), (signal.SIGSTOP, 1)])
def test_a_lost_rank_ends_all_others_with_one_message_that_names_it(
    zygote: Zygote, prepared: Path, finished_once: Path, number: int, rank: int
) -> None:
    ranks = start(zygote, prepared, 3, before=LOSING + SLOW + FLUSH)
    wait_for_steps(ranks, prepared, 8)
    ranks.signal(rank, number)
    assert ranks.wait(but=rank) == [Verdict.UNAVAILABLE.code] * 2, [ranks.said(r) for r in range(3)]
    if number == signal.SIGSTOP:
        ranks.signal(rank, signal.SIGKILL)
    if rank:  # rank 0 held the store as well: torchrun holds it elsewhere
        (told,) = errors(ranks)
        assert told.startswith(f"error: rank {rank} gave no sign of life for ") and ", at step " in told
        assert "resume goes on from the last complete state" in "".join(ranks.said(r) for r in range(3))
    else:
        assert errors(ranks) and all("rank 0" in told for told in errors(ranks))
    assert resume(zygote, prepared, 2).wait() == [0, 0]
    tiny.assert_same_run(prepared, finished_once)


@pytest.mark.parametrize(
    ("what", "code", "message"),
    [
        ("raise BadArtifact('the ids are damaged', hint='get others')", 4, "rank 1: the ids are damaged"),
        ("raise MachineFault('a bit has flipped')", 7, "rank 1: a bit has flipped"),
        ("raise OSError(5, 'Input/output error', 'ids.bin')", 5, "rank 1: ids.bin: input/output error"),
        ("raise MemoryError", 6, "rank 1: out of memory"),
    ],
)
def test_an_error_on_one_rank_ends_all(zygote: Zygote, prepared: Path, what: str, code: int, message: str) -> None:
    ranks = start(zygote, prepared, 3, rank_1=AT_STEP_3.format(what=what))
    assert ranks.wait() == [code] * 3
    assert errors(ranks) == [f"error: {message}"]


def test_a_bug_on_one_rank_ends_all_with_its_trace(zygote: Zygote, prepared: Path) -> None:
    ranks = start(zygote, prepared, 3, rank_2=AT_STEP_3.format(what="raise ValueError('oh')"))
    assert ranks.wait() == [Verdict.INTERNAL.code] * 3
    assert "ValueError: oh" in ranks.said(2) and "rank 2: internal error, please report" in ranks.said(2)
    assert "Traceback" not in ranks.said(0) + ranks.said(1)


def test_a_rank_that_does_not_come_is_named(zygote: Zygote, prepared: Path) -> None:
    ranks = start(zygote, prepared, 3, "--wait", "5", rank_1=AT_STEP_3.format(what="time.sleep(100)"))
    assert ranks.wait() == [Verdict.UNAVAILABLE.code] * 3
    assert errors(ranks) == ["error: rank 1 did not come within 5 s, at step 3"]


def test_a_step_without_a_result_is_told_once(zygote: Zygote, prepared: Path) -> None:
    recipe = tiny.RECIPE.replace("peak_lr = 3e-3", "peak_lr = 1e37").replace("warmup_steps = 5", "warmup_steps = 0")
    (prepared / "recipe.toml").write_text(recipe, encoding="utf-8", newline="\n")
    ranks = start(zygote, prepared, 2)
    assert ranks.wait() == [Verdict.USAGE.code] * 2
    (told,) = errors(ranks)
    assert told.startswith("error: step ") and "has no result" in told
    assert (prepared / "states" / "00000000" / "index.json").exists()


def test_what_is_wrong_from_the_start_is_told_once(
    zygote: Zygote, prepared: Path, finished: Path, folded_once: Path, tmp_path: Path
) -> None:
    cases: list[tuple[Any, int, str]] = [
        (tiny.run_arguments(finished), 2, "a run was started here already"),
        (["resume", str(prepared)], 2, "no run has been started here"),
        (["resume", str(tmp_path / "none")], 5, "no such folder"),
        (tiny.run_arguments(prepared, "--backend", "nccl"), 2, "NCCL carries arrays of GPUs only"),
        (tiny.run_arguments(prepared, "--device", "cuba"), 2, "there is no device 'cuba'"),
    ]
    for arguments, code, words in cases:
        ranks = zygote.start(3, *arguments, before={rank: QUICK for rank in range(3)})
        assert ranks.wait() == [code] * 3, [ranks.said(rank) for rank in range(3)]
        (told,) = errors(ranks)
        assert words in told
    large = FOLDED.replace("fold = [2, 2]", "fold = [64]").replace("sequences = 7", "sequences = 64", 1)
    (prepared / "recipe.toml").write_text(large, encoding="utf-8", newline="\n")
    ranks = start(zygote, prepared, 3)
    assert ranks.wait() == [2] * 3
    assert errors(ranks) == [
        "error: 3 ranks cannot share the fold [64] of 64 micro-batches: "
        "its groups are too large, or their sums too many"
    ]
    assert "hint: numbers of ranks that can: 1, 8 to 64" in "".join(ranks.said(rank) for rank in range(3))
    assert not (prepared / "recipe.json").exists()


# Dies when the ranks have met, and connect to each other.
DIE_CONNECTING = """
import os
from trainer.parallel import torch_group
torch_group.dist.init_process_group = lambda *more, **options: os._exit(9)
"""


@pytest.mark.parametrize("lost", [0, 1])
def test_a_rank_that_is_lost_while_all_connect_is_named(zygote: Zygote, prepared: Path, lost: int) -> None:
    ranks = start(zygote, prepared, 3, before=LOSING, **{f"rank_{lost}": DIE_CONNECTING})
    assert ranks.wait(but=lost) == [Verdict.UNAVAILABLE.code] * 2, [ranks.said(rank) for rank in range(3)]
    if lost:
        (told,) = errors(ranks)
        assert told.startswith("error: rank 1 gave no sign of life for ") and told.endswith(", at the start")
    else:
        assert errors(ranks) and all("rank 0" in told for told in errors(ranks))


def test_a_rank_that_never_starts_is_named(zygote: Zygote, prepared: Path) -> None:
    start_soon = QUICK + "launch.Times = functools.partial(launch.Times, start=3.0)"
    before = {0: start_soon, 1: "import os; os._exit(0)", 2: start_soon}
    ranks = zygote.start(3, *tiny.run_arguments(prepared), before=before)
    assert ranks.wait() == [5, 0, 5]
    assert errors(ranks) == ["error: rank 1 did not come within 3 s, at the start"]
