"""The runs that a registry serves: their records, checked against the manifest's log root."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from auditkit.errors import BadArtifact, UsageError
from auditkit.formats import merkle
from auditkit.formats.chain import log_entries
from auditkit.formats.record import StepRecord
from auditkit.formats.run import RunManifest
from auditkit.replay.run import open_run
from auditkit.store import Progress
from auditkit.trust.keys import PublicKey


class Numbering(Protocol):
    """Gives a run its number in the database."""

    def add_run(self, run_id: bytes, name: str, size: int) -> int: ...


class KnownRun:
    """One run. Its records lie in a temporary file without a name, so that a step takes 8 bytes of memory."""

    def __init__(self, manifest: RunManifest, records: Iterable[StepRecord]) -> None:
        self.name, self.run_id, self.manifest = manifest.name, manifest.run_id(), manifest.encode()
        self.publisher = PublicKey(manifest.publisher.public) if manifest.publisher else None
        self.number = -1  # in the database, once `Runs.add` has given it one
        self._file = tempfile.TemporaryFile()
        self._lock = threading.Lock()  # a file has one position
        ends, tree = [0], merkle.Frontier()
        for entry in log_entries(records, manifest.timeline()):
            data = entry.encode()
            tree.append(merkle.leaf_hash(data))
            if isinstance(entry, StepRecord):  # nobody attests a segment
                ends.append(ends[-1] + self._file.write(data))
        if tree.root().hex() != manifest.log.root:
            raise BadArtifact(f"run {self.name}: the records are not those under the manifest's log root")
        self._ends: NDArray[np.int64] = np.array(ends, np.int64)

    @property
    def size(self) -> int:
        """Number of steps."""
        return len(self._ends) - 1

    def record(self, step: int) -> bytes:
        """The canonical record of a step; IndexError outside the run."""
        if not 0 <= step < self.size:
            raise IndexError(step)
        first, stop = int(self._ends[step]), int(self._ends[step + 1])
        with self._lock:
            self._file.seek(first)
            return self._file.read(stop - first)

    def close(self) -> None:
        """Drop the temporary file."""
        self._file.close()


def load(run: str, *, cache_dir: Path | None = None, progress: Progress | None = None) -> KnownRun:
    """The run named `run` (name, path or URL). Unavailable, BadArtifact, UsageError as of `open_run`."""
    with open_run(run, cache_dir=cache_dir, progress=progress) as opened:
        return KnownRun(opened.manifest, opened.records)


class Runs:
    """All runs of a registry, by run id."""

    def __init__(self, runs: Iterable[KnownRun] = ()) -> None:
        self._runs: dict[str, KnownRun] = {}
        for run in runs:
            if run.run_id in self._runs:
                raise UsageError(f"run {run.name} is given twice")
            self._runs[run.run_id] = run

    def number(self, database: Numbering) -> None:
        """Give every run its number in the database."""
        for run in self._runs.values():
            run.number = database.add_run(bytes.fromhex(run.run_id), run.name, run.size)

    def get(self, run_id: str) -> KnownRun | None:
        """The run of that id, if it is served here."""
        return self._runs.get(run_id)

    def all(self) -> list[KnownRun]:
        """In the order in which they were given."""
        return list(self._runs.values())

    def close(self) -> None:
        """Drop every temporary file."""
        for run in self._runs.values():
            run.close()
