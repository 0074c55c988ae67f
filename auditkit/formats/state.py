"""A training state: the document whose root names it, and the index that says where its bytes lie."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats import canonical
from auditkit.formats.canonical import MAX_INT, shown
from auditkit.formats.digest import STATE_ROOT, Digest, check_digest, root
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from auditkit.formats.paths import check_distinct, check_segment
from auditkit.formats.schema import Int
from auditkit.formats.tensors import TensorEntry, TensorTexts, check_name, check_order, sorted_entries

DOCUMENT_FORMAT = "auditkit/state/v1"
INDEX_FORMAT = "auditkit/state-index/v1"
STATE_ROLES = ("adam_m", "adam_v", "param")
DOCUMENT_FILE, INDEX_FILE = "state.json", "index.json"  # in a state's folder, beside its shards
HEADER_ROLE = "header"  # the frame of a shard's safetensors header; its name is empty

_COUNT = Int(0, MAX_INT)
_STEP = Int(0, LIMITS.steps, "steps")
_FILE = Int(1, LIMITS.file_bytes, "bytes")


def shard_key(role: str, name: str) -> str:
    """What a shard's safetensors header calls the tensor: "role/name"."""
    return f"{role}/{name}"


@dataclass(frozen=True, slots=True)
class StateDocument:
    """Everything that decides the next step.

    `step` steps are done, `sequence` sequences consumed (the data cursor), `seed` and `step` fix the random numbers,
    which are a pure function of position; `recipe` is the recipe's digest. `tensors` are sorted by role, then name.
    """

    step: int
    sequence: int
    seed: int
    recipe: Digest
    tensors: tuple[TensorEntry, ...]

    def __post_init__(self) -> None:
        _STEP.check(self.step, "state document.step")
        _COUNT.check(self.sequence, "state document.sequence")
        _COUNT.check(self.seed, "state document.seed")
        check_digest(self.recipe, "state document.recipe")
        check_order(self.tensors, "state document")
        for entry in self.tensors:
            if entry.role not in STATE_ROLES or entry.dtype != "F32":
                raise BadArtifact(
                    f"state document: tensor {shown(entry.name)} is {entry.role} {entry.dtype},"
                    f" a state holds {', '.join(STATE_ROLES)} in F32"
                )

    @classmethod
    def of(cls, step: int, sequence: int, seed: int, recipe: Digest, tensors: Iterable[TensorEntry]) -> Self:
        """The document of tensors in any order."""
        return cls(step, sequence, seed, recipe, sorted_entries(tensors, "state document"))

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The document of canonical JSON; BadArtifact naming the field."""
        what = "state document"
        fields = Fields(canonical.loads(data, what=what, limit=LIMITS.state_document_bytes), what)
        fields.format(DOCUMENT_FORMAT)
        document = cls(
            step=fields.integer("step", 0, LIMITS.steps, "steps"),
            sequence=fields.integer("sequence"),
            seed=fields.integer("seed"),
            recipe=fields.digest("recipe"),
            tensors=tuple(map(TensorEntry.from_fields, fields.rows("tensors", 1, LIMITS.tensors_per_state))),
        )
        fields.done()
        return document

    def encode(self) -> bytes:
        """Canonical JSON."""
        value = {
            "format": DOCUMENT_FORMAT,
            "recipe": self.recipe,
            "seed": self.seed,
            "sequence": self.sequence,
            "step": self.step,
            "tensors": [entry.to_value() for entry in self.tensors],
        }
        return canonical.dumps(value, what="state document")

    def root(self) -> Digest:
        """The state root: BLAKE3 of the canonical JSON under STATE_ROOT."""
        return root(STATE_ROOT, self.encode())

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors together."""
        return sum(entry.nbytes for entry in self.tensors)


class StateTexts:
    """Roots of state documents that differ in step, cursor and digests only, as a run has them step after step."""

    def __init__(self, document: StateDocument) -> None:
        self._tensors = TensorTexts(document.tensors, "state document")
        self._head = f'{{"format":"{DOCUMENT_FORMAT}","recipe":"{document.recipe}","seed":{document.seed}'

    def root(self, step: int, sequence: int, digests: Sequence[Digest]) -> Digest:
        """The state root, given the digest of each tensor in the order of the document; BadArtifact as for one."""
        _STEP.check(step, "state document.step")
        _COUNT.check(sequence, "state document.sequence")
        text = f'{self._head},"sequence":{sequence},"step":{step},"tensors":{self._tensors.text(digests)}}}'
        return root(STATE_ROOT, text.encode("ascii"))


@dataclass(frozen=True, slots=True)
class FrameEntry:
    """One zstd frame of a shard: `length` bytes at `offset` of the file, `raw_length` bytes when decompressed."""

    name: str
    role: str
    offset: int
    length: int
    raw_length: int

    def __post_init__(self) -> None:
        if self.role == HEADER_ROLE:
            if self.name != "":
                raise BadArtifact(f"state index: header frame with the name {shown(str(self.name))}, it has none")
        elif self.role in STATE_ROLES:
            check_name(self.name, "state index: frame name")
        else:
            raise BadArtifact(f"state index: role {shown(str(self.role))} is not header or {' or '.join(STATE_ROLES)}")
        what = f"state index: frame {shown(self.name)}"
        Int(0, LIMITS.file_bytes, "bytes").check(self.offset, f"{what}: offset")
        Int(1, LIMITS.file_bytes, "bytes").check(self.length, f"{what}: length")
        Int(0, LIMITS.tensor_bytes, "bytes").check(self.raw_length, f"{what}: raw_length")

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """The entry of a JSON object; BadArtifact naming the field."""
        entry = cls(
            name=fields.raw("name"),
            role=fields.choice("role", HEADER_ROLE, *STATE_ROLES),
            offset=fields.integer("offset", 0, LIMITS.file_bytes, "bytes"),
            length=fields.integer("length", 1, LIMITS.file_bytes, "bytes"),
            raw_length=fields.integer("raw_length", 0, LIMITS.tensor_bytes, "bytes"),
        )
        fields.done()
        return entry

    def to_value(self) -> dict[str, canonical.Value]:
        """The JSON object."""
        return {
            "length": self.length,
            "name": self.name,
            "offset": self.offset,
            "raw_length": self.raw_length,
            "role": self.role,
        }


@dataclass(frozen=True, slots=True)
class ShardEntry:
    """One shard file (a zstd of a safetensors file, a frame for the header and one for each tensor, back to back)."""

    path: str
    size: int
    digest: Digest
    frames: tuple[FrameEntry, ...]

    def __post_init__(self) -> None:
        check_segment(self.path, "state index: shard path")
        what = f"state index: shard {shown(self.path)}"
        _FILE.check(self.size, f"{what}: size")
        check_digest(self.digest, f"{what}: digest")
        if not self.frames or self.frames[0].role != HEADER_ROLE:
            raise BadArtifact(f"{what}: the first frame is not the safetensors header")
        if any(frame.role == HEADER_ROLE for frame in self.frames[1:]):
            raise BadArtifact(f"{what}: a second header frame")
        end = 0
        for frame in self.frames:
            if frame.offset != end:
                raise BadArtifact(f"{what}: frame {shown(frame.name)} starts at byte {frame.offset}, not at {end}")
            end += frame.length
        if end != self.size:
            raise BadArtifact(f"{what}: frames end at byte {end} of {self.size}")

    @classmethod
    def from_fields(cls, fields: Fields) -> Self:
        """The entry of a JSON object; BadArtifact naming the field."""
        entry = cls(
            path=check_segment(fields.raw("path"), fields.name("path")),
            size=fields.integer("size", 1, LIMITS.file_bytes, "bytes"),
            digest=fields.digest("digest"),
            frames=tuple(map(FrameEntry.from_fields, fields.rows("frames", 1, LIMITS.tensors_per_state + 1))),
        )
        fields.done()
        return entry

    def to_value(self) -> dict[str, canonical.Value]:
        """The JSON object."""
        frames = [frame.to_value() for frame in self.frames]
        return {"digest": self.digest, "frames": frames, "path": self.path, "size": self.size}


@dataclass(frozen=True, slots=True)
class StateIndex:
    """Which frame of which shard holds which tensor; shard paths are relative to the folder of the index."""

    files: tuple[ShardEntry, ...]

    def __post_init__(self) -> None:
        if not self.files:
            raise BadArtifact("state index: no shards")
        check_distinct([*(shard.path for shard in self.files), DOCUMENT_FILE, INDEX_FILE], "state index")
        seen: set[tuple[str, str]] = set()
        for shard in self.files:
            for frame in shard.frames[1:]:
                if (frame.role, frame.name) in seen:
                    raise BadArtifact(f"state index: tensor {shown(frame.role + '/' + frame.name)} is stored twice")
                seen.add((frame.role, frame.name))

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The index of canonical JSON; BadArtifact naming the field."""
        what = "state index"
        fields = Fields(canonical.loads(data, what=what, limit=LIMITS.state_index_bytes), what)
        fields.format(INDEX_FORMAT)
        files = tuple(map(ShardEntry.from_fields, fields.rows("files", 1, LIMITS.shards_per_state)))
        fields.done()
        return cls(files)

    def encode(self) -> bytes:
        """Canonical JSON."""
        value = {"files": [shard.to_value() for shard in self.files], "format": INDEX_FORMAT}
        return canonical.dumps(value, what="state index")

    def check_covers(self, document: StateDocument) -> None:
        """Every tensor of the document is stored exactly once and with its size; BadArtifact naming the tensor."""
        stored = {(f.role, f.name): f.raw_length for shard in self.files for f in shard.frames[1:]}
        for entry in document.tensors:
            found = stored.pop(entry.order, None)
            label = shown(f"{entry.role}/{entry.name}")
            if found is None:
                raise BadArtifact(f"state index: tensor {label} of the state document is not stored")
            if found != entry.nbytes:
                raise BadArtifact(f"state index: tensor {label} has {found} bytes, its shape needs {entry.nbytes}")
        if stored:
            role, name = min(stored)
            raise BadArtifact(f"state index: tensor {shown(f'{role}/{name}')} is not in the state document")
