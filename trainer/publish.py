"""Write the run folder that others verify: all of it, checked once more, or nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from auditkit.errors import BadArtifact, Incomplete, UsageError
from auditkit.formats.digest import Digest, Hasher, content_digest
from auditkit.formats.mirrors import check_mirrors
from auditkit.formats.note import NoteKey
from auditkit.formats.paths import check_segment
from auditkit.formats.recipe import Recipe
from auditkit.formats.record import RecordRow, StepRecord, expand, log_root
from auditkit.formats.run import (
    RECORDS,
    STATE_DOCUMENT,
    STATE_INDEX,
    Artifact,
    DataSpec,
    Log,
    PublishedState,
    RunManifest,
    run_id,
    state_path,
)
from trainer import compact, lock, prepared, signed_log, witness
from trainer.batches import open_batches
from trainer.disk import TEMPORARY, explain, sync_file, sync_folder
from trainer.log import Lengths, read_rows
from trainer.recheck import check_states, check_steps, check_text, corpus_files
from trainer.states import StoredState, complete_steps
from trainer.work import Settings, Work

MANIFEST = "run.json"
_CHUNK = 1 << 20


@dataclass(frozen=True)
class PublishOptions:
    """Name and mirrors of the published run; `partial` allows an unfinished one, up to its last complete state.

    `compact` publishes ids in place of the token stream, and records without what can be derived. `states` are the
    steps whose states are published besides the first and the last; None for all that were to be kept. `log_key` is the
    file of the private key that signs a log of the records, called `origin` (None: by the run id).
    """

    name: str
    mirrors: tuple[str, ...]
    partial: bool
    compact: bool = False
    states: tuple[int, ...] | None = None
    log_key: Path | None = None
    origin: str | None = None


def publish(folder: Path, out: Path, options: PublishOptions) -> str:
    """Write the run of work folder `folder` to `out` and return a summary for people.

    Raises `UsageError` if `out` exists, `Incomplete` if the run or a state is, `BadArtifact` if a check fails, and what
    loading the key of the log raises.
    """
    _check_options(options)
    key = signed_log.load_key(options.log_key, options.origin)
    if out.exists() or out.is_symlink():
        raise UsageError(f"{out}: exists already", hint="a published run is never changed; choose another folder")
    with lock.hold(folder):
        work = Work(folder)
        recipe, data, settings = work.load_recipe(), prepared.load(work), work.load_settings()
        last = _last_step(work, settings, partial=options.partial)
        steps = _states_to_publish(work, settings, last, options.states)
        rows = read_rows(folder, last)
        batches = open_batches(work, data, recipe.batch.sequences)
        # 1. text  2. leaves and tokens of each record  3. states, which ties them to the records
        # 4. what no other file repeats, against the digests of the training
        check_text(work, data)
        check_steps(work, recipe, rows, batches)
        roots = check_states(work, recipe, rows, steps)
        witness.check(folder, rows, recipe.batch.micro_batches)
        with _new_folder(out) as temporary:
            if options.compact:
                made = {RECORDS: compact.encode_records(work, recipe, rows, batches)}
                made[compact.IDS] = compact.encode_ids(work, data)
                artifacts = [_write(temporary, path, content) for path, content in made.items()]
                spec = compact.data_spec(data)
            else:
                artifacts = _copy_steps(work, temporary, recipe, last)
                spec = data.data
            artifacts += _copy(work, temporary, corpus_files(work, data), steps)
            records = _records(options, recipe, spec, rows, roots)
            publisher = signed_log.write(temporary, records, key, options.origin) if key else None
            manifest = _manifest(options, recipe, spec, records, roots, artifacts, publisher)
            _write(temporary, MANIFEST, manifest.encode())
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    signed = f"\nsigned {manifest.publisher.text}" if manifest.publisher else ""
    return f"run    {manifest.run_id()}\nsteps  {last}\nstates {' '.join(map(str, steps))}\nbytes  {size}{signed}"


def _check_options(options: PublishOptions) -> None:
    try:
        check_segment(options.name, "--name")
        check_mirrors(options.mirrors)
    except BadArtifact as error:
        raise UsageError(error.message.replace("run.mirrors", "--mirror")) from error


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


def _states_to_publish(work: Work, settings: Settings, last: int, chosen: tuple[int, ...] | None) -> list[int]:
    complete = set(complete_steps(work.states))
    if chosen is not None:
        missing = {0, *chosen, last} - complete
        if missing or max(chosen, default=0) > last:
            first = min(missing, default=max(chosen, default=0))
            raise UsageError(f"--states: there is no complete state of step {first} of {last} in {work.states}")
        return sorted({0, *chosen, last})
    wanted = {*range(0, last + 1, settings.state_every), last}
    wanted.update(step for step in settings.keep_states if step <= last)
    missing = wanted - complete
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
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # An open that failed names its file; a write that failed names none, and all that is written here is `out`.
        named = str(error.filename or temporary)
        raise explain(error, out if named.startswith(str(temporary)) else None, then="publish again") from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    sync_folder(out.parent)


def _copy_steps(work: Work, target: Path, recipe: Recipe, last: int) -> list[Artifact]:
    """Copy records, leaves and token stream, cut to `last` steps; returns their artifacts."""
    lengths = Lengths.at(work.folder, last, recipe.batch.micro_batches).files
    return [_copy_file(work.folder, target, name, size) for name, size in lengths.items()]


def _copy(work: Work, target: Path, corpus: Sequence[str], steps: Sequence[int]) -> list[Artifact]:
    """Copy corpus, tokenizer and states; returns their artifacts (a state's index lists its shards)."""
    for path in corpus:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
    artifacts = [_copy_file(work.folder, target, path, None) for path in corpus]
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
    return artifacts


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


def _records(
    options: PublishOptions, recipe: Recipe, data: DataSpec, rows: Sequence[RecordRow], roots: dict[int, Digest]
) -> list[StepRecord]:
    return expand(
        rows,
        run_id=run_id(options.name, recipe, data),
        numerics=recipe.numerics.version,
        micro_batches=recipe.batch.micro_batches,
        state0=roots[0],
    )


def _manifest(
    options: PublishOptions,
    recipe: Recipe,
    data: DataSpec,
    records: Sequence[StepRecord],
    roots: dict[int, Digest],
    artifacts: Sequence[Artifact],
    publisher: NoteKey | None,
) -> RunManifest:
    return RunManifest(
        name=options.name,
        recipe=recipe,
        data=data,
        log=Log(len(records), log_root(records)),
        artifacts=tuple(sorted(artifacts, key=lambda artifact: artifact.path)),
        states=tuple(PublishedState(step, state_path(step), root) for step, root in sorted(roots.items())),
        mirrors=options.mirrors,
        publisher=publisher,
    )


def _write(target: Path, path: str, data: bytes) -> Artifact:
    """Write a new file and return what the manifest says of it."""
    with (target / path).open("xb") as file:
        file.write(data)
        sync_file(file)
    return Artifact(path, len(data), content_digest(data))
