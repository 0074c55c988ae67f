"""Which files and byte ranges a verification reads: pairs of states, records, tokens, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from auditkit.formats.digest import Digest
from auditkit.formats.run import LEAVES, RECORDS, STATE_DOCUMENT, STATE_INDEX, STREAM, STREAM_INDEX
from auditkit.formats.state import ShardEntry
from auditkit.replay.parameters import parameter_frames
from auditkit.replay.plan import Interval
from auditkit.replay.published import state_index
from auditkit.replay.run import Run
from auditkit.replay.steps import StoredSteps

PARAMETER = "parameter "  # before its name, as what a range is for


@dataclass(frozen=True)
class FileNeed:
    """A whole file: path within the run, size in bytes, digest, and what it is for."""

    path: str
    size: int
    digest: Digest
    purpose: str


@dataclass(frozen=True)
class RangeNeed:
    """`length` bytes at `offset` of a file: the tokens or the leaves of one step, or a parameter in its `shard`."""

    path: str
    offset: int
    length: int
    step: int
    purpose: str
    shard: ShardEntry | None = None


@dataclass(frozen=True)
class Needs:
    """Everything that a verification reads besides run.json."""

    files: tuple[FileNeed, ...]
    ranges: tuple[RangeNeed, ...]

    @property
    def total(self) -> int:
        """Bytes altogether."""
        return sum(need.size for need in self.files) + sum(need.length for need in self.ranges)

    def missing(self, run: Run) -> int:
        """Bytes that are neither in the run's folder nor in the cache."""
        files = run.store.bytes_needed((need.path, need.size, need.digest) for need in self.files)
        return files + sum(need.length for need in self.ranges if not _is_here(run, need))


def needs(run: Run, plan: Iterable[Interval], *, records: bool = True) -> Needs:
    """What the intervals of a plan need; `records` tells whether records.bin is read, or the signed log instead.

    Reads two small files of each state and the stream index, since they say how large the rest is.
    """
    intervals = tuple(plan)
    files = []
    for step in sorted({step for interval in intervals for step in _states(run, interval)}):
        files += _state(run, step)
    ids = {segment.data.ids.path: None for segment in run.timeline.segments if segment.data.ids is not None}
    if ids:  # leaves are in the records, tokens in the ids: small files, read whole
        return Needs((_whole(run, RECORDS, "records"), *(_whole(run, path, "token ids") for path in ids), *files), ())
    steps = sorted(step for interval in intervals for step in interval.steps)
    chain = (_whole(run, RECORDS, "records"),) if records else ()
    return Needs((*chain, _whole(run, STREAM_INDEX, "token index"), *files), _ranges(run, steps))


def part_needs(run: Run, step: int, *, records: bool = True) -> Needs:
    """What an audit of some micro-batches of one step needs, whose start state is published: of the state the
    parameters alone, of step 0 nothing, for they follow from the seed.
    """
    whole = needs(run, (Interval(step, step, ()),), records=records)
    shards = {shard.path: shard for shard in state_index(run, step).files} if step else {}
    folder = f"{run.published[step].path}/"
    files = [need for need in whole.files if not need.path.startswith(folder)]
    if not step:
        return Needs(tuple(files), _ranges_of_step(run, step))
    files += [need for need in whole.files if need.path.startswith(folder) and need.path[len(folder) :] not in shards]
    frames = parameter_frames(state_index(run, step))
    params = [
        RangeNeed(f"{folder}{shard.path}", frame.offset, frame.length, step, f"{PARAMETER}{frame.name}", shard)
        for shard, frame in frames
    ]
    return Needs(tuple(files), (*params, *_ranges_of_step(run, step)))


def reached_needs(run: Run, start: int, step: int, *, records: bool = True) -> Needs:
    """What an audit of some micro-batches of one step needs that is reached by replaying from state `start`."""
    way = needs(run, (Interval(start, step, ()),), records=records)
    return Needs(way.files, (*way.ranges, *_ranges_of_step(run, step)))


def _ranges_of_step(run: Run, step: int) -> tuple[RangeNeed, ...]:
    return _ranges(run, (step,)) if isinstance(run.steps, StoredSteps) else ()


def _ranges(run: Run, steps: Iterable[int]) -> tuple[RangeNeed, ...]:
    assert isinstance(run.steps, StoredSteps)
    frames = run.steps.index.rows
    ranges = []
    for step in steps:
        ranges.append(RangeNeed(STREAM, frames[step].offset, frames[step].length, step, f"tokens of step {step}"))
        offset, length = run.timeline.leaf_span(step)
        ranges.append(RangeNeed(LEAVES, offset, length, step, f"micro-batch leaves of step {step}"))
    return tuple(ranges)


def _states(run: Run, interval: Interval) -> set[int]:
    """The published states that an interval reads: none lies within it, or the replay would begin there."""
    return {interval.start} | ({interval.stop} & run.published.keys())


def _state(run: Run, step: int) -> list[FileNeed]:
    folder = run.published[step].path
    found = [_whole(run, f"{folder}/{name}", f"state {step}") for name in (STATE_DOCUMENT, STATE_INDEX)]
    for shard in state_index(run, step).files:
        found.append(FileNeed(f"{folder}/{shard.path}", shard.size, shard.digest, f"state {step}"))
    return found


def _whole(run: Run, path: str, purpose: str) -> FileNeed:
    artifact = run.manifest.artifact(path)
    return FileNeed(path, artifact.size, artifact.digest, purpose)


def _is_here(run: Run, need: RangeNeed) -> bool:
    artifact = need.shard or run.manifest.artifact(need.path)
    return run.store.is_range_cached(
        need.path, need.offset, need.length, size=artifact.size, file_digest=artifact.digest
    )
