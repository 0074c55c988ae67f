"""Compare two states tensor by tensor, by bits: signed zeros and NaN payloads count."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from auditkit.errors import UsageError
from auditkit.formats.state import StateDocument
from auditkit.replay.compare import TensorDifference, compare_tensors
from auditkit.replay.published import StoredState, open_folder, open_state
from auditkit.replay.run import open_run
from auditkit.replay.selection import select
from auditkit.store.progress import Progress


@dataclass(frozen=True)
class Differences:
    """Two states side by side: both roots, fields of the documents that differ, and tensors that differ."""

    left: str
    right: str
    left_root: str
    right_root: str
    fields: tuple[tuple[str, str, str], ...]
    tensors: tuple[TensorDifference, ...]
    compared: int

    @property
    def equal(self) -> bool:
        """Whether nothing differs, not even a step number."""
        return self.left_root == self.right_root

    def to_dict(self) -> dict[str, object]:
        """The comparison as JSON values."""
        return {
            "format": "auditkit/diff/v1",
            "equal": self.equal,
            "left": {"state": self.left, "root": self.left_root},
            "right": {"state": self.right, "root": self.right_root},
            "fields": [{"field": name, "left": a, "right": b} for name, a, b in self.fields],
            "tensors_compared": self.compared,
            "tensors": [difference.to_dict() for difference in self.tensors],
        }


def open_named(
    name: str, *, cache_dir: Path | None = None, offline: bool = False, downloads: Progress | None = None
) -> StoredState:
    """A state by name: a folder with a state.json, or RUN:STEP of a published state of a run (a name, path or URL).

    Raises UsageError, Unavailable, BadArtifact.
    """
    folder = Path(name)
    if folder.is_dir():
        return open_folder(folder)
    run, colon, step = name.rpartition(":")
    if not colon or not (step.isascii() and step.isdigit()):
        raise UsageError(f"{name} is neither a folder nor RUN:STEP", hint="for example: auditkit diff RUN:500 RUN:501")
    opened = open_run(run or None, cache_dir=cache_dir, offline=offline, progress=downloads)
    number = select(step=int(step)).step or 0
    if number not in opened.published:
        steps = sorted(opened.published)
        raise UsageError(f"state {number} of {run} is not published", hint=f"published: {', '.join(map(str, steps))}")
    return open_state(opened, number)


def diff(left: StoredState, right: StoredState, names: tuple[str, str]) -> Differences:
    """Every difference of two states; only tensors whose digests differ are read. Raises Unavailable, BadArtifact."""
    entries = {entry.order: entry for entry in right.document.tensors}
    found = []
    for entry in left.document.tensors:
        other = entries.pop(entry.order, None)
        if other is None:
            found.append(TensorDifference(entry.name, entry.role, note=f"only in {names[0]}"))
        elif (entry.digest, entry.dtype, entry.shape) != (other.digest, other.dtype, other.shape):
            difference = compare_tensors(entry.name, entry.role, left.tensor(entry.order), right.tensor(entry.order))
            found += [difference] if difference else []
    found += [TensorDifference(entry.name, entry.role, note=f"only in {names[1]}") for entry in entries.values()]
    return Differences(
        *names,
        left.document.root(),
        right.document.root(),
        _fields(left.document, right.document),
        tuple(found),
        len(left.document.tensors) + len(entries),
    )


def _fields(left: StateDocument, right: StateDocument) -> tuple[tuple[str, str, str], ...]:
    names = ("step", "sequence", "seed", "recipe")
    pairs = ((name, str(getattr(left, name)), str(getattr(right, name))) for name in names)
    return tuple((name, a, b) for name, a, b in pairs if a != b)
