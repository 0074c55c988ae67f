"""Write the run folder that others verify: all of it, checked once more, or nothing."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from auditkit.errors import BadArtifact, Incomplete, UsageError
from auditkit.formats.chain import chain, log_entries
from auditkit.formats.digest import Digest, Hasher, content_digest
from auditkit.formats.mirrors import check_mirrors
from auditkit.formats.note import NoteKey
from auditkit.formats.paths import check_segment
from auditkit.formats.record import RecordRow, log_root
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
from trainer import compact, lock, signed_log, witness
from trainer.disk import TEMPORARY, explain, sync_file, sync_folder
from trainer.log import Lengths, read_rows
from trainer.recheck import check_states, check_steps, check_text, corpus_files
from trainer.segments import Course, timeline
from trainer.states import StoredState, complete_steps
from trainer.work import TOKENIZER, Settings, Work

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
    check_options(options)
    key = signed_log.load_key(options.log_key, options.origin)
    if out.exists() or out.is_symlink():
        raise UsageError(f"{out}: exists already", hint="a published run is never changed; choose another folder")
    with lock.hold(folder):
        work = Work(folder)
        whole = Course.load(work)
        last = _last_step(work, whole.settings, partial=options.partial)
        course = whole.until(last)
        steps = states_to_publish(course, last, options.states)
        rows = read_rows(folder, last)
        # 1. text  2. leaves and tokens of each record  3. states, which ties them to the records
        # 4. what no other file repeats, against the digests of the training
        for stage in course.homes():
            check_text(course.home(stage), stage.prepared)
        check_steps(course, rows)
        roots = check_states(course, rows, steps)
        witness.check(folder, rows, course.timeline.leaves_before)
        with _new_folder(out) as temporary:
            if options.compact:
                specs = [compact.data_spec(stage.prepared, stage.home) for stage in course.stages]
                artifacts = _write_compact(course, temporary, rows)
            else:
                specs = [stage.prepared.data for stage in course.stages]
                artifacts = _copy_steps(course, temporary, last)
            artifacts += _copy_corpora(course, temporary) + _copy_states(work, temporary, steps)
            segments = timeline(course.stages, specs, roots[0], last)
            records = chain(rows, segments, run_id(options.name, course.stages[0].recipe, specs[0]))
            entries = list(log_entries(records, segments))
            publisher = signed_log.write(temporary, entries, key, options.origin) if key else None
            log = Log(len(entries), log_root(entries))
            manifest = make_manifest(options, course, specs, log, roots, artifacts, publisher)
            _write(temporary, MANIFEST, manifest.encode())
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    signed = f"\nsigned {manifest.publisher.text}" if manifest.publisher else ""
    return f"run    {manifest.run_id()}\nsteps  {last}\nstates {' '.join(map(str, steps))}\nbytes  {size}{signed}"


def check_options(options: PublishOptions) -> None:
    """Refuse a name or mirrors that no manifest may have; raises `UsageError`."""
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


def states_to_publish(course: Course, last: int, chosen: tuple[int, ...] | None) -> list[int]:
    """The steps whose states are published of a run up to step `last`; `chosen` are those besides first and last.

    None: all that were to be kept. Raises `Incomplete` or `UsageError` where one is missing.
    """
    work, settings = course.work, course.settings
    complete = set(complete_steps(work.states))
    lost = {stage.step for stage in course.stages[1:]} - complete
    if lost:
        raise Incomplete(f"{work.folder}: the state of step {min(lost)}, where a segment begins, is missing")
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


def _write_compact(course: Course, target: Path, rows: Sequence[RecordRow]) -> list[Artifact]:
    """Write the compact records and the ids of all data; returns their artifacts."""
    artifacts = [_write(target, RECORDS, compact.encode_records(course, rows))]
    for stage in course.homes():
        ids = compact.data_spec(stage.prepared, stage.home).ids
        assert ids is not None
        artifacts.append(_write(target, ids.path, compact.encode_ids(course.home(stage), stage.prepared)))
    return artifacts


def _copy_steps(course: Course, target: Path, last: int) -> list[Artifact]:
    """Copy records, leaves and token stream, cut to `last` steps; returns their artifacts."""
    folder = course.work.folder
    lengths = Lengths.at(folder, last, course.timeline.leaves_before).files
    return [_copy_file(folder, target, name, size) for name, size in lengths.items()]


def _copy_corpora(course: Course, target: Path) -> list[Artifact]:
    """Copy corpora and the tokenizer, which is the same for all; returns their artifacts."""
    paths = corpus_paths(course)
    for path in paths:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
    return [_copy_file(course.work.folder, target, path, None) for path in paths]


def corpus_paths(course: Course) -> list[str]:
    """The paths of all corpora, and of the tokenizer, in work folder and run folder."""
    paths: list[str] = []
    for stage in course.homes():
        files = corpus_files(course.home(stage), stage.prepared)
        paths += [f"{stage.home}/{path}" for path in files if path != TOKENIZER] if stage.home else files
    return paths


def _copy_states(work: Work, target: Path, steps: Sequence[int]) -> list[Artifact]:
    """Copy states; returns their artifacts (a state's index lists its shards)."""
    artifacts: list[Artifact] = []
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


def make_manifest(
    options: PublishOptions,
    course: Course,
    specs: Sequence[DataSpec],
    log: Log,
    roots: dict[int, Digest],
    artifacts: Sequence[Artifact],
    publisher: NoteKey | None,
) -> RunManifest:
    """The manifest of a run up to the end of `course`, with the data sections that are published."""
    return RunManifest(
        name=options.name,
        recipe=course.stages[0].recipe,
        data=specs[0],
        log=log,
        artifacts=tuple(sorted(artifacts, key=lambda artifact: artifact.path)),
        states=tuple(PublishedState(step, state_path(step), root) for step, root in sorted(roots.items())),
        mirrors=options.mirrors,
        publisher=publisher,
        changes=tuple(stage.change(spec) for stage, spec in zip(course.stages[1:], specs[1:], strict=True)),
    )


def _write(target: Path, path: str, data: bytes) -> Artifact:
    """Write a new file and return what the manifest says of it."""
    (target / path).parent.mkdir(parents=True, exist_ok=True)
    with (target / path).open("xb") as file:
        file.write(data)
        sync_file(file)
    return Artifact(path, len(data), content_digest(data))
