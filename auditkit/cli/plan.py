"""`auditkit plan`: what a verification would cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from auditkit.cli import options
from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome, to_json
from auditkit.verdict import Verdict

if TYPE_CHECKING:
    from auditkit.replay.estimate import Estimate


def plan(
    step: options.Step = None,
    steps: options.Steps = None,
    random: options.Random = None,
    seed: options.Seed = None,
    part: options.Part = None,
    micro_batch: options.MicroBatch = None,
    replay_to: options.ReplayTo = False,
    run: options.Run = None,
    artifacts: options.Artifacts = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    memory: options.Memory = None,
    offline: options.Offline = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
) -> Outcome:
    """Say what a verification would fetch, need and take on this machine, before anything is spent.

    Reads the manifest and the indexes, and times a small step. Exit code 6 where memory or disk are too small.
    """
    from auditkit.audit.signed_log import SignedLog
    from auditkit.cli.progress import Board
    from auditkit.replay import arguments
    from auditkit.replay.backend import choose
    from auditkit.replay.estimate import estimate
    from auditkit.replay.part_estimate import estimate_part
    from auditkit.replay.part_run import check_asked
    from auditkit.replay.run import open_run
    from auditkit.replay.selection import select

    limit = arguments.memory(memory)
    selection = select(step=step, steps=steps, random=random, seed=seed, part=part)
    check_asked(micro_batch or None, step, replay_to)
    backend = choose(device, threads)
    with Board() as board:
        opened = open_run(run, artifacts=artifacts, cache_dir=cache_dir, offline=offline, progress=board.handle())
        with opened:
            if micro_batch and step is not None:
                selection.resolve(opened.size, opened.published)
                found = estimate_part(opened, step, micro_batch, backend, SignedLog(), limit, replay_to=replay_to)
            else:
                found = estimate(opened, selection, backend, SignedLog(), limit)
    return Outcome(found.verdict, to_json(found.to_dict()) if json else "\n".join(_lines(found)))


def _lines(found: Estimate) -> Iterator[str]:
    from auditkit.cli.progress import duration, size

    yield f"run       {printable(found.run)}, {found.selection}"
    for interval in found.intervals if found.chosen is None or found.steps > 1 else ():
        wanted = ", ".join(map(str, interval.wanted[:8])) + (", ..." if len(interval.wanted) > 8 else "")
        yield f"replay    steps {interval.start} to {interval.stop - 1} from state {interval.start}, for {wanted}"
    yield f"fetch     {size(found.fetch_bytes)} of {size(found.total_bytes)}; the rest is here"
    yield f"memory    about {size(found.memory)}" + _of(found.total_memory)
    for name, needed in found.parts:
        if needed:
            yield f"          {size(needed)} {name}"
    if found.host_memory:
        yield f"          and {size(found.host_memory)} of main memory"
    yield f"plan      {found.plan}"
    if found.free_disk is not None or found.spilled:
        spilled = f", {size(found.spilled)} of them only for a while" if found.spilled else ""
        yield f"disk      {size(found.fetch_bytes + found.spilled)}{spilled}" + _of(found.free_disk)
    threads = "1 thread" if found.threads == 1 else f"{found.threads} threads"
    step = duration(found.speed.step)
    yield f"time      about {duration(found.seconds)}, {step} a step on {threads}, without downloads"
    if found.verdict is Verdict.UNSUPPORTED:
        yield f"UNSUPPORTED: {found.refused or 'not enough disk here'}"
        yield f"  hint: {found.hint or '--cache-dir names another disk'}"


def _of(available: int | None) -> str:
    from auditkit.cli.progress import size

    return f" of {size(available)}" if available is not None else ""
