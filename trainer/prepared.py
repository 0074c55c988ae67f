"""What `prepare` made, as `run` and `publish` need it: `prepared.json`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditkit.errors import BadArtifact, UsageError
from auditkit.formats import canonical
from auditkit.formats.digest import Digest, Hasher, content_digest
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from auditkit.formats.recipe import Recipe
from auditkit.formats.run import DataSpec
from auditkit.formats.tensors import DTYPES
from trainer.disk import read_bytes
from trainer.work import Work

FORMAT = "auditkit/prepared/v1"
FORMAT_2 = "auditkit/prepared/v2"  # with declared sources
_CHUNK = 1 << 24  # bytes hashed at a time


@dataclass(frozen=True)
class Prepared:
    """The data section of the run manifest, the vocabulary, and the `tokens` ids of ids.bin with their BLAKE3.

    With declared sources `chunks` is that of the digests of their chunks (trainer/data/ids.py), else empty.
    """

    data: DataSpec
    vocab_size: int
    tokens: int
    ids: Digest
    chunks: Digest = ""

    def to_value(self) -> dict[str, canonical.Value]:
        """The JSON object."""
        more: dict[str, canonical.Value] = {"chunks": self.chunks} if self.data.sources else {}
        return {
            **more,
            "data": self.data.to_value(),
            "format": FORMAT_2 if self.data.sources else FORMAT,
            "ids": self.ids,
            "tokens": self.tokens,
            "vocab_size": self.vocab_size,
        }

    def encode(self) -> bytes:
        """Canonical JSON."""
        return canonical.dumps(self.to_value(), what="prepared.json")

    @classmethod
    def parse(cls, data: bytes) -> Prepared:
        """Read what `encode` wrote; raises `BadArtifact`."""
        what = "prepared.json"
        return cls.from_fields(Fields(canonical.loads(data, what=what, limit=LIMITS.manifest_bytes), what))

    @classmethod
    def from_fields(cls, fields: Fields) -> Prepared:
        """Read what `to_value` made; raises `BadArtifact`."""
        found = fields.choice("format", FORMAT, FORMAT_2)
        prepared = cls(
            DataSpec.from_fields(fields.fields("data")),
            fields.integer("vocab_size", 2, 1 << 20, "tokens"),
            fields.integer("tokens", 2, LIMITS.file_bytes, "tokens"),
            fields.digest("ids"),
            fields.digest("chunks") if found == FORMAT_2 else "",
        )
        if (found == FORMAT_2) != bool(prepared.data.sources):
            raise BadArtifact(f"{fields.what}: format {found} does not fit its data")
        fields.done()
        return prepared

    def check_recipe(self, recipe: Recipe) -> None:
        """Refuse a recipe for other data; raises `UsageError` naming both values."""
        for key, here, there in (
            ("vocab_size", self.vocab_size, recipe.model.vocab_size),
            ("context_length", self.data.context_length, recipe.model.context_length),
        ):
            if here != there:
                raise UsageError(
                    f"the recipe's model.{key} is {there}, but the data were prepared with {here}",
                    hint=f"set model.{key} = {here}, or prepare again",
                )


def load(work: Work) -> Prepared:
    """What was prepared in a work folder; raises `UsageError` if nothing was, `BadArtifact` if it has changed since."""
    if not work.prepared.is_file():
        raise UsageError(f"{work.folder}: not prepared", hint="python -m trainer prepare TEXT_DIR WORK ..")
    prepared = Prepared.parse(read_bytes(work.prepared))
    check_files(work, prepared)
    return prepared


def check_files(work: Work, prepared: Prepared) -> None:
    """Corpus index and tokenizer are those that were prepared; raises `BadArtifact`."""
    for path, digest in ((work.corpus, prepared.data.corpus.digest), (work.tokenizer, prepared.data.tokenizer.digest)):
        if content_digest(read_bytes(path)) != digest:
            raise BadArtifact(f"{path}: changed since it was prepared", hint="prepare again in another folder")


def open_ids(work: Work, prepared: Prepared) -> NDArray[Any]:
    """The joined ids (tokens,) uint16 or uint32, mapped from the disk; raises `BadArtifact` if they have changed."""
    dtype = DTYPES[prepared.data.dtype]
    size = work.ids.stat().st_size if work.ids.is_file() else 0
    if size != prepared.tokens * dtype.itemsize:
        raise BadArtifact(f"{work.ids}: {size} bytes, not {prepared.tokens * dtype.itemsize}")
    ids = np.memmap(work.ids, dtype=dtype, mode="r")
    hasher = Hasher()
    step = _CHUNK // dtype.itemsize
    for start in range(0, prepared.tokens, step):
        hasher.update(ids[start : start + step])
    if hasher.hexdigest() != prepared.ids:
        raise BadArtifact(f"{work.ids}: changed since it was prepared", hint="prepare again in another folder")
    return ids
