"""Write the run folder that others verify: all of it, checked once more, or nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from auditkit.errors import BadArtifact, Incomplete, UsageError
from auditkit.formats.digest import Digest, Hasher
from auditkit.formats.paths import check_segment
from auditkit.formats.recipe import Recipe
from auditkit.formats.record import RecordRow, expand, log_root
from auditkit.formats.run import (
    STATE_DOCUMENT,
    STATE_INDEX,
    Artifact,
    Log,
    PublishedState,
    RunManifest,
    run_id,
    state_path,
)
from trainer import lock, prepared
from trainer.batches import Batches
from trainer.disk import TEMPORARY, explain, sync_file, sync_folder
from trainer.log import METRICS, Lengths, read_rows
from trainer.prepared import Prepared
from trainer.recheck import check_states, check_steps, check_text
from trainer.states import StoredState, complete_steps
from trainer.work import Settings, Work

MANIFEST = "run.json"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class PublishOptions:
    """Name and mirrors of the published run; `partial` allows an unfinished one, up to its last complete state."""

    name: str
    mirrors: tuple[str, ...]
    partial: bool


def publish(folder: Path, out: Path, options: PublishOptions) -> str:
    """Write the run of work folder `folder` to `out` and return a summary for people.

    Raises `UsageError` if `out` exists, `Incomplete` if the run or a state is, `BadArtifact` if a check fails.
    """
    _check_name(options.name)
    if out.exists() or out.is_symlink():
        raise UsageError(f"{out}: exists already", hint="a published run is never changed; choose another folder")
    with lock.hold(folder):
        work = Work(folder)
        recipe, data, settings = work.load_recipe(), prepared.load(work), work.load_settings()
        last = _last_step(work, settings, partial=options.partial)
        steps = _states_to_publish(work, settings, last)
        rows = read_rows(folder, last)
        # 1. text  2. leaves and tokens of each record  3. states, which ties them to the records
        check_text(work)
        check_steps(work, recipe, rows, Batches.open(work, data, recipe.batch.sequences))
        roots = check_states(work, recipe, rows, steps)
        with _new_folder(out) as temporary:
            artifacts = _copy(work, temporary, recipe, last, steps)
            manifest = _manifest(options, recipe, data, rows, roots, artifacts)
            _write(temporary / MANIFEST, manifest.encode())
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    return f"run    {manifest.run_id()}\nsteps  {last}\nstates {' '.join(map(str, steps))}\nbytes  {size}"


def _check_name(name: str) -> None:
    try:
        check_segment(name, "--name")
    except BadArtifact as error:
        raise UsageError(error.message) from error


def _last_step(work: Work, settings: Settings, *, partial: bool) -> int:
    done = max(complete_steps(work.states), default=0)
    if done == 0:
        raise Incomplete(f"{work.folder}: no step is complete", hint=f"python -m trainer resume {work.folder}")
    if done < settings.steps and not partial:
        raise Incomplete(
            f"{work.folder}: the last complete state is that of step {done} of {settings.steps}",
            hint=f"python -m trainer resume {work.folder}, or publish what is there with --partial",
        )
    return done


def _states_to_publish(work: Work, settings: Settings, last: int) -> list[int]:
    wanted = {*range(0, last + 1, settings.state_every), last}
    wanted.update(step for step in settings.keep_states if step <= last)
    missing = wanted - set(complete_steps(work.states))
    if missing:
        raise Incomplete(f"{work.folder}: the state of step {min(missing)} was to be kept and is missing")
    return sorted(wanted)


@contextlib.contextmanager
def _new_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` that gets its name when the block is done, or goes if it fails."""
    temporary = out.with_name(f"{TEMPORARY}{out.name}-{os.getpid()}")
    try:
        temporary.mkdir(parents=True)
    except OSError as error:
        raise explain(error, temporary) from error
    try:
        yield temporary
        for parent, _, _ in os.walk(temporary):
            sync_folder(Path(parent))
        # os.rename refuses a folder that is not empty (POSIX) or any that exists (Windows): nothing is overwritten.
        os.rename(temporary, out)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(out.parent)


def _copy(work: Work, target: Path, recipe: Recipe, last: int, steps: Sequence[int]) -> list[Artifact]:
    """Copy everything, the step files cut to `last` steps; returns all artifacts (a state's index lists its shards)."""
    lengths = Lengths.at(work.folder, last, recipe.batch.micro_batches).files
    plan: list[tuple[str, int | None]] = [(name, size) for name, size in lengths.items() if name != METRICS]
    plan += [(path.name, None) for path in (work.corpus, work.text, work.tokenizer)]
    artifacts = [_copy_file(work.folder, target, path, length) for path, length in plan]
    for step in steps:
        folder = state_path(step)
        (target / folder).mkdir(parents=True)
        artifacts += [
            _copy_file(work.folder, target, f"{folder}/{name}", None) for name in (STATE_DOCUMENT, STATE_INDEX)
        ]
        for shard in StoredState.open(work.state(step)).index.files:
            copied = _copy_file(work.folder, target, f"{folder}/{shard.path}", None)
            if copied.digest != shard.digest:
                raise BadArtifact(f"{copied.path}: changed while it was copied")
    return sorted(artifacts, key=lambda artifact: artifact.path)


def _copy_file(source: Path, target: Path, path: str, length: int | None) -> Artifact:
    """Copy `length` bytes (None: all) of a file and return what the manifest says of it."""
    hasher = Hasher()
    left = (source / path).stat().st_size if length is None else length
    with (source / path).open("rb") as reader, (target / path).open("xb") as writer:
        while left and (chunk := reader.read(min(_CHUNK, left))):
            hasher.update(chunk)
            writer.write(chunk)
            left -= len(chunk)
        sync_file(writer)
    if left:
        raise BadArtifact(f"{source / path}: {left} bytes are missing")
    return Artifact(path, hasher.size, hasher.hexdigest())


def _manifest(
    options: PublishOptions,
    recipe: Recipe,
    data: Prepared,
    rows: Sequence[RecordRow],
    roots: dict[int, Digest],
    artifacts: Sequence[Artifact],
) -> RunManifest:
    records = expand(
        rows,
        run_id=run_id(options.name, recipe, data.data),
        numerics=recipe.numerics.version,
        micro_batches=recipe.batch.micro_batches,
        state0=roots[0],
    )
    return RunManifest(
        name=options.name,
        recipe=recipe,
        data=data.data,
        log=Log(len(records), log_root(records)),
        artifacts=tuple(artifacts),
        states=tuple(PublishedState(step, state_path(step), root) for step, root in sorted(roots.items())),
        mirrors=options.mirrors,
    )


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        sync_file(file)
