"""Signed runs for tests: a published run with the log of its records, honest or otherwise."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from auditkit.audit.signed_log import FOLDER, origin_of
from auditkit.formats.chain import log_entries
from auditkit.formats.digest import content_digest
from auditkit.formats.leaves import LEAF_BYTES
from auditkit.formats.merkle import leaf_hash, tree_root
from auditkit.formats.note import NoteKey, SignedNote
from auditkit.formats.record import RecordFile, expand, log_root
from auditkit.formats.run import Artifact, Log, RunManifest
from auditkit.formats.stream import FrameRow, StreamIndex
from auditkit.replay.run import open_run
from auditkit.trust import notes
from auditkit.trust.keys import PrivateKey
from auditkit.trust.log_writer import LogWriter
from tests.replay import make_run

PUBLISHER = PrivateKey(b"publisher of the signed test run")
SOMEBODY = PrivateKey(b"somebody else with a key of his ")


def manifest_of(run: Path) -> RunManifest:
    """The manifest in a run folder."""
    return RunManifest.parse((run / "run.json").read_bytes())


def change(run: Path, **changes: object) -> RunManifest:
    """Write the manifest with other fields."""
    made = replace(manifest_of(run), **changes)  # type: ignore[arg-type]
    (run / "run.json").write_bytes(made.encode())
    return made


def records_of(run: Path) -> list[bytes]:
    """The canonical records of a run, those of segments included, as its log holds them."""
    with open_run(str(run)) as opened:
        return [entry.encode() for entry in log_entries(opened.records, opened.timeline)]


def sign(
    run: Path, entries: Iterable[bytes] | None = None, *, private: PrivateKey = PUBLISHER, origin: str = ""
) -> Path:
    """Give a run folder a log of `entries` (its records) and name the key in its manifest."""
    made = records_of(run) if entries is None else list(entries)
    shutil.rmtree(run / FOLDER, ignore_errors=True)
    writer = LogWriter(run / FOLDER, origin or origin_of(manifest_of(run).run_id()), private)
    writer.append(made)
    change(run, publisher=writer.key)
    return run


def sign_lie(run: Path, entries: list[bytes]) -> Path:
    """Sign a log of other entries and let the manifest say the same: a liar who has the key."""
    root = tree_root([leaf_hash(entry) for entry in entries[: manifest_of(run).log.size]]).hex()
    change(run, log=replace(manifest_of(run).log, root=root))
    return sign(run, entries)


def copy(run: Path, target: Path) -> Path:
    """A copy of a run folder, to be changed."""
    return Path(shutil.copytree(run, target))


def files(run: Path) -> dict[str, bytes]:
    """A run folder as the files of a server."""
    return {p.relative_to(run).as_posix(): p.read_bytes() for p in run.rglob("*") if p.is_file()}


def key_of(run: Path) -> NoteKey:
    """The publisher's key in a manifest."""
    key = manifest_of(run).publisher
    assert key is not None
    return key


def cosign(run: Path, name: str, private: PrivateKey, time: int) -> None:
    """Add a witness's line to a run's checkpoint."""
    place = run / FOLDER / "checkpoint"
    note = SignedNote.parse(place.read_bytes())
    place.write_bytes(notes.cosign(note, name, private, time).encode())


LONG = 4000  # steps: enough that two bundles of the log are less than records.bin


def long_run(target: Path) -> Path:
    """A run of LONG steps of which 8 were trained, and whose further records claim what nobody ever computed.

    Every file has the size that its steps need, so that a verifier has a reason not to fetch all of them.
    """
    schedule = replace(make_run.RECIPE.schedule, total_steps=LONG)
    parts = make_run.train(make_run.STEPS, replace(make_run.RECIPE, schedule=schedule))
    run = make_run.publish(parts, target)
    trained = RecordFile.parse((run / "records.bin").read_bytes()).rows
    rows = (*trained, *[replace(trained[-1], batch=content_digest(b"nobody's"))] * (LONG - len(trained)))
    more, index = LONG - len(trained), StreamIndex.parse((run / "stream.idx").read_bytes())
    frames = [FrameRow(index.total_length + i, 1, 1, content_digest(b"")) for i in range(more)]
    leaves = bytes(more * parts.recipe.batch.micro_batches * LEAF_BYTES)
    (run / "records.bin").write_bytes(RecordFile(rows).encode())
    (run / "leaves.bin").write_bytes((run / "leaves.bin").read_bytes() + leaves)
    (run / "stream.bin").write_bytes((run / "stream.bin").read_bytes() + bytes(more))
    (run / "stream.idx").write_bytes(StreamIndex((*index.rows, *frames)).encode())
    before = manifest_of(run)
    chain = expand(
        rows,
        run_id=before.run_id(),
        numerics=1,
        micro_batches=parts.recipe.batch.micro_batches,
        state0=before.states[0].root,
    )
    listed = tuple(_listed(run, artifact) for artifact in before.artifacts)
    change(run, artifacts=listed, log=Log(LONG, log_root(chain)))
    return run


def _listed(run: Path, artifact: Artifact) -> Artifact:
    data = (run / artifact.path).read_bytes()
    return Artifact(artifact.path, len(data), content_digest(data))
