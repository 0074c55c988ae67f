"""A fault in every run: does a verification ever accuse an honest publisher, or believe a lie?

    python -m tests.faults.campaign --runs 1000 --seed 1 [--write docs/faults.md]

Each run is one verification of a tiny run that really was trained, with one random fault: of the network, the disk, the
memory, a published file, or a kill. The oracle knows the truth of what is verified. MISMATCH of an honest run and MATCH
of a lie are wrong, whatever the fault was; so is any other verdict that the fault cannot explain.
"""

from __future__ import annotations

import argparse
import collections
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from auditkit.errors import UsageError
from auditkit.model.plan import Cuts
from auditkit.model.plan import Plan as MemoryPlan
from auditkit.replay import placing
from auditkit.replay import verify as verifying
from auditkit.replay.layout import Layout
from auditkit.replay.memory import Bytes
from auditkit.replay.report import Report
from auditkit.store.progress import SystemClock
from auditkit.verdict import Verdict
from tests.faults import disk, memory, network
from tests.faults.world import STEP, World, worlds
from tests.store.servers import honest, serve

Outcomes = frozenset[Verdict]

# What a fault may end as where the run is honest. A lie may end as any of these, and as MISMATCH, but not as MATCH.
ALLOWED: dict[str, Outcomes] = {
    "none": frozenset({Verdict.MATCH}),
    "network": frozenset({Verdict.MATCH, Verdict.UNAVAILABLE, Verdict.BAD_ARTIFACT}),
    "disk": frozenset({Verdict.MATCH, Verdict.UNAVAILABLE, Verdict.UNSUPPORTED, Verdict.BAD_ARTIFACT}),
    "memory": frozenset({Verdict.MATCH, Verdict.MACHINE_FAULT, Verdict.BAD_ARTIFACT}),
    "artifact": frozenset({Verdict.MATCH, Verdict.UNAVAILABLE, Verdict.BAD_ARTIFACT}),
    "kill": frozenset({Verdict.MATCH}),
}
SHARES = {"network": 25, "disk": 20, "memory": 35, "artifact": 15, "kill": 5}
# Where a plan spills to the cache folder, a file that comes back with other bits may be noticed outside of the step.
SPILLING = MemoryPlan(True, group=2, recompute=True, cuts=Cuts(7, 100), params="disk", sums="disk", inputs="disk")
ALLOWED_SPILLING = {"disk": ALLOWED["disk"] | {Verdict.MACHINE_FAULT}}
OPENINGS, OPENINGS_SPILLING = 140, 270  # of files in the cache, one of which a fault of the disk meets
ARTIFACTS = ("flipped bit", "cut short", "removed", "swapped", "lie")


@dataclass(frozen=True)
class Plan:
    """What one run does: which truth is verified how, and which fault it meets."""

    number: int
    kind: str
    fault: str
    world: World
    micro_batches: str | None
    threads: int
    paranoid: str | None
    spilling: bool = False

    @property
    def named(self) -> str:
        """The fault as the table has it."""
        return f"{self.fault}, with spills" if self.spilling and self.kind == "disk" else self.fault

    @property
    def lie(self) -> bool:
        """Whether MATCH would be wrong."""
        return self.world.tampered(self.micro_batches)


@dataclass(frozen=True)
class Result:
    """What came of it; `wrong` says in words what may not be, or is "" ."""

    plan: Plan
    outcome: str
    wrong: str


@dataclass
class Campaign:
    """The worlds, and a folder for what the runs write."""

    folder: Path
    seed: int
    truths: list[World] = field(init=False)
    context: ForkServerContext = field(init=False)

    def __post_init__(self) -> None:
        self.truths = worlds(self.folder / "worlds")
        self.context = get_context("forkserver")
        self.context.set_forkserver_preload(["tests.faults.campaign"])

    def plan(self, number: int) -> tuple[Plan, random.Random]:
        """The plan of run `number`, and the generator that goes on from it; a function of seed and number."""
        chance = random.Random(f"{self.seed} {number}")
        kind = chance.choices(list(SHARES), list(SHARES.values()))[0]
        faults = {
            "network": network.KINDS,
            "disk": disk.KINDS,
            "memory": memory.PLACES,
            "artifact": ARTIFACTS,
            "kill": ("SIGKILL",),
        }
        fault = chance.choice(faults[kind])
        honest_world, *lies = self.truths
        lying = fault == "lie" or (kind != "artifact" and chance.random() < 0.25)
        world = chance.choice(lies) if lying else honest_world
        micro_batches = chance.choice([None, None, None, "0", "all"])
        paranoid = "same" if chance.random() < 0.1 else None
        spilling = micro_batches is None and chance.random() < (0.5 if kind == "disk" else 0.2)
        return Plan(number, kind, fault, world, micro_batches, chance.choice([1, 1, 2]), paranoid, spilling), chance

    def run(self, number: int) -> Result:
        """One run, judged."""
        plan, chance = self.plan(number)
        memory.OPENED.clear()
        with tempfile.TemporaryDirectory(dir=self.folder) as name:
            outcome = getattr(self, f"_{plan.kind}")(plan, chance, Path(name))
        return judge(plan, outcome)

    def _network(self, plan: Plan, chance: random.Random, folder: Path) -> str:
        always = chance.random() < 0.3
        with serve(network.faulty(plan.fault, chance, always), plan.world.files()) as server:
            return outcome(plan, server.url, folder / "cache")

    def _disk(self, plan: Plan, chance: random.Random, folder: Path) -> str:
        """On a cache that holds everything, with or without the server behind it; or on none yet."""
        cache, reachable = folder / "cache", chance.random() < 0.5
        cold = plan.fault in ("ENOSPC", "EROFS") and not plan.spilling
        openings = OPENINGS_SPILLING if plan.spilling else OPENINGS
        with serve(honest, plan.world.files()) as server:
            if not cold:
                outcome(plan, server.url, cache)
            options = {} if reachable or cold else {"offline": True}
            with ExitStack() as stack:
                if plan.fault in ("flipped before", "truncated", "emptied", "removed"):
                    disk.damage(plan.fault, cache, chance)
                else:
                    stack.enter_context(disk.failing(plan.fault, cache, chance, openings))
                return outcome(plan, server.url, cache, **options)

    def _memory(self, plan: Plan, chance: random.Random, folder: Path) -> str:
        backend = memory.backend(plan.fault, chance, plan.threads, STEP)
        return outcome(plan, str(plan.world.folder), folder / "cache", backend=backend)

    def _artifact(self, plan: Plan, chance: random.Random, folder: Path) -> str:
        if plan.fault == "lie":
            return outcome(plan, str(plan.world.folder), folder / "cache")
        run = folder / "run"
        shutil.copytree(plan.world.folder, run)
        path = chance.choice(disk.files(run))
        if plan.fault == "flipped bit":
            disk.flip(path, chance)
        elif plan.fault == "cut short":
            path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])
        elif plan.fault == "removed":
            path.unlink()
        else:
            other = chance.choice([file for file in disk.files(run) if file != path])
            first, second = path.read_bytes(), other.read_bytes()
            path.write_bytes(second)
            other.write_bytes(first)
        found = outcome(plan, str(run), folder / "cache")
        if found == Verdict.MATCH.name and plan.micro_batches is None and needed(path.relative_to(run).as_posix()):
            return f"MATCH although {path.name} was damaged"
        return found

    def _kill(self, plan: Plan, chance: random.Random, folder: Path) -> str:
        """Killed at any moment, then once more."""
        cache = folder / "cache"
        with serve(honest, plan.world.files()) as server:
            child = self.context.Process(target=_killed, args=(plan, server.url, cache))
            child.start()
            time.sleep(chance.random() * 0.6)
            child.kill()
            child.join()
            return outcome(plan, server.url, cache)


def needed(path: str) -> bool:
    """Whether a verification of the whole of STEP reads all of a file."""
    folders = (f"states/{STEP:08d}/", f"states/{STEP + 1:08d}/")
    return path in ("run.json", "records.bin", "stream.idx") or path.startswith(folders)


def _killed(plan: Plan, url: str, cache: Path) -> None:
    with quickly():
        outcome(plan, url, cache)


def outcome(plan: Plan, run: str, cache: Path, **options: Any) -> str:
    """The verdict of one verification, or what escaped."""
    try:
        with spilling() if plan.spilling else nullcontext():
            report: Report = verifying.verify(
                run,
                step=STEP,
                micro_batches=plan.micro_batches,
                threads=plan.threads,
                device="cpu",
                paranoid=plan.paranoid,
                cache_dir=cache,
                **options,
            )
    except UsageError as error:
        return f"USAGE: {error.message}"
    except Exception as error:  # noqa: BLE001 - whatever it is, it is an outcome, and a wrong one
        return f"{type(error).__name__}: {error}"
    return report.verdict.name


def judge(plan: Plan, found: str) -> Result:
    """Whether an outcome may be, given the truth and the fault."""
    verdicts = ALLOWED_SPILLING.get(plan.kind) if plan.spilling else None
    allowed = {verdict.name for verdict in verdicts or ALLOWED[plan.kind]}
    if plan.lie:
        allowed = allowed - {Verdict.MATCH.name} | {Verdict.MISMATCH.name}
    if found in allowed:
        return Result(plan, found, "")
    truth = f"a lie ({plan.world.name})" if plan.lie else "honest"
    return Result(plan, found, f"{found} of what is {truth}")


@contextmanager
def spilling() -> Iterator[None]:
    """Verifications in the block take their steps a layer at a time, and spill all they can."""
    chosen = placing.choose_layout
    placing.choose_layout = lambda *_, **__: Layout(SPILLING, Bytes(0, 0, 0))
    try:
        yield
    finally:
        placing.choose_layout = chosen


@contextmanager
def quickly() -> Iterator[None]:
    """The block does not wait between its tries, and remembers the runs that it opens."""
    sleep, opener = SystemClock.sleep, verifying.open_run

    def opened(*arguments: Any, **named: Any) -> Any:
        run = opener(*arguments, **named)
        memory.OPENED.append(run)
        return run

    SystemClock.sleep = lambda self, seconds: time.sleep(min(seconds, 0.001))  # type: ignore[method-assign]
    verifying.open_run = opened
    try:
        yield
    finally:
        SystemClock.sleep, verifying.open_run = sleep, opener  # type: ignore[method-assign]


def run_all(campaign: Campaign, numbers: Iterable[int]) -> list[Result]:
    """Some runs of a campaign; what is wrong is told at once."""
    found = []
    with quickly():
        for number in numbers:
            found.append(campaign.run(number))
            plan, wrong = found[-1].plan, found[-1].wrong
            if wrong:
                what = f"{plan.kind} {plan.named}, {plan.world.name}, {plan.micro_batches or 'whole'}"
                sys.stderr.write(f"WRONG {plan.number}: {what}: {wrong}\n")
    return found


def share(seed: int, numbers: range) -> list[Result]:
    """The runs of one of several processes."""
    with tempfile.TemporaryDirectory() as folder:
        return run_all(Campaign(Path(folder), seed), numbers)


def in_processes(seed: int, numbers: range, workers: int) -> list[Result]:
    """All runs, each in one of so many processes."""
    parts = [numbers[worker::workers] for worker in range(workers)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        found = [result for part in pool.map(share, [seed] * workers, parts) for result in part]
    return sorted(found, key=lambda result: result.plan.number)


def table(results: list[Result], seed: int) -> str:
    """Kinds and faults against outcomes, as a page."""
    names = [verdict.name for verdict in Verdict if any(result.outcome == verdict.name for result in results)]
    wrong = sum(bool(result.wrong) for result in results)
    lines = [HEAD.format(runs=len(results), seed=seed, wrong=wrong)]
    for title, lie in (("Honest", False), ("A lie", True)):
        chosen = [result for result in results if result.plan.lie is lie]
        counts: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
        for result in chosen:
            counts[result.plan.kind, result.plan.named][result.outcome] += 1
        lines += [f"\n## {title}: {len(chosen)} runs\n", f"| kind | fault | runs | {' | '.join(names)} | wrong |"]
        lines.append("|---" * (len(names) + 4) + "|")
        for (kind, fault), found in sorted(counts.items()):
            bad = sum(bool(r.wrong) for r in chosen if (r.plan.kind, r.plan.named) == (kind, fault))
            cells = " | ".join(str(found[name] or "") for name in names)
            lines.append(f"| {kind} | {fault} | {found.total()} | {cells} | {bad} |")
        total = collections.Counter(result.outcome for result in chosen)
        bad = sum(bool(r.wrong) for r in chosen)
        lines.append(f"| all | | {len(chosen)} | {' | '.join(str(total[name] or '') for name in names)} | {bad} |")
    return "\n".join(lines) + "\n"


HEAD = """# Faults

What a verification ends as when something breaks under it. Made by `python -m tests.faults.campaign --runs {runs} --seed {seed} --write docs/faults.md`;
the suite runs a short one.

Each run verifies step 4 of a tiny run that was really trained, or some of its micro-batches, with one random fault: of the network (one answer or all of them), of the
disk under the cache, of the memory (one bit, in an input or the result of any op, in a parameter, the tokens, a record, a leaf, the recipe or the manifest), in a published file, or a SIGKILL
at a random moment and a second try. Some take the step a layer at a time, with parameters, sums and waiting micro-batches in files of the cache folder: faults of the disk meet these as well ("with spills"). In a quarter of the runs what is verified is a lie with which every digest agrees (a changed end state, start state, learning rate, leaf or loss). An oracle knows the truth: MISMATCH
of what is honest is wrong, MATCH of a lie is wrong, and so is a verdict that the fault cannot explain. A flipped bit that ends as MATCH changed nothing that is published: it was rounded away, or lay in what was not used any more.

**{wrong} wrong verdicts in {runs} runs.**"""  # noqa: E501 - a page, not code


def main() -> int:
    """Run a campaign from the command line; the exit code is 0 if nothing was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first run, to repeat one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, default=None, help="the page to write")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the runs")
    asked = parser.parse_args()
    numbers = range(asked.first, asked.first + asked.runs)
    results = in_processes(asked.seed, numbers, asked.workers) if asked.workers > 1 else share(asked.seed, numbers)
    page = table(results, asked.seed)
    if asked.write is not None:
        asked.write.write_text(page, encoding="utf-8")
    sys.stdout.write(page)
    return 3 if any(result.wrong for result in results) else 0


if __name__ == "__main__":
    sys.exit(main())
