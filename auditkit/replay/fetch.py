"""Fetch what a verification needs and nothing else, so that it can be done later without a network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from auditkit.formats.run import STREAM
from auditkit.replay.chosen import Asked
from auditkit.replay.log_check import LogCheck
from auditkit.replay.needs import PARAMETER, Needs, RangeNeed, needs, part_needs
from auditkit.replay.part_run import of_step
from auditkit.replay.plan import intervals
from auditkit.replay.published import open_state
from auditkit.replay.run import Run, open_run
from auditkit.replay.selection import Selection
from auditkit.store.progress import Progress, Silent


@dataclass(frozen=True)
class Fetched:
    """What is at hand now: every file's place on this machine, and how many bytes were not here before."""

    run: str
    selection: str
    steps: tuple[int, ...]
    needs: Needs
    places: tuple[Path, ...]
    fetched: int
    log: str = ""  # what the check of the signed log says, for a run that has one

    def to_dict(self) -> dict[str, object]:
        """The result as JSON values."""
        files = [
            {"path": need.path, "size": need.size, "digest": need.digest, "place": str(place)}
            for need, place in zip(self.needs.files, self.places, strict=True)
        ]
        ranges = [{"path": r.path, "offset": r.offset, "length": r.length, "step": r.step} for r in self.needs.ranges]
        return {
            "format": "auditkit/fetch/v1",
            "run": self.run,
            "selection": self.selection,
            "bytes": self.needs.total,
            "fetched": self.fetched,
            "files": files,
            "ranges": ranges,
            "log": self.log,
        }


def fetch(
    run: str | None,
    selection: Selection,
    *,
    artifacts: str | None = None,
    cache_dir: Path | None = None,
    offline: bool = False,
    downloads: Progress | None = None,
    log: LogCheck | None = None,
    micro_batches: Asked | None = None,
) -> Fetched:
    """Bring the pairs of states, the records and the token frames of a selection to this machine, each checked.

    `log` judges the signed log of a run that has one, and its files are brought as well. With `micro_batches`, what an
    audit of these of the one step needs: of its state the parameters alone.

    A file in the run's own folder stays where it is. Raises UsageError, Unavailable, BadArtifact, Unsupported.
    """
    opened = open_run(run, artifacts=artifacts, cache_dir=cache_dir, offline=offline, progress=downloads)
    with opened:
        steps = selection.resolve(opened.size, opened.published)
        selection.tell(downloads or Silent())
        plan = intervals(steps, opened.published)
        taken, detail = log.needed(opened, plan) if log else None, ""
        if log:
            found = log.check(opened, taken)
            opened.take(found.records)
            detail = found.detail
        if micro_batches is None:
            needed = needs(opened, plan, records=taken is None)
        else:
            of_step(opened, steps[0], micro_batches, False)
            needed = part_needs(opened, steps[0], records=taken is None)
        missing = needed.missing(opened)
        places = tuple(opened.store.file(need.path, need.size, need.digest) for need in needed.files)
        for need in needed.ranges:
            _range(opened, need)
        return Fetched(opened.name, selection.describe(), steps, needed, places, missing, detail)


def _range(run: Run, need: RangeNeed) -> None:
    # through the readers of the verification itself, so that the bytes are checked and lie where it will look
    if need.shard is not None:
        open_state(run, need.step).tensor(("param", need.purpose.removeprefix(PARAMETER)))
    elif need.path == STREAM:
        run.tokens(need.step)
    else:
        run.leaves(need.step)
