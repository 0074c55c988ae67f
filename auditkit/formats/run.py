"""The run manifest `run.json`: the recipe, the data, the log, and where everything lies. Its run id names the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats import canonical, compact, leaves, record, stream, timeline
from auditkit.formats.canonical import shown
from auditkit.formats.data_spec import FRAMES as FRAMES
from auditkit.formats.data_spec import WINDOWS as WINDOWS
from auditkit.formats.data_spec import Corpus as Corpus
from auditkit.formats.data_spec import DataSpec as DataSpec
from auditkit.formats.data_spec import Ids as Ids
from auditkit.formats.data_spec import Tokenizer as Tokenizer
from auditkit.formats.data_spec import check_data
from auditkit.formats.digest import RUN_ID, Digest, check_digest, content_digest, root
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from auditkit.formats.mirrors import check_mirrors
from auditkit.formats.note import ED25519, NoteKey, parse_key
from auditkit.formats.paths import check_distinct, check_path, check_segment
from auditkit.formats.recipe import Recipe
from auditkit.formats.schema import Int
from auditkit.formats.state import DOCUMENT_FILE, INDEX_FILE
from auditkit.formats.timeline import Change as Change
from auditkit.formats.timeline import Timeline

FORMAT = "auditkit/run/v1"
FORMAT_2 = "auditkit/run/v2"  # the data have declared sources, which a reader of v1 does not know
FORMAT_3 = "auditkit/run/v3"  # there are several segments
RECORDS, LEAVES, STREAM, STREAM_INDEX = "records.bin", "leaves.bin", "stream.bin", "stream.idx"
GROWING = frozenset({RECORDS, LEAVES, STREAM, STREAM_INDEX})
"""Files that are only ever appended to: what a manifest says of one holds of its first `size` bytes."""

STATE_DOCUMENT, STATE_INDEX = DOCUMENT_FILE, INDEX_FILE


@dataclass(frozen=True, slots=True)
class Artifact:
    """One published file: path relative to the run, size in bytes, plain BLAKE3."""

    path: str
    size: int
    digest: Digest


@dataclass(frozen=True, slots=True)
class Log:
    """Number of records and the RFC 6962 root over them, as hex; segments but the first have a record as well."""

    size: int
    root: Digest


@dataclass(frozen=True, slots=True)
class PublishedState:
    """A state whose tensors are published: after `step` steps, in the folder `path`, with state root `root`."""

    step: int
    path: str
    root: Digest


def run_id(name: str, recipe: Recipe, data: DataSpec) -> Digest:
    """The run id: BLAKE3, under RUN_ID, of canonical {data, name, recipe}; known before the first step is trained."""
    value = {"data": data.to_value(), "name": name, "recipe": recipe.to_value()}
    return root(RUN_ID, canonical.dumps(value, what="run"))


@dataclass(frozen=True, slots=True)
class RunManifest:
    """Everything about a run; checked as a whole when it is made.

    `artifacts` are sorted by path and list every file but run.json and the shards, which a state's index lists;
    `states` are sorted by step and begin with step 0; `mirrors` are base URLs in order of preference; `publisher` signs
    the transparency log of the records, called by the key's name; `changes` are the segments after the first, whose
    recipe and data are `recipe` and `data`.
    """

    name: str
    recipe: Recipe
    data: DataSpec
    log: Log
    artifacts: tuple[Artifact, ...]
    states: tuple[PublishedState, ...]
    mirrors: tuple[str, ...]
    publisher: NoteKey | None = None
    changes: tuple[Change, ...] = ()

    def __post_init__(self) -> None:
        check_segment(self.name, "run.name")
        DataSpec.from_fields(Fields(self.data.to_value(), "run.data"))  # the same checks as for a parsed one
        check_data(self.data, self.recipe)
        _check_log(self)
        _check_states(self.states, self.steps)
        check_mirrors(self.mirrors)
        _check_artifacts(self)

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The manifest of canonical JSON; BadArtifact naming the field."""
        fields = Fields(canonical.loads(data, what="run", limit=LIMITS.manifest_bytes), "run")
        found = fields.format(FORMAT, FORMAT_2, FORMAT_3)
        log = fields.fields("log")
        changes = fields.rows("segments", 1, LIMITS.segments) if fields.has("segments") else []
        if bool(changes) != (found == FORMAT_3):
            raise BadArtifact(
                f"run.format: {shown(found)}, but segments are there in {shown(FORMAT_3)}, and only there"
            )
        manifest = cls(
            name=fields.text("name"),
            recipe=Recipe.from_value(fields.raw("recipe"), "run.recipe"),
            data=DataSpec.from_fields(fields.fields("data")),
            log=Log(log.integer("size", 1, LIMITS.steps + len(changes), "records"), log.digest("root")),
            artifacts=tuple(map(_artifact, fields.rows("artifacts", 1, LIMITS.artifacts))),
            states=tuple(map(_state, fields.rows("states", 1, LIMITS.states))),
            mirrors=tuple(fields.items("mirrors", 0, LIMITS.mirrors)),
            publisher=_publisher(fields.fields("publisher")) if fields.has("publisher") else None,
            changes=tuple(map(Change.from_fields, changes)),
        )
        log.done()
        fields.done()
        if found != manifest.format:
            raise BadArtifact(f"run.format: {shown(found)}, but its data are those of {shown(manifest.format)}")
        return manifest

    def encode(self) -> bytes:
        """Canonical JSON."""
        more: dict[str, canonical.Value] = {}
        if self.publisher is not None:
            more["publisher"] = {"key": self.publisher.text}
        if self.changes:
            more["segments"] = [change.to_value() for change in self.changes]
        value = {
            **more,
            "artifacts": [{"digest": a.digest, "path": a.path, "size": a.size} for a in self.artifacts],
            "data": self.data.to_value(),
            "format": self.format,
            "log": {"root": self.log.root, "size": self.log.size},
            "mirrors": list(self.mirrors),
            "name": self.name,
            "recipe": self.recipe.to_value(),
            "states": [{"path": s.path, "root": s.root, "step": s.step} for s in self.states],
        }
        return canonical.dumps(value, what="run")

    @property
    def format(self) -> str:
        """The version of the format: the first that has what this run needs."""
        if self.changes:
            return FORMAT_3
        return FORMAT_2 if self.data.sources else FORMAT

    @property
    def steps(self) -> int:
        """Number of steps: entries of the log that are not the record of a segment."""
        return self.log.size - len(self.changes)

    def timeline(self) -> Timeline:
        """All segments of the run, the first included."""
        return Timeline.of(self.recipe, self.data, self.states[0].root, self.changes, self.steps)

    def run_id(self) -> Digest:
        """The run id, which every record carries."""
        return run_id(self.name, self.recipe, self.data)

    def digest(self) -> Digest:
        """Plain BLAKE3 of the file."""
        return content_digest(self.encode())

    def artifact(self, path: str) -> Artifact:
        """The artifact of that path; BadArtifact when the manifest lists none."""
        for artifact in self.artifacts:
            if artifact.path == path:
                return artifact
        raise BadArtifact(f"run.artifacts: {shown(path)} is not listed")

    def state(self, step: int) -> PublishedState | None:
        """The published state after `step` steps, if there is one."""
        return next((state for state in self.states if state.step == step), None)


def state_path(step: int) -> str:
    """The folder of a published state: "states/" and the step in 8 digits."""
    return f"states/{step:08d}"


def _publisher(fields: Fields) -> NoteKey:
    key = parse_key(fields.raw("key"), fields.name("key"), ED25519)
    fields.done()
    return key


def _artifact(fields: Fields) -> Artifact:
    size = fields.integer("size", 0, LIMITS.file_bytes, "bytes")
    artifact = Artifact(path=fields.path("path"), size=size, digest=fields.digest("digest"))
    fields.done()
    return artifact


def _state(fields: Fields) -> PublishedState:
    step = fields.integer("step", 0, LIMITS.steps, "steps")
    state = PublishedState(step=step, path=fields.path("path"), root=fields.digest("root"))
    fields.done()
    return state


def _check_log(run: RunManifest) -> None:
    check_digest(run.log.root, "run.log.root")
    if not run.changes:
        Int(1, run.recipe.schedule.total_steps, "records").check(run.log.size, "run.log.size")
        return
    if run.steps < 1:
        raise BadArtifact(f"run.log.size: {run.log.size} records, but {len(run.changes)} are those of segments")
    timeline.check_changes(run.recipe, run.data, run.changes, run.steps)
    timeline.check_within_schedule(run.changes[-1].recipe, run.steps, "run.log.size without segments")


def _check_states(states: tuple[PublishedState, ...], steps: int) -> None:
    if not states or states[0].step != 0:
        raise BadArtifact("run.states: the first state is not that of step 0")
    before = -1
    for state in states:
        if state.step <= before:
            raise BadArtifact(f"run.states: step {state.step} is repeated or out of order")
        if state.step > steps:
            raise BadArtifact(f"run.states: step {state.step} is beyond a log of {steps} records")
        if state.path != state_path(state.step):
            raise BadArtifact(
                f"run.states: path {shown(state.path)} of step {state.step} is not {state_path(state.step)}"
            )
        check_digest(state.root, f"run.states: root of step {state.step}")
        before = state.step


def _check_artifacts(run: RunManifest) -> None:
    paths = [check_path(artifact.path, "run.artifacts: path") for artifact in run.artifacts]
    if paths != sorted(paths):
        raise BadArtifact("run.artifacts: not sorted by path")
    check_distinct([*paths, "run.json"], "run.artifacts")
    for artifact in run.artifacts:
        what = f"run.artifacts: {shown(artifact.path)}"
        Int(0, LIMITS.file_bytes, "bytes").check(artifact.size, f"{what}: size")
        check_digest(artifact.digest, f"{what}: digest")
    _check_required(run, {artifact.path: artifact for artifact in run.artifacts})


def _check_required(run: RunManifest, listed: dict[str, Artifact]) -> None:
    needed = [RECORDS] if run.data.ids is not None else [RECORDS, LEAVES, STREAM, STREAM_INDEX]
    for data in _specs(run):
        needed += _files(data)
    for state in run.states:
        needed += [f"{state.path}/{STATE_DOCUMENT}", f"{state.path}/{STATE_INDEX}"]
    for path in needed:
        if path not in listed:
            raise BadArtifact(f"run.artifacts: {shown(path)} is missing")
    for number, data in enumerate(_specs(run)):
        where = f"run.segments[{number - 1}].data" if number else "run.data"
        for part in (data.corpus, data.tokenizer):
            if listed[part.path].digest != part.digest:
                raise BadArtifact(f"run.artifacts: digest of {shown(part.path)} differs from the one in {where}")
    for path, size in _sizes(run).items():
        if listed[path].size != size:
            raise BadArtifact(f"run.artifacts: {path} has {listed[path].size} bytes, {run.steps} steps need {size}")
    if run.data.ids is None and listed[STREAM_INDEX].size < len(stream.MAGIC) + run.steps * stream.ROW_BYTES:
        raise BadArtifact(f"run.artifacts: {STREAM_INDEX} is too short for {run.steps} steps")


def _specs(run: RunManifest) -> list[DataSpec]:
    """The data sections of all segments."""
    return [run.data, *(change.data for change in run.changes)]


def _files(data: DataSpec) -> list[str]:
    """The files that a data section names."""
    ids = [] if data.ids is None else [data.ids.path]
    text = [] if data.sources else [data.corpus.text]  # with sources the corpus index says how many shards there are
    return [*ids, data.corpus.path, *text, data.tokenizer.path]


def _sizes(run: RunManifest) -> dict[str, int]:
    """Bytes of the files whose size follows from the number of steps."""
    steps, parts = run.steps, run.timeline().leaves_before(run.steps)
    if run.data.ids is not None:
        return {RECORDS: compact.file_bytes(steps, parts)}
    return {
        RECORDS: len(record.MAGIC) + steps * record.ROW_BYTES,
        LEAVES: len(leaves.MAGIC) + parts * leaves.LEAF_BYTES,
    }
