"""Backups: one file for either kind of database, made while the registry serves, believed only as far as it proves.

A zstd file of JSON lines: a head, the runs and keys, every envelope with the time it came, and a last line with their
number and the RFC 6962 root over them, which is the log's. Attestations are only ever added, so those below a position
read once are one state of the database, without holding a transaction open. Leases are not kept: they run out.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import zstandard

from auditkit.errors import BadArtifact, Untrusted, UsageError
from auditkit.formats import canonical, merkle
from auditkit.formats.canonical import Value
from auditkit.formats.fields import Fields
from auditkit.formats.limits import LIMITS
from auditkit.registry.checking import stored_form
from auditkit.registry.database import Database, New, add_run, append, count
from auditkit.registry.engine import Session
from auditkit.store.disk import reading
from auditkit.store.progress import Progress
from auditkit.trust.attested import read_attestation
from auditkit.trust.disk import writing
from auditkit.trust.keys import PublicKey

FORMAT = "auditkit/registry-backup/v1"
LINE_BYTES = 2 * LIMITS.log_entry_bytes
PAGE = 512  # attestations at once
NO_LIMIT = 1 << 60
PIECE_BYTES = 1024  # decompressed at once: what a piece can grow to must fit in memory
DAMAGED = "use another copy of it"


def backup(database: Database, path: Path, progress: Progress) -> tuple[int, str]:
    """Write a backup of what is stored now; gives the number of attestations and the log's root over them.

    UsageError: there is something at `path`, which stays. The file gets its name when it is complete.
    """
    _require_free(path)
    stop, tree = database.size(), merkle.Frontier()
    draft = path.with_name(f".tmp-{secrets.token_hex(8)}")
    progress.start("backup", stop, "attestations")
    try:
        with writing(path), draft.open("xb") as raw:
            with zstandard.ZstdCompressor(level=3, write_checksum=True).stream_writer(raw, closefd=False) as file:
                file.write(_head(database, stop))
                for when, body in _rows(database, stop):
                    tree.append(merkle.leaf_hash(body))
                    file.write(_line({"received": when, "envelope": body.decode("utf-8")}))
                    progress.advance(1)
                file.write(_line({"attestations": stop, "root": tree.root().hex()}))
            raw.flush()
            os.fsync(raw.fileno())
        _require_free(path)
        with writing(path):
            os.replace(draft, path)
    finally:
        progress.finish()
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    return stop, tree.root().hex()


def restore(database: Database, path: Path, progress: Progress) -> tuple[int, str]:
    """Store a backup in a database without attestations, all or nothing; gives number and root as `backup` did.

    Every signature is verified again. Untrusted: the backup of another registry, or what it holds is not what it says;
    BadArtifact: damaged; UsageError: the database is not empty.
    """
    _require_whole(path)
    with reading(path), path.open("rb") as raw:
        lines = _lines(raw, str(path))
        head = Fields(next(lines), str(path))
        head.format(FORMAT)
        if head.text("vkey", limit=LIMITS.url_characters) != database.meta["vkey"]:
            raise Untrusted(f"{path} is a backup of another registry: its log has another key")
        stop = head.integer("attestations")
        head.done()
        progress.start("restore", stop, "attestations")
        try:
            with database.engine.writing() as session:
                if count(session):
                    raise UsageError("the database holds attestations already", hint="restore into a fresh registry")
                return _Restoring(session, str(path), stop, progress).run(lines)
        finally:
            progress.finish()


class _Restoring:
    """The lines of one backup on their way into one transaction."""

    def __init__(self, session: Session, what: str, stop: int, progress: Progress) -> None:
        self._session, self._what, self._stop, self._progress = session, what, stop, progress
        self._runs: dict[str, int] = {}
        self._keys: dict[str, PublicKey] = {}
        self._tree = merkle.Frontier()
        self._group: list[New] = []

    def run(self, lines: Iterator[Value]) -> tuple[int, str]:
        """Take every line, the last of which must agree with those before."""
        for value in lines:
            fields = Fields(value, self._what)
            if "envelope" in value:
                self._attestation(fields)
            elif "run" in value:
                run_id = bytes.fromhex(fields.digest("run"))
                self._runs[run_id.hex()] = add_run(
                    self._session, run_id, fields.text("name"), fields.integer("steps", 1, LIMITS.steps)
                )
            elif "key" in value:
                key = PublicKey(bytes.fromhex(fields.digest("key")))
                self._keys[key.keyid] = key
            else:
                return self._end(fields, lines)
            fields.done()
        raise BadArtifact(f"{self._what}: the last line is missing (truncated?)")

    def _attestation(self, fields: Fields) -> None:
        data = fields.text("envelope", limit=LINE_BYTES).encode("utf-8")
        attested = read_attestation(data, self._keys)
        if attested.run_id not in self._runs:
            raise BadArtifact(f"{self._what}: an attestation of run {attested.run_id}, which it does not list")
        new = stored_form(
            data, attested, self._keys[attested.keyid], self._runs[attested.run_id], now=fields.integer("received")
        )
        self._tree.append(new.leaf)
        self._group.append(new)
        self._progress.advance(1)
        if len(self._group) == PAGE:
            self._flush()

    def _flush(self) -> None:
        for new, stored in zip(self._group, append(self._session, self._group, most=NO_LIMIT), strict=True):
            if stored.known:
                raise BadArtifact(f"{self._what}: attestation {new.envelope.hex()} occurs twice")
        self._group = []

    def _end(self, fields: Fields, lines: Iterator[Value]) -> tuple[int, str]:
        self._flush()
        size, root = self._tree.size, self._tree.root().hex()
        if next(lines, None) is not None:
            raise BadArtifact(f"{self._what}: lines after the last one")
        if (fields.integer("attestations"), fields.digest("root")) != (size, root) or size != self._stop:
            raise Untrusted(f"{self._what}: {size} attestations with root {root}, which its last line does not say")
        fields.done()
        return size, root


def _require_free(path: Path) -> None:
    if os.path.lexists(path):
        raise UsageError(f"{path} exists and is never overwritten", hint="choose another name")


def _require_whole(path: Path) -> None:
    """BadArtifact unless zstd's checksum holds over the whole file: what is damaged is not to look forged."""
    with reading(path), path.open("rb") as raw:
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            while not frame.eof and (data := raw.read(PIECE_BYTES)):
                frame.decompress(data)
        except zstandard.ZstdError as error:
            raise BadArtifact(f"{path}: not a backup, or damaged: {error}", hint=DAMAGED) from None
        if not frame.eof:
            raise BadArtifact(f"{path}: cut off, or damaged", hint=DAMAGED)


def _line(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=True).encode("ascii") + b"\n"


def _head(database: Database, stop: int) -> bytes:
    """The first lines. Runs and keys are read after `stop` was, so those of all attestations below it are there."""
    lines = [{"format": FORMAT, "vkey": database.meta["vkey"], "attestations": stop}]
    lines += [{"run": run.hex(), "name": name, "steps": size} for _, run, name, size in database.runs()]
    lines += [{"key": public.hex()} for _, (_, public) in sorted(database.keys().items())]
    return b"".join(map(_line, lines))


def _rows(database: Database, stop: int) -> Iterator[tuple[int, bytes]]:
    for first in range(0, stop, PAGE):
        yield from database.received(first, most=min(PAGE, stop - first))


def _lines(raw: IO[bytes], what: str) -> Iterator[Value]:
    """The JSON values of a compressed file, one a line, at least one; BadArtifact for anything else."""
    reader = zstandard.ZstdDecompressor(max_window_size=LIMITS.zstd_window_bytes).stream_reader(raw)
    text, number = io.BufferedReader(reader), 0
    while True:
        try:
            line = text.readline(LINE_BYTES + 1)
        except zstandard.ZstdError as error:
            raise BadArtifact(f"{what}: not a backup, or damaged: {error}") from None
        if not line and number:
            return
        number += 1
        if not line.endswith(b"\n"):
            raise BadArtifact(f"{what}: line {number} is too long or cut off")
        yield canonical.loads_relaxed(line, what=f"{what}: line {number}", limit=LINE_BYTES)
