"""One run folder that grows: what is published of a run up to a complete state, and the next publication.

A publication first adds: bytes to the files that grow, states, the text of new data, entries of the signed log. Then
it replaces `run.json`, at once. So the folder is a whole run at every moment, for whoever read `run.json` before as
well; a publication that is killed has added bytes that no manifest names, and the next one writes the same again.
Nothing is published but what belongs to a complete state, so the folder is never ahead of what `resume` goes on from.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

from auditkit.audit.signed_log import FOLDER, origin_of
from auditkit.errors import BadArtifact, UsageError
from auditkit.formats.digest import Digest, Hasher, content_digest
from auditkit.formats.note import NoteKey
from auditkit.formats.run import (
    GROWING,
    RECORDS,
    STATE_DOCUMENT,
    STATE_INDEX,
    Artifact,
    DataSpec,
    RunManifest,
    run_id,
    state_path,
)
from auditkit.formats.timeline import Timeline
from auditkit.replay.windows import Windows
from auditkit.trust.keys import PrivateKey
from auditkit.trust.log_writer import LogWriter
from trainer import compact
from trainer.disk import (
    TEMPORARY,
    explain,
    link_or_copy,
    read_bytes,
    remove,
    remove_temporaries,
    sync_folder,
    write_atomic,
    writing,
)
from trainer.live.entries import GrowingLog
from trainer.live.growing import GrowingFile, Steps
from trainer.live.settings import Publication
from trainer.publish import MANIFEST, corpus_paths, make_manifest, states_to_publish
from trainer.segments import Course, Stage, check_begun, timeline
from trainer.states import StoredState, complete_steps

_ANOTHER = "another name, recipe, data or history is another run: choose another folder"
_CHUNK = 1 << 20
_AT_ONCE = 1 << 14  # steps whose records are in memory when a run folder is taken up again


class Publisher:
    """The run folder of a work folder. After an error it must be opened anew."""

    def __init__(self, course: Course, publication: Publication, key: PrivateKey | None) -> None:
        """Raises `UsageError` where the folder is of another run or ahead of it, `BadArtifact` where it is bad."""
        self._course, self._publication, self._key = course, publication, key
        self.out = publication.out
        self._artifacts: dict[str, Artifact] = {}  # but those of files that grow
        self._roots: dict[int, Digest] = {}
        names = [RECORDS] if publication.compact else sorted(GROWING)
        self._growing = {name: GrowingFile(name) for name in names}
        self._log = GrowingLog(run_id(publication.name, course.stages[0].recipe, self._spec(course.stages[0])))
        self.manifest: RunManifest | None = None
        if self.out.exists() and not self.out.is_dir():
            raise UsageError(f"{self.out}: is no folder", hint="choose another name for the run folder")
        if (self.out / MANIFEST).is_file():
            self._take_up(RunManifest.parse(read_bytes(self.out / MANIFEST)))
        elif self.out.exists() and any(self.out.iterdir()):
            raise UsageError(f"{self.out}: exists already, and holds no run", hint="choose another folder")

    @property
    def steps(self) -> int:
        """How many steps are published."""
        return self._log.steps

    def extend(self, step: int) -> RunManifest:
        """Publish the run up to a complete state; raises what the disk refuses, and `BadArtifact`."""
        if self.manifest is not None:
            return self._extend(self.out, step)
        temporary = self._temporary()
        try:
            if temporary.exists():
                remove(temporary)
            temporary.mkdir(parents=True)
            made = self._extend(temporary, step)
            if self.out.exists():
                self.out.rmdir()  # it was empty
            temporary.rename(self.out)
            sync_folder(self.out.parent)
        except OSError as error:
            raise explain(error, None, then="resume") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return made

    def _extend(self, folder: Path, step: int) -> RunManifest:
        course = self._course.until(step)
        wanted = states_to_publish(course, step, None)
        stored = {number: self._state(course, number) for number in wanted if number not in self._roots}
        roots = self._roots | {number: found.document.root() for number, found in stored.items()}
        line = timeline(course.stages, self._specs(course), roots[0], step)
        steps = Steps(course, line, self.steps, step)
        if steps.rows and steps.rows[-1].state_after != roots[step]:
            raise BadArtifact(f"{course.work.state(step)}: not the state that record {step - 1} leads to")
        for name, pieces in self._added(steps).items():
            self._growing[name].append(folder, pieces)
        self._add_text(course, folder)
        for number, found in stored.items():
            self._add_state(folder, number, found)
        self._roots = roots
        at, entries = self._log.log.size, self._log.extend(line, steps.rows)
        publisher = self._sign(folder, line, entries, at)
        artifacts = [*self._artifacts.values(), *(file.artifact for file in self._growing.values())]
        options, specs, log = self._publication.options(), self._specs(course), self._log.log
        made = make_manifest(options, course, specs, log, roots, artifacts, publisher)
        write_atomic(folder / MANIFEST, made.encode())
        self.manifest = made
        return made

    def _take_up(self, found: RunManifest) -> None:
        """Go on behind what a run folder has: all that this work folder repeats of it is compared."""
        self._check_same(found)
        for folder in (self.out, self.out / "states"):
            remove_temporaries(folder)  # of a publication that was killed
        line, here = found.timeline(), self._course.work.folder
        for first in range(0, found.steps, _AT_ONCE):
            steps = Steps(self._course, line, first, min(first + _AT_ONCE, found.steps))
            for name, pieces in self._added(steps).items():
                self._growing[name].take(pieces)
            self._log.extend(line, steps.rows)
        for file in self._growing.values():
            if file.artifact != found.artifact(file.path):
                raise UsageError(f"{self.out}: {file.path} is not the begin of what {here} has", hint=_ANOTHER)
            file.check(self.out)
        if self._log.log != found.log:
            raise UsageError(f"{self.out}: its records are not those of {here}", hint=_ANOTHER)
        self._artifacts = {a.path: a for a in found.artifacts if a.path not in self._growing}
        for artifact in self._artifacts.values():
            place = self.out / artifact.path
            if not place.is_file() or place.stat().st_size != artifact.size:
                raise BadArtifact(
                    f"{place}: was published with {artifact.size} bytes", hint="put it back, or publish elsewhere"
                )
        self._roots = {state.step: state.root for state in found.states}
        self.manifest = found

    def _check_same(self, found: RunManifest) -> None:
        """The folder is of this run, signed by this key, and not ahead of it."""
        course = self._course
        if found.run_id() != self._log.run_id:
            raise UsageError(
                f"{self.out}: holds run {found.name} of id {found.run_id()}, this one has {self._log.run_id}",
                hint=_ANOTHER,
            )
        key = self._note_key()
        if found.publisher is not None and found.publisher != key:
            here = "is not signed" if key is None else f"would be signed as {key.text}"
            raise UsageError(
                f"{self.out}: its log is signed as {found.publisher.text}, and this one {here}",
                hint="one run has one log: say --log-key and --origin as before",
            )
        done = max(complete_steps(course.work.states), default=0)
        if found.steps > done:
            raise UsageError(
                f"{self.out}: has {found.steps} steps, but the last complete state here is that of step {done}",
                hint="what is published stays: go on in the work folder that it came from, or choose another folder",
            )
        declared = course.until(found.steps)
        changes = [
            stage.change(spec) for stage, spec in zip(declared.stages[1:], self._specs(declared)[1:], strict=True)
        ]
        if list(found.changes) != changes:
            raise UsageError(f"{self.out}: was published with other segments than are declared here", hint=_ANOTHER)

    def _temporary(self) -> Path:
        """Where the first publication is made: a name that no other work folder uses."""
        own = content_digest(str(self._course.work.folder.resolve()).encode("utf-8", "surrogateescape"))[:8]
        return self.out.with_name(f"{TEMPORARY}{self.out.name}-{own}")

    def _spec(self, stage: Stage) -> DataSpec:
        return compact.data_spec(stage.prepared, stage.home) if self._publication.compact else stage.prepared.data

    def _specs(self, course: Course) -> list[DataSpec]:
        return [self._spec(stage) for stage in course.stages]

    def _added(self, steps: Steps) -> dict[str, Iterator[bytes]]:
        """What steps add to the files that grow."""
        return steps.compact_files(self._windows) if self._publication.compact else steps.files()

    @cached_property
    def _windows(self) -> list[Windows]:
        """The batches of each segment."""
        return [self._course.batches(segment) for segment in self._course.timeline.segments]

    def _state(self, course: Course, step: int) -> StoredState:
        found = StoredState.open(course.work.state(step))
        course.check_state(found, step)
        check_begun(course, found)
        return found

    def _add_text(self, course: Course, folder: Path) -> None:
        """Corpora, tokenizer and ids that are not there yet."""
        for path in corpus_paths(course):
            if path not in self._artifacts:
                self._artifacts[path] = _linked(course.work.folder / path, folder, path)
        for stage in course.homes() if self._publication.compact else []:
            ids = self._spec(stage).ids
            if ids is not None and ids.path not in self._artifacts:
                data = compact.encode_ids(course.home(stage), stage.prepared)
                write_atomic(folder / ids.path, data)
                self._artifacts[ids.path] = Artifact(ids.path, len(data), content_digest(data))

    def _add_state(self, folder: Path, step: int, stored: StoredState) -> None:
        """A state under its name at once."""
        path = state_path(step)
        target = folder / path
        temporary = target.with_name(f"{TEMPORARY}{target.name}")
        with writing(target):
            for left in (temporary, target):  # of a publication that was killed
                if left.exists():
                    remove(left)
            temporary.mkdir(parents=True)
            for name in (STATE_DOCUMENT, STATE_INDEX, *(shard.path for shard in stored.index.files)):
                link_or_copy(stored.folder / name, temporary / name)
            sync_folder(temporary)
            temporary.rename(target)
            sync_folder(target.parent)
        for name in (STATE_DOCUMENT, STATE_INDEX):
            data = read_bytes(target / name)
            self._artifacts[f"{path}/{name}"] = Artifact(f"{path}/{name}", len(data), content_digest(data))

    def _note_key(self) -> NoteKey | None:
        return None if self._key is None else self._writer(self.out, self._key).key

    def _writer(self, folder: Path, key: PrivateKey) -> LogWriter:
        return LogWriter(folder / FOLDER, self._publication.origin or origin_of(self._log.run_id), key)

    def _sign(self, folder: Path, line: Timeline, entries: Sequence[bytes], at: int) -> NoteKey | None:
        """Add entries to the signed log, the first of which is number `at`; all of them where the log has fewer."""
        if self._key is None:
            return None
        writer = self._writer(folder, self._key)
        signed = writer.checkpoint()
        if signed is None or signed.size < at:
            writer.append(self._all_entries(line), at=0)
        else:
            writer.append(entries, at=at)
        return writer.key

    def _all_entries(self, line: Timeline) -> Iterator[bytes]:
        log = GrowingLog(self._log.run_id)
        for first in range(0, line.steps, _AT_ONCE):
            yield from log.extend(line, Steps(self._course, line, first, min(first + _AT_ONCE, line.steps)).rows)


def _linked(source: Path, folder: Path, path: str) -> Artifact:
    """A file that nobody changes, in the run folder; what the manifest says of it."""
    target, hasher = folder / path, Hasher(threads=1)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)  # of a publication that was killed
        link_or_copy(source, target)
        sync_folder(target.parent)
    with target.open("rb") as file:
        while chunk := file.read(_CHUNK):
            hasher.update(chunk)
    return Artifact(path, hasher.size, hasher.hexdigest())
