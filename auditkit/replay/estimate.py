"""What a verification would cost, before anything is spent: bytes to fetch, disk, memory and time on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from auditkit.errors import Unsupported
from auditkit.formats.micro_batches import MicroBatches
from auditkit.replay import machine
from auditkit.replay.backend import Backend, CudaBackend
from auditkit.replay.cost import Speed, calibrate
from auditkit.replay.layout import Layout, Limits, choose_layout, leanest
from auditkit.replay.log_check import LogCheck
from auditkit.replay.needs import needs
from auditkit.replay.placing import limits, recipes_of
from auditkit.replay.plan import Interval, following, intervals
from auditkit.replay.run import Run
from auditkit.replay.selection import Selection
from auditkit.store import Folder
from auditkit.verdict import Verdict

UNPACK_BYTES_PER_SECOND = 3e8  # of state, decompressed and hashed; docs/benchmarks.md


@dataclass(frozen=True)
class Estimate:
    """The cost of a verification. Sizes in bytes, times in seconds; None where the system does not say."""

    run: str
    selection: str
    intervals: tuple[Interval, ...]
    total_bytes: int
    fetch_bytes: int
    free_disk: int | None
    memory: int
    total_memory: int | None
    plan: str
    parts: tuple[tuple[str, int], ...]
    host_memory: int
    spilled: int
    refused: str
    hint: str
    speed: Speed
    seconds: float
    threads: int
    chosen: MicroBatches | None = None  # of the one step, if only these are audited

    @property
    def steps(self) -> int:
        """Steps that are replayed, those on the way included."""
        return sum(len(interval.steps) for interval in self.intervals)

    @property
    def verdict(self) -> Verdict:
        """UNSUPPORTED where memory or disk are too small, else MATCH, which here means that it can be done."""
        full = self.free_disk is not None and self.fetch_bytes + self.spilled > self.free_disk
        return Verdict.UNSUPPORTED if self.refused or full else Verdict.MATCH

    def to_dict(self) -> dict[str, object]:
        """The estimate as JSON values."""
        return {
            "format": "auditkit/plan/v1",
            "verdict": self.verdict.name,
            "code": self.verdict.code,
            "run": self.run,
            "selection": self.selection,
            "micro_batches": self.chosen.text if self.chosen else "",
            "intervals": [{"start": i.start, "stop": i.stop, "wanted": list(i.wanted)} for i in self.intervals],
            "steps_replayed": self.steps,
            "bytes": self.total_bytes,
            "bytes_to_fetch": self.fetch_bytes,
            "free_disk": self.free_disk,
            "memory": self.memory,
            "total_memory": self.total_memory,
            "plan": self.plan,
            "memory_parts": {name: size for name, size in self.parts if size},
            "host_memory": self.host_memory,
            "spilled": self.spilled,
            "message": self.refused,
            "hint": self.hint,
            "threads": self.threads,
            "seconds_a_step": round(self.speed.step, 3),
            "seconds": round(self.seconds, 3),
        }


def estimate(
    run: Run, selection: Selection, backend: Backend, log: LogCheck | None = None, memory: int | None = None
) -> Estimate:
    """Plan a verification and say what it costs; reads the manifest, the indexes and nothing else.

    `log` tells whether records come from a signed log, which is small and not counted, or from records.bin. `memory`
    is how many bytes may be used where the ops compute, by default most of what is free.
    """
    plan = intervals(selection.resolve(run.size, run.published), run.published)
    needed = needs(run, plan, records=log is None or log.needed(run, plan) is None)
    allowed = limits(run, backend, memory)
    layout, refused = layout_here(run, plan, allowed, backend)
    speed, seconds = time_of(run, plan, layout, backend)
    # every file of a state is read once, unpacked and hashed
    unpack = needed.total / UNPACK_BYTES_PER_SECOND
    local = isinstance(run.store.source.home, Folder)
    return Estimate(
        run=run.name,
        selection=selection.describe(),
        intervals=plan,
        total_bytes=needed.total,
        fetch_bytes=needed.missing(run),
        free_disk=None if local else machine.free_disk(run.store.cache.folder),
        memory=layout.need.memory,
        total_memory=allowed.memory,
        plan=layout.plan.describe(),
        parts=layout.need.parts,
        host_memory=layout.need.host,
        spilled=layout.need.disk,
        refused=refused.message if refused else "",
        hint=refused.hint if refused else "",
        speed=speed,
        seconds=seconds + unpack,
        threads=backend.threads,
    )


def layout_here(
    run: Run, plan: Sequence[Interval], allowed: Limits, backend: Backend
) -> tuple[Layout, Unsupported | None]:
    """How steps are replayed here; or the leanest way to do so, and why not even that can be done."""
    cuda, recipes, more = isinstance(backend, CudaBackend), list(recipes_of(run, plan)), following(plan)
    try:
        return choose_layout(recipes, allowed, cuda=cuda, threads=backend.threads, following=more), None
    except Unsupported as error:
        return leanest(recipes, cuda, following=more), error


def time_of(run: Run, plan: Sequence[Interval], layout: Layout, backend: Backend) -> tuple[Speed, float]:
    """The speed of the slowest steps of a replay, by a short calibration, and the seconds of all of them."""
    recipes = recipes_of(run, plan)
    speeds = {recipe: calibrate(recipe, backend).under(layout, recipe.batch.micro_batches) for recipe in recipes}
    seconds = sum(speeds[recipe].step * steps for recipe, steps in recipes.items())
    return max(speeds.values(), key=lambda speed: speed.step), seconds
