"""Every format behind one signature: bytes in, the bytes that the parsed value prints out."""

from __future__ import annotations

from collections.abc import Callable

from auditkit.formats import bits, canonical
from auditkit.formats.blocks import Block, BlockIndex
from auditkit.formats.checkpoint import Checkpoint
from auditkit.formats.compact import CompactRecords
from auditkit.formats.corpus import CorpusIndex
from auditkit.formats.digest import check_digest
from auditkit.formats.dsse import Envelope
from auditkit.formats.leaves import LeavesFile
from auditkit.formats.note import NoteKey, SignedNote
from auditkit.formats.paths import check_path
from auditkit.formats.policy import Policy
from auditkit.formats.recipe import Recipe
from auditkit.formats.record import RecordFile, StepRecord
from auditkit.formats.run import RunManifest
from auditkit.formats.safetensors import SafetensorsHeader
from auditkit.formats.segment import SegmentRecord, parse_entry
from auditkit.formats.shards import ShardedCorpus
from auditkit.formats.state import StateDocument, StateIndex
from auditkit.formats.statement import Statement
from auditkit.formats.step_audit import StepAudit
from auditkit.formats.stream import StreamIndex
from auditkit.formats.svr import SimpleResult
from auditkit.formats.tiles import decode_entries, encode_entries
from auditkit.formats.tlog_proof import LogProof
from auditkit.formats.trace import Trace
from auditkit.formats.zstd import decompress
from tests.formats import samples
from tests.vectors import bad_logs

ZSTD_SIZE = 16  # what the zstd vectors must decompress to


def _json(data: bytes) -> bytes:
    return canonical.dumps(canonical.loads(data, what="document", limit=1 << 20))


def _safetensors(data: bytes) -> bytes:
    header = SafetensorsHeader.parse(data, len(data))
    return header.encode() + data[len(header.encode()) :]


def _leaves(data: bytes) -> bytes:
    return LeavesFile.parse(data, micro_batches=samples.MICRO_BATCHES).encode()


def _compact(data: bytes) -> bytes:
    return CompactRecords.parse(data, micro_batches=samples.MICRO_BATCHES).encode()


def _predicate(kind: type[StepAudit] | type[SimpleResult]) -> Callable[[bytes], bytes]:
    """A predicate by itself, as canonical JSON."""
    return lambda data: canonical.dumps(
        kind.from_value(canonical.loads(data, what="predicate", limit=1 << 16)).to_value()
    )


def _policy(data: bytes) -> bytes:
    """People write policies in any spelling of TOML, so there is no other form to print."""
    Policy.parse(data)
    return data


def _zstd(data: bytes) -> bytes:
    decompress(data, size=ZSTD_SIZE, what="frame")
    return data


def _text(check: Callable[[str], str]) -> Callable[[bytes], bytes]:
    """For the small text forms; surrogateescape keeps bytes that are not UTF-8."""
    return lambda data: check(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


PARSERS: dict[str, Callable[[bytes], bytes]] = {
    "block": lambda data: Block.parse(data).encode(),
    "block_index": lambda data: BlockIndex.parse(data).encode(),
    "canonical": _json,
    "checkpoint": _text(lambda text: Checkpoint.parse(text).text()),
    "compact_records": _compact,
    "corpus": lambda data: CorpusIndex.parse(data).encode(),
    "entries": lambda data: encode_entries(decode_entries(data, bad_logs.BUNDLE_WIDTH)),
    "digest": _text(lambda text: check_digest(text, "digest")),
    "envelope": lambda data: Envelope.parse(data).encode(),
    "f32": _text(lambda text: bits.f32_text(bits.parse_f32(text))),
    "f64": _text(lambda text: bits.f64_text(bits.parse_f64(text))),
    "leaves": _leaves,
    "log_entry": lambda data: parse_entry(data).encode(),
    "log_proof": lambda data: LogProof.parse(data).encode(),
    "note": lambda data: SignedNote.parse(data).encode(),
    "path": _text(lambda text: check_path(text, "path")),
    "policy": _policy,
    "recipe": lambda data: Recipe.parse(data).encode(),
    "record": lambda data: StepRecord.parse(data).encode(),
    "records": lambda data: RecordFile.parse(data).encode(),
    "run": lambda data: RunManifest.parse(data).encode(),
    "run_segments": lambda data: RunManifest.parse(data).encode(),
    "run_segments_windows": lambda data: RunManifest.parse(data).encode(),
    "run_sources": lambda data: RunManifest.parse(data).encode(),
    "run_sources_windows": lambda data: RunManifest.parse(data).encode(),
    "run_signed": lambda data: RunManifest.parse(data).encode(),
    "run_windows": lambda data: RunManifest.parse(data).encode(),
    "safetensors": _safetensors,
    "segment": lambda data: SegmentRecord.parse(data).encode(),
    "shards": lambda data: ShardedCorpus.parse(data).encode(),
    "state": lambda data: StateDocument.parse(data).encode(),
    "state_index": lambda data: StateIndex.parse(data).encode(),
    "statement": lambda data: Statement.parse(data).encode(),
    "step_audit": _predicate(StepAudit),
    "stream_index": lambda data: StreamIndex.parse(data).encode(),
    "svr": _predicate(SimpleResult),
    "trace": lambda data: Trace.parse(data).encode(),
    "vkey": _text(lambda text: NoteKey.parse(text).text),
    "zstd": _zstd,
}
