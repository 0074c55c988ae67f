"""Makes the vectors of the formats: valid files with their digests, and bad ones that each name the error they cause.

    python -m tests.vectors.make_formats [FOLDER]

One file a format: {"format", "parser", "good": [{"name", BYTES, "digest", ...}], "bad": [{"name", BYTES, "error"}]}.
A bad vector is a BAD_ARTIFACT unless it has a "verdict".
BYTES is "text" (UTF-8) or, for anything else, "hex". An error that ends in "..." is the beginning of the message.
tests/formats/test_vectors.py makes the files again, compares every byte, and runs every vector.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from auditkit.formats import canonical
from auditkit.formats.digest import content_digest
from auditkit.formats.leaves import micro_root
from auditkit.formats.record import log_root
from auditkit.formats.stream import batch_digest
from auditkit.formats.tensors import TensorEntry, gradient_root
from tests.formats import samples, segmented, sources
from tests.vectors import (
    bad_attestations,
    bad_bytes,
    bad_documents,
    bad_logs,
    bad_runs,
    bad_segments,
    bad_sources,
    bad_traces,
)

FORMAT = "auditkit/vectors/v1"
FOLDER = Path(__file__).parent / "formats"

GRADIENTS = [TensorEntry.of(name, "grad", samples.array(0, 2, 2).astype("<i8")) for name in ("norm", "embedding")]

Good = tuple[str, bytes, dict[str, Any]]

DOCUMENTS = {
    "corpus": (samples.CORPUS.encode(), bad_documents.CORPUS),
    "recipe": (samples.RECIPE.encode(), bad_documents.RECIPE),
    "record": (samples.CHAIN[1].encode(), bad_documents.RECORD),
    "log_entry": (segmented.SEGMENT.encode(), bad_segments.LOG_ENTRY),
    "run": (samples.RUN.encode(), bad_runs.RUN),
    "run_segments": (segmented.RUN.encode(), bad_segments.RUN_SEGMENTS),
    "run_segments_windows": (segmented.WINDOWS_RUN.encode(), bad_segments.RUN_SEGMENTS_WINDOWS),
    "segment": (segmented.SEGMENT.encode(), bad_segments.SEGMENT),
    "run_sources": (sources.RUN.encode(), bad_sources.RUN_SOURCES),
    "run_sources_windows": (sources.WINDOWS_RUN.encode(), bad_sources.RUN_SOURCES_WINDOWS),
    "shards": (sources.SHARDS.encode(), bad_sources.SHARDS),
    "run_signed": (samples.SIGNED_RUN.encode(), bad_runs.RUN_SIGNED),
    "run_windows": (samples.WINDOWS_RUN.encode(), bad_runs.RUN_WINDOWS),
    "state": (samples.DOCUMENT.encode(), bad_documents.STATE),
    "state_index": (samples.INDEX.encode(), bad_documents.STATE_INDEX),
    "trace": (samples.TRACE.encode(), bad_traces.TRACE),
}

ROOTS: dict[str, dict[str, Any]] = {  # what the sample of each format is called by the others
    "recipe": {"recipe_digest": samples.RECIPE.digest()},
    "run": {"run_id": samples.RUN_ID},
    "run_segments": {
        "run_id": samples.RUN_ID,
        "records": segmented.RECORDS.encode().hex(),
        "entries": [entry.encode().decode("ascii") for entry in segmented.ENTRIES],
        "cursors": [segment.sequence for segment in segmented.TIMELINE.segments],
    },
    "run_segments_windows": {"run_id": samples.WINDOWS_RUN_ID},
    "segment": {"record_digest": segmented.SEGMENT.digest()},
    "run_signed": {"run_id": samples.RUN_ID},
    "run_sources": {"run_id": sources.RUN.run_id()},
    "run_sources_windows": {"run_id": sources.WINDOWS_RUN.run_id()},
    "run_windows": {"run_id": samples.WINDOWS_RUN_ID},
    "compact_records": {
        "state0": samples.WINDOWS_CHAIN[0].state_before,
        "run_id": samples.WINDOWS_RUN_ID,
        "micro_batches": samples.MICRO_BATCHES,
        "batches": [record.batch for record in samples.WINDOWS_CHAIN],
        "losses": [f"f32:{record.loss:08x}" for record in samples.WINDOWS_CHAIN],
        "rates": [f"f32:{record.lr:08x}" for record in samples.WINDOWS_CHAIN],
        "log_root": log_root(samples.WINDOWS_CHAIN),
        "last_record": samples.WINDOWS_CHAIN[-1].encode().decode("ascii"),
    },
    "state": {"state_root": samples.DOCUMENT.root()},
    "records": {
        "state0": samples.CHAIN[0].state_before,
        "run_id": samples.RUN_ID,
        "micro_batches": samples.MICRO_BATCHES,
        "log_root": log_root(samples.CHAIN),
        "last_record": samples.CHAIN[-1].encode().decode("ascii"),
    },
    "leaves": {"micro_roots": [micro_root(step) for step in samples.LEAVES.steps]},
    "stream_index": {"batch_digests": [batch_digest(batch) for batch in samples.BATCHES]},
}

BINARY: dict[str, tuple[list[Good], list[bad_bytes.Case]]] = {
    "block": (bad_sources.BLOCK_GOOD, bad_sources.BLOCK),
    "block_index": (
        [("two", sources.BLOCKS.encode(), {"shard": sources.BLOCKS.shard().to_value()})],
        bad_sources.BLOCK_INDEX,
    ),
    "canonical": (
        [
            ("integers", b"[-9007199254740991,0,9007199254740991]", {}),
            ("escapes", b'"\\b\\t\\n\\f\\r\\"\\\\/\\u0000\\u001f\x7f"', {}),
            ("key order is that of UTF-16", '{"":1,"\\r":2,"1":3,"\u00e9":4,"\U0001f600":5,"\uff61":6}'.encode(), {}),
            ("16 levels", b"[" * 16 + b"]" * 16, {}),
        ],
        bad_bytes.CANONICAL,
    ),
    "checkpoint": (bad_logs.CHECKPOINT_GOOD, bad_logs.CHECKPOINT),
    "compact_records": (
        [("three", samples.COMPACT.encode(), ROOTS["compact_records"]), ("none", samples.COMPACT.encode()[:16], {})],
        bad_bytes.COMPACT,
    ),
    "digest": ([("zeros", b"0" * 64, {}), ("of nothing", content_digest(b"").encode(), {})], bad_bytes.DIGEST),
    "entries": (bad_logs.ENTRIES_GOOD, bad_logs.ENTRIES),
    "f32": ([("one", b"f32:3f800000", {}), ("least", b"f32:00000001", {}), ("-0", b"f32:80000000", {})], bad_bytes.F32),
    "f64": ([("one", b"f64:3ff0000000000000", {}), ("least", b"f64:0000000000000001", {})], bad_bytes.F64),
    "leaves": (
        [("three steps of two", samples.LEAVES.encode(), ROOTS["leaves"]), ("none", samples.LEAVES.encode()[:16], {})],
        bad_bytes.LEAVES,
    ),
    "log_proof": (bad_logs.LOG_PROOF_GOOD, bad_logs.LOG_PROOF),
    "note": (bad_logs.NOTE_GOOD, bad_logs.NOTE),
    "path": (
        [(name, name.encode(), {}) for name in ("run.json", "states/00000500/shard-00000.safetensors.zst", "_+/CONF")],
        bad_bytes.PATH,
    ),
    "records": (
        [("three", samples.RECORDS.encode(), ROOTS["records"]), ("none", samples.RECORDS.encode()[:16], {})],
        bad_bytes.RECORDS,
    ),
    "safetensors": (
        [
            ("six tensors", samples.SAFETENSORS, {}),
            ("empty and scalar", bad_bytes.header(
                {"e": bad_bytes.tensor(0, 0, [0, 5]), "s": bad_bytes.tensor(0, 4, [])}, b"\0" * 4), {}),
            ("other order, spaces", bad_bytes.header(
                b'{ "b" : {"shape":[1],"data_offsets":[1,2],"dtype":"U8"},'
                b'"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]} }  ', b"ab"), {}),
            ("one metadata key", bad_bytes.header({"__metadata__": {"format": "np"}}), {}),
        ],
        bad_bytes.SAFETENSORS,
    ),
    "stream_index": (
        [("three", samples.STREAM.encode(), ROOTS["stream_index"]), ("none", samples.STREAM.encode()[:16], {})],
        bad_bytes.STREAM_INDEX,
    ),
    "vkey": (bad_logs.VKEY_GOOD, bad_logs.VKEY),
    "zstd": ([(name, data, {}) for name, data in bad_bytes.ZSTD_GOOD], bad_bytes.ZSTD),
}  # fmt: skip


def written(data: bytes) -> dict[str, str]:
    """Bytes as "text" where they are printable UTF-8, else as "hex"."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return {"hex": data.hex()}
    return {"text": text} if text.isprintable() and len(text) < 10_000 else {"hex": data.hex()}


def bad_edits(sample: bytes, cases: list[bad_documents.Case]) -> list[bad_bytes.Case]:
    """The bytes of each edited document."""
    value = json.loads(sample)
    return [(name, canonical.dumps(bad_documents.edited(value, path, new)), error) for name, path, new, error in cases]


def verdict(error: str) -> dict[str, str]:
    """The verdict of an error where it is not BAD_ARTIFACT."""
    return {"verdict": "UNSUPPORTED"} if " is newer than " in error or "this verifier knows" in error else {}


def vector_file(parser: str, good: list[Good], bad: list[bad_bytes.Case]) -> bytes:
    """One vector file: JSON with one vector a line."""
    lines = [{"name": name, **written(data), "digest": content_digest(data), **extra} for name, data, extra in good]
    faults = [{"name": name, **written(data), "error": error, **verdict(error)} for name, data, error in bad]
    listed = [",\n".join(json.dumps(line) for line in part) for part in (lines, faults)]
    head = f'{{"format": "{FORMAT}", "parser": "{parser}",\n"good": [\n{listed[0]}\n],\n"bad": [\n{listed[1]}\n]}}\n'
    return head.encode("utf-8")


def make() -> dict[str, bytes]:
    """All files by name."""
    files = {}
    for parser, (sample, edits) in DOCUMENTS.items():
        good: list[Good] = [("sample", sample, ROOTS.get(parser, {}))]
        files[f"{parser}.json"] = vector_file(parser, good, bad_edits(sample, edits))
    for parser, (good, bad) in {**BINARY, **bad_attestations.files()}.items():
        files[f"{parser}.json"] = vector_file(parser, good, bad)
    files["gradient.json"] = vector_file(
        "gradient",
        [("two", b"", {"tensors": [entry.to_value() for entry in GRADIENTS], "root": gradient_root(GRADIENTS)})],
        [],
    )
    return files


def main() -> None:
    """Write the files into the folder given, or into tests/vectors/formats."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in make().items():
        (folder / name).write_bytes(data)


if __name__ == "__main__":
    main()
