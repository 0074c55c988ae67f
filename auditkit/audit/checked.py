"""Attestations that were verified, as columns, and the files in which the user's cache remembers them.

Verifying a signature costs a hundred times what hashing its file costs, so what was verified is remembered by the
SHA-256 of the envelope's bytes. What a remembered row claims is complete: this envelope was signed by this key and is
about this record (SHA-256) of this step of this run. Whoever uses it compares run, record and key with those at hand
(`Memory.load`), so nothing that was verified for another run, another record or another key is ever believed. Each file
ends with a digest of all before; one that does not fit it, or says anything unexpected, is passed over, and what it
held is verified again.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import mmap
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from auditkit.audit.record_table import RecordTable
from auditkit.audit.source import source_files
from auditkit.errors import AuditkitError, BadArtifact
from auditkit.formats import canonical
from auditkit.formats.digest import Digest, root
from auditkit.formats.fields import Fields
from auditkit.store.disk import writing
from auditkit.store.limits import STORE_LIMITS
from auditkit.store.owner import abandoned, unique_suffix
from auditkit.trust.rows import AUTOMATION, Rows
from auditkit.verdict import Verdict

Bytes = NDArray[np.uint8]

MAGIC = b"AUDITKIT-VER-v2\n"
CONTEXT = "auditkit verified attestations v1"
HEADER_BYTES = 256 * 1024 * 1024
FILE_BYTES = 4 * 1024 * 1024 * 1024
MAX_FILES = 8  # then they are joined into one
SUFFIX = ".verified"

_DECIDING = ("auditkit/audit/", "auditkit/formats/", "auditkit/trust/")
_ROW = np.dtype(
    [
        ("envelope", "u1", 32),
        ("record", "u1", 32),
        ("finished", "<i8"),
        ("step", "<u4"),
        ("key", "<u4"),
        ("family", "<u4"),
        ("outcome", "<i4"),
        ("part", "<i4"),
        ("verdict", "u1"),
        ("automation", "u1"),
    ]
)


@dataclass(frozen=True, eq=False)
class Checked:
    """Rows, and for each the SHA-256 of its envelope and of the record that it is about, (rows, 32) u8."""

    rows: Rows
    envelope: Bytes
    record: Bytes

    def __len__(self) -> int:
        return len(self.envelope)

    @classmethod
    def none(cls) -> Self:
        """No attestations."""
        return cls(Rows.of([]), np.zeros((0, 32), np.uint8), np.zeros((0, 32), np.uint8))

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """All of several parts."""
        if not parts:
            return cls.none()
        return cls(
            Rows.join([part.rows for part in parts]),
            np.concatenate([part.envelope for part in parts]),
            np.concatenate([part.record for part in parts]),
        )

    def take(self, chosen: NDArray[Any]) -> Self:
        """Those at some indices or under a mask."""
        return type(self)(self.rows.take(chosen), self.envelope[chosen], self.record[chosen])

    def compact(self) -> Self:
        """The same, without texts that no row refers to."""
        return type(self)(self.rows.compact(), self.envelope, self.record)

    def unique(self) -> Self:
        """Each envelope once."""
        order = np.argsort(_prefix(self.envelope), kind="stable")
        sorted_ = self.envelope[order]
        # Equal envelopes have equal prefixes. Another with the same prefix may lie between them: then one stays twice.
        again = np.concatenate(([False], (sorted_[1:] == sorted_[:-1]).all(axis=1))) if len(order) else order < 0
        return self.take(np.sort(order[~again]))

    def encode(self, scope: Digest) -> bytes:
        """A file of these rows."""
        rows, table = self.rows, np.zeros(len(self), _ROW)
        table["envelope"], table["record"] = self.envelope, self.record
        for name in ("finished", "step", "key", "family", "outcome", "part", "verdict", "automation"):
            table[name] = getattr(rows, name)
        header = canonical.dumps(
            {
                "families": rows.families,
                "keys": rows.keys,
                "outcomes": rows.outcomes,
                "parts": rows.parts,
                "rows": len(self),
                "scope": scope,
            }
        )
        body = MAGIC + len(header).to_bytes(8, "little") + header + table.tobytes()
        return body + bytes.fromhex(root(CONTEXT, body))

    @classmethod
    def parse(cls, data: bytes | mmap.mmap, scope: Digest) -> Self:
        """The rows of a file. BadArtifact: damaged, of another run, or of another version of the rules."""
        view = memoryview(data)
        if len(view) < len(MAGIC) + 40 or view[: len(MAGIC)] != MAGIC:
            raise BadArtifact("verified attestations: not such a file")
        if bytes.fromhex(root(CONTEXT, view[:-32])) != view[-32:]:
            raise BadArtifact("verified attestations: damaged")
        begin = len(MAGIC) + 8
        length = int.from_bytes(view[len(MAGIC) : begin], "little")
        header = Fields(
            canonical.loads(bytes(view[begin : begin + length]), what="header", limit=HEADER_BYTES), "header"
        )
        if header.digest("scope") != scope:
            raise BadArtifact("verified attestations: of another run, or accepted by another version")
        texts = {name: tuple(header.items(name, 0, len(view))) for name in ("keys", "families", "outcomes", "parts")}
        body = view[begin + length : -32]
        if len(body) != header.integer("rows") * _ROW.itemsize:
            raise BadArtifact("verified attestations: another number of rows")
        table = np.frombuffer(body, _ROW)
        header.done()
        return cls(_rows(table, texts), table["envelope"], table["record"])


def scope(run_id: Digest) -> Digest:
    """What remembered rows are bound to as a whole: the run, and everything that decides what is accepted.

    That is our own code for it and the library of signatures: what another version accepted is verified again.
    Unsupported: source files are missing.
    """
    own = {path: digest for path, digest in source_files().items() if path.startswith(_DECIDING)}
    library = {name: importlib.metadata.version(name) for name in ("cryptography", "securesystemslib")}
    return root(CONTEXT, canonical.dumps({"library": library, "run": run_id, "source": own}))


class Memory:
    """What was verified before for one run, ready to be looked up."""

    def __init__(self, checked: Checked) -> None:
        self.checked = checked
        prefix = _prefix(checked.envelope)
        self._order = np.argsort(prefix)
        self._prefix = prefix[self._order]

    @classmethod
    def load(cls, folder: Path | None, scope: Digest, records: RecordTable, keyids: Sequence[str]) -> Memory:
        """The rows of a folder's files that are about `records` and by one of `keyids`."""
        parts = [] if folder is None else [part for _, part in _files(folder, scope)]
        checked = Checked.join(parts)
        sound = np.isin(np.arange(len(checked.rows.keys)), _places(checked.rows.keys, keyids))[checked.rows.key]
        sound &= checked.rows.step < len(records)
        step = np.where(sound, checked.rows.step, 0)
        if len(records):
            sound &= (records.sha256[step] == checked.record).all(axis=1)
        return cls(checked if sound.all() else checked.take(sound))

    def find(self, envelope: Bytes) -> NDArray[np.int64]:
        """The index of each envelope's row, by SHA-256 (n, 32); -1 for those that are not here."""
        if not len(self.checked):
            return np.full(len(envelope), -1, np.int64)
        place = np.minimum(np.searchsorted(self._prefix, _prefix(envelope)), len(self._order) - 1)
        index = self._order[place]
        return np.where((self.checked.envelope[index] == envelope).all(axis=1), index, -1)


def remember(folder: Path, scope: Digest, new: Checked) -> None:
    """Keep what was verified; many files are joined into one. Unsupported: the disk refuses."""
    old = _files(folder, scope)
    joined = len(old) + 1 > MAX_FILES
    data = (Checked.join([*(part for _, part in old), new]).unique() if joined else new).encode(scope)
    final = folder / f"rows.{unique_suffix()}{SUFFIX}"
    with writing(final):
        folder.mkdir(parents=True, exist_ok=True)
        part = final.with_suffix(".part")
        try:
            part.write_bytes(data)
            part.replace(final)
        except OSError:
            part.unlink(missing_ok=True)
            raise
    for path in folder.glob("*.part"):
        if abandoned(path, now=time.time(), after_seconds=STORE_LIMITS.leftover_seconds):
            with contextlib.suppress(OSError):
                path.unlink()
    # Only once the new file has its name. A process that misses an old one verifies again.
    for path, _ in old if joined else []:
        with contextlib.suppress(OSError):
            path.unlink()


def _files(folder: Path, scope: Digest) -> list[tuple[Path, Checked]]:
    """The sound files of a folder; the others are removed where that is allowed: they would be read in vain again."""
    found = []
    for path in _listed(folder):
        try:
            found.append((path, Checked.parse(_mapped(path), scope)))
        except (AuditkitError, OSError, ValueError):
            with contextlib.suppress(OSError):
                path.unlink()
    return found


def _listed(folder: Path) -> Iterator[Path]:
    with contextlib.suppress(OSError):
        yield from sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX))


def _mapped(path: Path) -> mmap.mmap:
    """A file's bytes, shared by all processes that read it; ValueError for an empty one."""
    with path.open("rb") as file:
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _places(texts: Sequence[str], wanted: Sequence[str]) -> list[int]:
    known = set(wanted)
    return [place for place, text in enumerate(texts) if text in known]


def _prefix(digests: Bytes) -> NDArray[np.uint64]:
    return np.ascontiguousarray(digests[:, :8]).view("<u8").reshape(-1)


def _rows(table: NDArray[Any], texts: Mapping[str, tuple[Any, ...]]) -> Rows:
    """The columns of a file's rows; BadArtifact for an index or a code that means nothing."""
    for name, own in (("key", "keys"), ("family", "families"), ("outcome", "outcomes"), ("part", "parts")):
        column, least = table[name], -1 if name in ("outcome", "part") else 0
        if len(column) and not (least <= int(column.min()) and int(column.max()) < len(texts[own])):
            raise BadArtifact(f"verified attestations: {name} out of range")
    if not all(type(text) is str for own in texts.values() for text in own):
        raise BadArtifact("verified attestations: a name is not text")
    codes = [verdict.code for verdict in Verdict]
    if not np.isin(table["verdict"], codes).all() or (table["automation"] >= len(AUTOMATION)).any():
        raise BadArtifact("verified attestations: an unknown verdict")
    return Rows(
        step=table["step"].astype(np.int64),
        key=table["key"].astype(np.int32),
        verdict=table["verdict"].copy(),
        family=table["family"].astype(np.int32),
        automation=table["automation"].copy(),
        outcome=table["outcome"].astype(np.int32),
        finished=table["finished"].astype(np.int64),
        part=table["part"].astype(np.int32),
        keys=texts["keys"],
        families=texts["families"],
        outcomes=texts["outcomes"],
        parts=texts["parts"],
    )
