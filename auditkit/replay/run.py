"""A published run: its manifest, its chain of records, its tokens, each read and checked when first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from auditkit.errors import Incomplete, MachineFault, UsageError
from auditkit.formats.chain import chain, log_entries
from auditkit.formats.digest import Digest, content_digest
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import Recipe
from auditkit.formats.record import StepRecord, log_root
from auditkit.formats.run import RunManifest
from auditkit.formats.timeline import Segment
from auditkit.replay.drawn import check_end
from auditkit.replay.machine import HINT
from auditkit.replay.steps import DerivedSteps, Steps, StoredSteps
from auditkit.store import Clock, Progress, Silent, Store, SystemClock, locate
from auditkit.store.locate import known

DEFAULT_RUNS = ("open-nano", "sotu-tiny")  # the first that is bundled


def default_run() -> str:
    """The name of the run that a command without --run means. UsageError: no run is bundled with this installation."""
    names = known()
    if not names:
        raise UsageError("no run is bundled with this installation", hint="name one: --run PATH or --run URL")
    return next((name for name in DEFAULT_RUNS if name in names), names[0])


def open_run(
    run: str | None = None,
    *,
    artifacts: str | None = None,
    cache_dir: Path | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    clock: Clock | None = None,
) -> Run:
    """The run named `run` (a bundled run's name, a path or a URL), its manifest read and parsed.

    Raises UsageError, Unavailable, BadArtifact. Close it, or use it as a context.
    """
    source = locate(run if run is not None else default_run(), artifacts)
    told = progress or Silent()
    store = Store(source, cache_dir=cache_dir, offline=offline, progress=told, clock=clock or SystemClock())
    return Run(store, store.manifest(), told)


class Run:
    """One run. Attributes are read lazily; each may raise Unavailable or BadArtifact naming the file at fault."""

    def __init__(self, store: Store, manifest: bytes, progress: Progress) -> None:
        self.store = store
        self._bytes = manifest
        self.progress = progress  # of downloads and unpacking
        self.manifest = RunManifest.parse(manifest)
        self.timeline = self.manifest.timeline()
        for segment in self.timeline.segments:
            check_end(segment.data, segment.sequence_at(segment.stop))
        self.manifest_digest = self.manifest.digest()
        self.run_id = self.manifest.run_id()
        store.use_mirrors(self.manifest.mirrors)
        self.published = {state.step: state for state in self.manifest.states}
        self.taken: Mapping[int, StepRecord] | None
        self.take(None)  # where the signed log gave records, these and not the file

    def __enter__(self) -> Run:
        return self

    def afresh(self) -> Run:
        """The same run, parsed again from the bytes of its manifest, everything else read again when it is needed.

        Whoever closes this one closes both. MachineFault: the manifest, or a record that the signed log gave, changed
        in memory.
        """
        if content_digest(self._bytes) != self.manifest_digest:
            raise MachineFault("the manifest changed in memory while it was in use", hint=HINT)
        fresh = Run(self.store, self._bytes, self.progress)
        if self.taken is not None:
            for step, record in self.taken.items():
                if record.digest() != self._taken[step]:
                    raise MachineFault(f"record {step} changed in memory while it was in use", hint=HINT)
            fresh.take(self.taken)
        elif fresh.log_root != fresh.manifest.log.root:
            raise MachineFault("the records, read again, are not those of the manifest", hint=HINT)
        return fresh

    def take(self, records: Mapping[int, StepRecord] | None) -> None:
        """Use these records of the signed log, which were checked, and not the file; None: the file."""
        self.taken = records
        self._taken = {step: record.digest() for step, record in (records or {}).items()}

    def __exit__(self, *_: object) -> None:
        self.store.close()

    @property
    def name(self) -> str:
        """The run's own name."""
        return self.manifest.name

    @property
    def recipe(self) -> Recipe:
        """Everything besides the data that decides the run's bits; of a run of several segments, that of the first.

        They have the model's sizes, the initialisation and the version of the numerics in common.
        """
        return self.manifest.recipe

    def segment(self, step: int) -> Segment:
        """Recipe, data and place in the data of a step."""
        return self.timeline.segment(step)

    @property
    def size(self) -> int:
        """Number of steps."""
        return self.timeline.steps

    def file(self, path: str) -> Path:
        """A whole file of the run on this machine, its size and digest checked."""
        artifact = self.manifest.artifact(path)
        return self.store.file(path, artifact.size, artifact.digest)

    def read(self, path: str) -> bytes:
        """The bytes of a small file, checked."""
        artifact = self.manifest.artifact(path)
        return self.store.read(path, artifact.size, artifact.digest)

    def range(self, path: str, offset: int, length: int, check: Callable[[bytes], object]) -> bytes:
        """Bytes of a file that `check` accepts; it raises BadArtifact, and the next place is tried."""
        artifact = self.manifest.artifact(path)
        return self.store.range(path, offset, length, size=artifact.size, file_digest=artifact.digest, check=check)

    @cached_property
    def steps(self) -> Steps:
        """What is published of each step, in the layout of this run's files."""
        return StoredSteps(self) if self.manifest.data.ids is None else DerivedSteps(self)

    @cached_property
    def records(self) -> list[StepRecord]:
        """The records of all steps. BadArtifact: not as many as the log has, or the files they follow from are bad."""
        return chain(self.steps.rows(), self.timeline, self.run_id)

    def record(self, step: int) -> StepRecord:
        """The record of one step. Incomplete: only some records were read, and this is not among them."""
        if self.taken is None:
            return self.records[step]
        if step not in self.taken:
            raise Incomplete(f"record {step} was not read")
        return self.taken[step]

    @property
    def state0(self) -> Digest:
        """The root of state 0, which every manifest lists."""
        return self.manifest.states[0].root

    @cached_property
    def log_root(self) -> Digest:
        """The RFC 6962 root over all records, those of segments included."""
        return log_root(log_entries(self.records, self.timeline))

    def state_before(self, step: int) -> Digest:
        """The root of the state that the step before left, as the records say; `step` may be the number of steps.

        Where a segment begins with `step`, its first record begins from the same tensors under another root.
        """
        return self.state0 if step == 0 else self.record(step - 1).state_after

    def tokens(self, step: int) -> NDArray[Any]:
        """The tokens of one step, (sequences, context_length + 1), ids below the vocabulary size."""
        return self.steps.tokens(step)

    def leaves(self, step: int) -> tuple[MicroBatchLeaf, ...]:
        """The published micro-batch leaves of one step. BadArtifact: not those under the record's root."""
        return self.steps.leaves(step)
