"""Hypothesis strategies for valid values of every format, and for damaged files."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from auditkit.formats import recipe as r
from auditkit.formats.blocks import Block, BlockDocument, BlockIndex, BlockRow
from auditkit.formats.compact import CompactRecords, CompactRow
from auditkit.formats.corpus import CorpusIndex, Document
from auditkit.formats.leaves import LeavesFile, MicroBatchLeaf
from auditkit.formats.paths import check_path
from auditkit.formats.record import RecordFile, RecordRow, StepRecord
from auditkit.formats.safetensors import ITEM_BYTES, SafetensorsHeader
from auditkit.formats.segment import SegmentRecord
from auditkit.formats.shards import Shard, ShardedCorpus, SourceShards
from auditkit.formats.state import HEADER_ROLE, STATE_ROLES, FrameEntry, ShardEntry, StateDocument, StateIndex
from auditkit.formats.stream import FrameRow, StreamIndex
from auditkit.formats.tensors import TensorEntry

counts = st.integers(0, (1 << 53) - 1)
digests = st.binary(min_size=32, max_size=32).map(bytes.hex)
patterns = st.integers(0, (1 << 32) - 1).filter(lambda bits: bits & 0x7F800000 != 0x7F800000)
names = st.from_regex(r"[a-zA-Z0-9_][a-zA-Z0-9_.-]{0,8}", fullmatch=True)
shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)
segments = st.from_regex(r"[a-bA-B0-1_][a-b._+-]{0,3}[a-b_]", fullmatch=True)
paths = st.lists(segments, min_size=1, max_size=3).map("/".join).map(lambda path: check_path(path, "path"))

texts = st.text(max_size=6)
json_values = st.recursive(
    st.booleans() | st.integers(-(1 << 53) + 1, (1 << 53) - 1) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=12,
)


def f32(low: float, high: float) -> st.SearchStrategy[float]:
    """binary32 numbers in low..high without minus zero."""
    return st.floats(low, high, width=32).map(lambda x: x + 0.0)


def f64(low: float, high: float = 1e300) -> st.SearchStrategy[float]:
    """binary64 numbers in low..high without minus zero."""
    return st.floats(low, high).map(lambda x: x + 0.0)


TINY32: float = struct.unpack("<f", b"\x01\0\0\0")[0]
TINY64 = math.ulp(0.0)
BELOW_ONE = math.nextafter(1.0, 0.0)


@st.composite
def recipes(draw: st.DrawFn) -> r.Recipe:
    """Valid recipes of any shape."""
    kv_heads, context, total = draw(st.integers(1, 64)), draw(st.integers(1, 1 << 20)), draw(st.integers(1, 10_000_000))
    kind, sequences = draw(st.sampled_from(["cosine", "wsd"])), draw(st.integers(1, 1 << 20))
    warmup, peak = draw(st.integers(0, total)), draw(f64(0.0))
    model = r.ModelConfig(
        vocab_size=draw(st.integers(2, 1 << 20)),
        hidden_size=draw(st.integers(1, 1 << 20)),
        num_layers=draw(st.integers(1, 4096)),
        num_heads=kv_heads * draw(st.integers(1, 64)),
        num_kv_heads=kv_heads,
        head_dim=2 * draw(st.integers(1, 2048)),
        ffn_size=draw(st.integers(1, 1 << 22)),
        context_length=context,
        rope_theta=draw(f64(1.0, 1e12)),
        norm_eps=draw(f32(TINY32, 1.0)),
        tied_head=draw(st.booleans()),
        qk_norm=draw(st.booleans()),
        sliding_window=draw(st.integers(0, context)),
    )
    beta, positive = f64(0.0, BELOW_ONE), f64(TINY64)
    optimizer = r.OptimizerConfig(
        "adamw", draw(beta), draw(beta), draw(f32(TINY32, 1.0)), draw(f64(0.0)), draw(f32(0.0, 2.0**100))
    )
    decay = draw(st.integers(0, total - warmup)) if kind == "wsd" else 0
    bits, folds = st.sampled_from([14, 21]), st.lists(st.integers(2, 1 << 20), max_size=8).map(tuple)
    rule = r.DivergenceConfig(draw(st.sampled_from(["stop", "skip"])), draw(f32(0.0, 2.0**100)))
    return r.Recipe(
        model=model,
        loss=r.LossConfig(draw(f32(0.0, 2.0**100))),
        optimizer=optimizer,
        schedule=r.ScheduleConfig(kind, peak, draw(f64(0.0, peak)), warmup, decay, total),
        batch=r.BatchConfig(sequences, draw(st.integers(1, sequences))),
        numerics=r.NumericsConfig(1, "fx", draw(bits), draw(bits), draw(folds)),
        init=r.InitConfig(draw(counts), draw(positive), draw(positive)),
        divergence=draw(st.sampled_from([r.DivergenceConfig(), rule])),
    )


@st.composite
def tensor_entries(draw: st.DrawFn) -> TensorEntry:
    """Float32 tensors of a state."""
    return TensorEntry(draw(names), draw(st.sampled_from(STATE_ROLES)), "F32", draw(shapes), draw(digests))


entry_lists = st.lists(tensor_entries(), min_size=1, max_size=5, unique_by=lambda entry: entry.order)
documents = st.builds(StateDocument.of, st.integers(0, 10_000_000), counts, counts, digests, entry_lists)


@st.composite
def state_indexes(draw: st.DrawFn) -> StateIndex:
    """Indexes of one to three shards, frames back to back."""
    entries = draw(entry_lists)
    cuts = sorted(draw(st.lists(st.integers(0, len(entries)), max_size=2)))
    files = []
    for number, (begin, end) in enumerate(zip([0, *cuts], [*cuts, len(entries)], strict=True)):
        labels = [("", HEADER_ROLE, draw(counts) % 10**8)] + [(e.name, e.role, e.nbytes) for e in entries[begin:end]]
        frames, offset = [], 0
        for name, role, raw in labels:
            length = draw(st.integers(1, 1 << 40))
            frames.append(FrameEntry(name, role, offset, length, raw))
            offset += length
        files.append(ShardEntry(f"shard-{number}.zst", offset, draw(digests), tuple(frames)))
    return StateIndex(tuple(files))


rows = st.builds(RecordRow, digests, digests, digests, digests, patterns, patterns, patterns)
record_files = st.lists(rows, max_size=4).map(tuple).map(RecordFile)


@st.composite
def step_records(draw: st.DrawFn) -> StepRecord:
    """Records of any step."""
    step = draw(st.integers(0, 9_999_999))
    previous = draw(digests) if step else "0" * 64
    fixed = [draw(digests) for _ in range(5)]
    count, root = draw(st.integers(1, 1 << 20)), draw(digests)
    numbers = [draw(patterns) for _ in range(3)]
    return StepRecord(fixed[0], step, previous, *fixed[1:], count, root, *numbers, draw(st.integers(1, 65536)))


segment_records = st.builds(
    SegmentRecord, digests, st.integers(1, 9_999_999), digests, digests, digests, counts, digests, digests
).filter(lambda record: record.state_before != record.state_after)

leaves = st.builds(MicroBatchLeaf, st.integers(-(1 << 63), (1 << 63) - 1), digests)
leaves_files = st.lists(st.tuples(leaves, leaves), max_size=3).map(lambda steps: LeavesFile(2, tuple(steps)))

compact_rows = st.builds(CompactRow, digests, digests, patterns, st.tuples(leaves, leaves))
compact_files = st.lists(compact_rows, max_size=3).map(lambda steps: CompactRecords(2, tuple(steps)))


@st.composite
def stream_indexes(draw: st.DrawFn) -> StreamIndex:
    """Frames back to back."""
    found, offset = [], 0
    for _ in range(draw(st.integers(0, 4))):
        length, raw = draw(st.integers(1, (1 << 32) - 1)), draw(st.integers(1, (1 << 32) - 1))
        found.append(FrameRow(offset, length, raw, draw(digests)))
        offset += length
    return StreamIndex(tuple(found))


titles = st.text(st.characters(categories=["L", "N", "P", "Zs"]), min_size=1, max_size=9)
corpus_documents = st.builds(Document, titles, st.integers(0, 1 << 40), st.integers(1, 1 << 40), digests)
corpora = (
    st.lists(corpus_documents, min_size=1, max_size=4, unique_by=lambda document: document.name)
    .map(tuple)
    .map(CorpusIndex)
)


@st.composite
def blocks(draw: st.DrawFn) -> Block:
    """Blocks of one to four documents."""
    texts = draw(st.lists(st.binary(max_size=9), min_size=1, max_size=4))
    listed = [BlockDocument(draw(titles), len(text), draw(st.integers(1, len(text) + 1))) for text in texts]
    return Block(tuple(listed), b"".join(texts))


u32s = st.integers(1, (1 << 32) - 1)
block_rows = st.builds(BlockRow, st.just(0), u32s, st.integers(1, 1 << 28), st.integers(1, 1 << 16), u32s, digests)


@st.composite
def block_indexes(draw: st.DrawFn) -> BlockIndex:
    """Frames back to back."""
    found, offset = [], 0
    for row in draw(st.lists(block_rows, min_size=1, max_size=4)):
        found.append(replace(row, offset=offset))
        offset += row.length
    return BlockIndex(tuple(found))


amounts = st.integers(1, 1 << 50)
shards = st.builds(Shard, digests, st.integers(1, 1 << 16), amounts, amounts, amounts)
source_shards = st.builds(SourceShards, segments, st.lists(shards, min_size=1, max_size=3).map(tuple))
sharded_corpora = st.lists(source_shards, min_size=1, max_size=3).map(tuple).map(ShardedCorpus)


@st.composite
def safetensors_files(draw: st.DrawFn) -> bytes:
    """Whole files with random contents of small tensors of any dtype."""
    dtype = st.sampled_from(sorted(ITEM_BYTES))
    listed = draw(st.lists(st.tuples(texts, dtype, shapes.filter(lambda s: math.prod(s) < 100)), max_size=4,
                           unique_by=lambda entry: entry[0]))  # fmt: skip
    metadata = draw(st.none() | st.tuples(texts, texts))
    header = SafetensorsHeader.of([entry for entry in listed if entry[0] != "__metadata__"], metadata)
    return header.encode() + draw(st.binary(min_size=header.data_size, max_size=header.data_size))


@st.composite
def damaged(draw: st.DrawFn, files: list[bytes]) -> bytes:
    """One of the files with a few bytes changed, cut out, doubled or put in."""
    data = bytearray(draw(st.sampled_from(files)))
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(data)))
        end = min(len(data), begin + draw(st.integers(0, 4)))
        data[begin:end] = draw(st.binary(max_size=4) | st.just(bytes(data[begin:end]) * 2))
    return bytes(data)


def any_value(kind: str) -> st.SearchStrategy[Any]:
    """Valid values of a format by the name of its parser."""
    return {
        "block": blocks(),
        "block_index": block_indexes(),
        "compact_records": compact_files,
        "corpus": corpora,
        "leaves": leaves_files,
        "recipe": recipes(),
        "record": step_records(),
        "records": record_files,
        "segment": segment_records,
        "shards": sharded_corpora,
        "state": documents,
        "state_index": state_indexes(),
        "stream_index": stream_indexes(),
    }[kind]
