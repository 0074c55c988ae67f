"""What a verification would cost, before anything is spent: bytes to fetch, disk, memory and time on this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from auditkit.errors import Unsupported
from auditkit.formats.micro_batches import MicroBatches
from auditkit.formats.recipe import Recipe
from auditkit.replay import machine
from auditkit.replay.backend import Backend, CudaBackend
from auditkit.replay.chosen import Asked
from auditkit.replay.cost import Speed, calibrate
from auditkit.replay.layout import Layout, Limits, choose_layout, leanest
from auditkit.replay.log_check import LogCheck
from auditkit.replay.memory import part_bytes
from auditkit.replay.needs import needs, part_needs
from auditkit.replay.part_run import PLAN, of_step, require_room
from auditkit.replay.placing import limits, recipes_of
from auditkit.replay.plan import Interval, intervals
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
    recipes, allowed = recipes_of(run, plan), limits(run, backend, memory)
    layout, refused = _layout(list(recipes), allowed, backend)
    speeds = {recipe: calibrate(recipe, backend).under(layout, recipe.batch.micro_batches) for recipe in recipes}
    seconds = sum(speeds[recipe].step * steps for recipe, steps in recipes.items())
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
        speed=max(speeds.values(), key=lambda speed: speed.step),
        seconds=seconds + unpack,
        threads=backend.threads,
    )


def _layout(recipes: list[Recipe], allowed: Limits, backend: Backend) -> tuple[Layout, Unsupported | None]:
    """The plan, or the leanest one and why it cannot be followed here."""
    cuda = isinstance(backend, CudaBackend)
    try:
        return choose_layout(recipes, allowed, cuda=cuda, threads=backend.threads), None
    except Unsupported as error:
        return leanest(recipes, cuda), error


def estimate_part(
    run: Run,
    step: int,
    asked: Asked,
    backend: Backend,
    log: LogCheck | None = None,
    memory: int | None = None,
    *,
    replay_to: bool = False,
) -> Estimate:
    """The same of an audit of some micro-batches of one step. UsageError as of that audit."""
    chosen = of_step(run, step, asked, replay_to)
    selection = Selection(step=step)
    if step not in run.published:
        return replace(estimate(run, selection, backend, log, memory), chosen=chosen)
    plan, recipe = (Interval(step, step + 1, (step,)),), run.segment(step).recipe
    needed = part_needs(run, step, records=log is None or log.needed(run, plan) is None)
    need = part_bytes(recipe, backend.threads, len(chosen), isinstance(backend, CudaBackend))
    refused: Unsupported | None = None
    try:
        require_room(run, step, chosen, backend, memory)
    except Unsupported as error:
        refused = error
    speed = calibrate(recipe, backend)
    rounds = -(-len(chosen) // backend.threads) / -(-chosen.count // backend.threads)
    local = isinstance(run.store.source.home, Folder)
    return Estimate(
        run=run.name,
        selection=f"{selection.describe()}, {chosen.describe()}",
        intervals=plan,
        total_bytes=needed.total,
        fetch_bytes=needed.missing(run),
        free_disk=None if local else machine.free_disk(run.store.cache.folder),
        memory=need.memory,
        total_memory=limits(run, backend, memory).memory,
        plan=PLAN,
        parts=need.parts,
        host_memory=need.host,
        spilled=0,
        refused=refused.message if refused else "",
        hint=refused.hint if refused else "",
        speed=speed,
        seconds=speed.gradients * rounds + needed.total / UNPACK_BYTES_PER_SECOND,
        threads=backend.threads,
        chosen=chosen,
    )
