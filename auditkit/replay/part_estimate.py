"""What an audit of some micro-batches would cost, the replay up to its step included where there is one."""

from __future__ import annotations

from auditkit.errors import Unsupported
from auditkit.formats.micro_batches import MicroBatches
from auditkit.replay import machine
from auditkit.replay.backend import Backend, CudaBackend
from auditkit.replay.chosen import Asked
from auditkit.replay.cost import calibrate
from auditkit.replay.estimate import UNPACK_BYTES_PER_SECOND, Estimate, layout_here, time_of
from auditkit.replay.log_check import LogCheck
from auditkit.replay.memory import Bytes, part_bytes
from auditkit.replay.needs import part_needs, reached_needs
from auditkit.replay.part_run import PLAN, of_step, require_room, way_to
from auditkit.replay.placing import limits
from auditkit.replay.plan import intervals
from auditkit.replay.run import Run
from auditkit.replay.selection import Selection
from auditkit.store import Folder

NOTHING = Bytes(0, 0, 0)  # what no steps on the way need


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
    """As `estimate.estimate`, of some micro-batches of one step. UsageError as of that audit."""
    chosen = of_step(run, step, asked, replay_to)
    (interval,) = intervals((step,), run.published)
    records, recipe = log is None or log.needed(run, (interval,)) is None, run.segment(step).recipe
    if interval.start == step:
        needed, plan, before, refused, seconds = part_needs(run, step, records=records), PLAN, NOTHING, None, 0.0
    else:
        way = (way_to(interval),)
        needed = reached_needs(run, interval.start, step, records=records)
        layout, refused = layout_here(run, way, limits(run, backend, memory), backend)
        plan, before = f"up to step {step} {layout.plan.describe()}; then {PLAN}", layout.need
        _, seconds = time_of(run, way, layout, backend)
    need = part_bytes(recipe, backend.threads, len(chosen), isinstance(backend, CudaBackend))
    largest = max(need, before, key=lambda bytes_: bytes_.memory)
    refused = _refusal(run, step, chosen, backend, memory) or refused
    speed = calibrate(recipe, backend)
    rounds = -(-len(chosen) // backend.threads) / -(-chosen.count // backend.threads)
    local = isinstance(run.store.source.home, Folder)
    return Estimate(
        run=run.name,
        selection=f"{Selection(step=step).describe()}, {chosen.describe()}",
        intervals=(interval,),
        total_bytes=needed.total,
        fetch_bytes=needed.missing(run),
        free_disk=None if local else machine.free_disk(run.store.cache.folder),
        memory=largest.memory,
        total_memory=limits(run, backend, memory).memory,
        plan=plan,
        parts=largest.parts,
        host_memory=max(need.host, before.host),
        spilled=before.disk,
        refused=refused.message if refused else "",
        hint=refused.hint if refused else "",
        speed=speed,
        seconds=seconds + speed.gradients * rounds + needed.total / UNPACK_BYTES_PER_SECOND,
        threads=backend.threads,
        chosen=chosen,
    )


def _refusal(run: Run, step: int, asked: MicroBatches, backend: Backend, memory: int | None) -> Unsupported | None:
    """Why this machine has no room for the micro-batches, if it has none."""
    try:
        require_room(run, step, asked, backend, memory)
    except Unsupported as error:
        return error
    return None
