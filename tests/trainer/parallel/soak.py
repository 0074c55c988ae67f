"""The long proof that ranks give the bits of one process, whatever happens to them. On Linux:

    python -m tests.trainer.parallel.soak --rounds 30 --seed 1
    python -m tests.trainer.parallel.soak --matrix --seed 1

A round trains 100 steps, and loses a random rank to `kill -9` at three random moments; each time the run goes on with
another number of ranks. It is published meanwhile, with a signed log: what is there after a kill verifies, and its log
continues the one seen before; in the end nothing is there twice or missing. The matrix trains 100 steps on every number
of ranks, with micro-batches that divide and that do not, exact and folded, publishes each run and verifies random steps
of it. All files are those of one process.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import auditkit
from auditkit.errors import UsageError
from auditkit.verdict import Verdict
from tests.trainer import tiny
from tests.trainer.live import grown
from tests.trainer.parallel.conftest import Started, Zygote
from trainer import cli
from trainer.parallel.ordered import plan

SIZES = (1, 2, 3, 4, 6, 8)
STEPS = 100
CHANGES = 3  # of the number of ranks, in a round
COUNTS = (24, 7)  # micro-batches: the one divides by every number of ranks, the other by none
FOLDS: tuple[tuple[int, ...], ...] = ((), (2, 2))
SECONDS = 120.0  # after which ranks that were left behind, or a run that goes to its end, fail the proof

# Losses are noticed, and what was made is written, as soon as may be; no run ends before it is struck.
BEFORE = """
import functools, time
from trainer import log
from trainer.parallel import launch, runner, torch_group
torch_group.CONNECT = 15.0
step = runner.Ranks.step
runner.Ranks.step = lambda self, state, *more: (time.sleep(0.01), step(self, state, *more))[1]
log.FLUSH_SECONDS = 0.0
launch.Times = functools.partial(launch.Times, start=20.0, beat=0.1, silence={}, suspicion=2.0, leave=2.0)
"""


@dataclass(frozen=True)
class Bench:
    """Where it all happens: what forks ranks, a folder, what is told, and on what to compute.

    alone, together: options of a trainer that is one process, and of one that is several ranks
    silence: seconds after which a rank without a sign of life is lost; a GPU's driver may take some for its start
    """

    zygote: Zygote
    folder: Path
    tell: Callable[[str], None]
    alone: tuple[str, ...] = ()
    together: tuple[str, ...] = ()
    silence: float = 4.0

    def ranks(self, size: int, arguments: list[str]) -> Started:
        """Ranks that run a command of the trainer."""
        before = dict.fromkeys(range(size), BEFORE.format(self.silence))
        return self.zygote.start(size, *arguments, *self.together, before=before)

    def one(self, arguments: list[str]) -> int:
        """Run a command of the trainer in this process; its exit code."""
        return cli.main([*arguments, *self.alone])


def recipe(count: int, fold: tuple[int, ...] = ()) -> str:
    """The tiny recipe, of STEPS steps with so many micro-batches."""
    text = tiny.RECIPE.replace("total_steps = 24", f"total_steps = {STEPS}")
    text = text.replace("sequences = 3\nmicro_batch_sequences = 2", f"sequences = {count}\nmicro_batch_sequences = 1")
    return text.replace("body_bits = 14", f"body_bits = 14\nfold = {list(fold)}") if fold else text


def prepared(bench: Bench, name: str, text: str) -> Path:
    """A work folder with its recipe."""
    once = bench.folder / "prepared" / "work"
    if not once.exists():
        tiny.prepare(once.parent)
    work = Path(shutil.copytree(once, bench.folder / name))
    (work / "recipe.toml").write_text(text, encoding="utf-8", newline="\n")
    return work


def begin(work: Path, steps: int, *more: str) -> list[str]:
    """The command that begins a run, or goes on with it."""
    if (work / "recipe.json").exists():
        return ["resume", str(work)]
    return ["run", str(work / "recipe.toml"), str(work), "--steps", str(steps), "--state-every", "7", *more]


def undisturbed(bench: Bench, name: str, text: str, steps: int) -> Path:
    """The run of one process; beside it what is published of it."""
    work = prepared(bench, f"{name}/work", text)
    assert bench.one(begin(work, steps)) == 0
    grown.published(work, work.parent)
    return work


def whole_round(bench: Bench, truth: Path, number: int, chance: random.Random, steps: int = STEPS) -> str:
    """Train with CHANGES kills and as many changes of the number of ranks; what happened."""
    work = prepared(bench, f"round-{number}", (truth / "recipe.toml").read_text(encoding="utf-8"))
    beside = bench.folder / f"published-{number}"
    beside.mkdir()
    words, seen = begin(work, steps, *grown.options(beside)), 0
    sizes = chance.sample(SIZES, CHANGES + 1)
    story = []
    for part, size in enumerate(sizes[:-1]):
        ranks = bench.ranks(size, words)
        lost = chance.randrange(size)
        moment = _moment(ranks, work, chance, steps * (part + 1) // (CHANGES + 1))
        assert ranks.codes()[lost] is None, ranks.said(lost)
        ranks.signal(lost, signal.SIGKILL)
        ended = ranks.wait(SECONDS, but=lost)
        assert set(ended) <= {Verdict.UNAVAILABLE.code}, (ended, [ranks.said(rank) for rank in range(size)])
        ranks.wait(SECONDS)
        story.append(f"{lost} of {size} at {moment}")
        assert_part_of(work, truth)
        if (beside / "out").exists():
            grown.assert_verifies(beside / "out", beside, seed=number)
            assert seen <= grown.manifest(beside / "out").steps
            seen = grown.manifest(beside / "out").steps
        words = begin(work, steps, *grown.options(beside))
    ranks = bench.ranks(sizes[-1], words)
    assert ranks.wait(SECONDS) == [0] * sizes[-1], [ranks.said(rank) for rank in range(sizes[-1])]
    tiny.assert_same_run(work, truth)
    grown.assert_same(beside / "out", truth.parent / "reference")
    grown.assert_verifies(beside / "out", beside, seed=number)
    shutil.rmtree(work)
    shutil.rmtree(beside)
    return f"killed rank {', '.join(story)}; to its end on {sizes[-1]}"


def _moment(ranks: Started, work: Path, chance: random.Random, until: int) -> str:
    """Wait for a random moment: a time after the start, or a step, of those before `until`, and a little more."""
    if chance.random() < 0.3:
        seconds = chance.random()
        time.sleep(seconds)
        return f"{seconds:.2f} s"
    return moment_of_a_step(ranks, work, chance, until)


def moment_of_a_step(ranks: Started, work: Path, chance: random.Random, until: int) -> str:
    """Wait for a random step, of those before `until`, and a little more."""
    done = _steps_done(work)
    step = chance.randrange(done, max(done + 1, until)) + 1
    end = time.monotonic() + SECONDS
    while _steps_done(work) < step and None in ranks.codes():
        assert time.monotonic() < end, [ranks.said(rank) for rank in range(len(ranks.processes))]
        time.sleep(0.002)
    time.sleep(chance.random() * 0.03)
    return f"step {_steps_done(work)}"


def _steps_done(work: Path) -> int:
    metrics = work / "metrics.jsonl"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def assert_part_of(work: Path, truth: Path) -> None:
    """What a killed run has left is a part of the undisturbed one: whole states, and files up to some byte."""
    for name in ("records.bin", "leaves.bin", "stream.bin", "stream.idx", "checks.bin"):
        if (work / name).exists():
            assert (truth / name).read_bytes().startswith((work / name).read_bytes()), name
    whole = tiny.bits(truth)
    for path in (work / "states").glob("0*/*"):
        name = path.relative_to(work).as_posix()
        assert whole.get(name, path.read_bytes()) == path.read_bytes(), name


def case(bench: Bench, truth: Path, size: int, name: str, chance: random.Random, steps: int = STEPS) -> None:
    """One run on ranks against that of one process; published, and verified in random steps."""
    work = prepared(bench, name, (truth / "recipe.toml").read_text(encoding="utf-8"))
    ranks = bench.ranks(size, begin(work, steps))
    assert ranks.wait(10 * SECONDS) == [0] * size, [ranks.said(rank) for rank in range(size)]
    tiny.assert_same_run(work, truth)
    out, cache = bench.folder / f"{name}-out", bench.folder / f"{name}-cache"
    assert cli.main(["publish", str(work), str(out), "--name", name]) == 0
    report = auditkit.verify(str(out), random=2, seed=chance.randrange(1 << 32), device="cpu", cache_dir=cache)
    assert report.verdict is Verdict.MATCH and len(report.steps) == 2
    for folder in (work, out, cache):
        shutil.rmtree(folder, ignore_errors=True)


def cases() -> list[tuple[int, tuple[int, ...], list[int]]]:
    """Micro-batches and fold, and the numbers of ranks that can share them."""
    return [(count, fold, [size for size in SIZES if _fits(count, fold, size)]) for count in COUNTS for fold in FOLDS]


def _fits(count: int, fold: tuple[int, ...], size: int) -> bool:
    try:
        plan(count, fold, size) if fold else None
    except UsageError:
        return False
    return True


def rounds(bench: Bench, numbers: range, seed: int) -> None:
    """Some rounds; each follows from the seed and its number."""
    truth = undisturbed(bench, "truth", recipe(7), STEPS)
    for one in numbers:
        began = time.monotonic()
        story = whole_round(bench, truth, one, random.Random(f"{seed} {one}"))
        bench.tell(f"round {one}: {story}: the same bits ({time.monotonic() - began:.1f} s)")


def matrix(bench: Bench, seed: int) -> None:
    """Every number of ranks, count and fold."""
    chance = random.Random(seed)
    for count, fold, sizes in cases():
        truth = undisturbed(bench, f"truth-{count}-{len(fold)}", recipe(count, fold), STEPS)
        for size in sizes:
            began = time.monotonic()
            case(bench, truth, size, f"case-{count}-{len(fold)}-{size}", chance)
            about = f"{size} ranks, {count} micro-batches, fold {list(fold)}"
            bench.tell(f"{about}: the same bits, 2 steps verified ({time.monotonic() - began:.1f} s)")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.trainer.parallel.soak", description=__doc__)
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--matrix", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()

    def tell(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ranks").mkdir()
        zygote = Zygote(Path(folder) / "ranks")
        bench = Bench(zygote, Path(folder), tell)
        try:
            rounds(bench, range(chosen.first, chosen.first + chosen.rounds), chosen.seed)
            if chosen.matrix:
                matrix(bench, chosen.seed)
        finally:
            zygote.close()


if __name__ == "__main__":
    main()
