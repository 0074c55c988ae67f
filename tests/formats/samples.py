"""One valid value of every format, small enough to read; the tests and the vector generator vary them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from auditkit.formats import compact, recipe, record, run, state
from auditkit.formats.bits import f32_bits, to_f32
from auditkit.formats.corpus import CorpusIndex, Document
from auditkit.formats.digest import content_digest
from auditkit.formats.leaves import LeavesFile, MicroBatchLeaf, micro_root
from auditkit.formats.note import NoteKey
from auditkit.formats.safetensors import SafetensorsHeader
from auditkit.formats.stream import FrameRow, StreamIndex, batch_digest, encode_frame, frame_row
from auditkit.formats.tensors import TensorEntry
from auditkit.formats.trace import Trace, TracedOp
from auditkit.formats.zstd import compress
from auditkit.numerics.cross_entropy import mean_losses
from auditkit.numerics.schedule import learning_rates
from auditkit.replay.windows import Windows
from tests.formats import published_logs

STEPS = 3
MICRO_BATCHES = 2

RECIPE = recipe.Recipe(
    model=recipe.ModelConfig(
        vocab_size=512,
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        ffn_size=128,
        context_length=8,
        rope_theta=10000.0,
        norm_eps=to_f32(1e-5),
        tied_head=True,
        qk_norm=True,
        sliding_window=0,
    ),
    loss=recipe.LossConfig(z_loss=0.0),
    optimizer=recipe.OptimizerConfig(
        kind="adamw", beta1=0.9, beta2=0.95, eps=to_f32(1e-8), weight_decay=0.1, clip_norm=1.0
    ),
    schedule=recipe.ScheduleConfig(
        kind="wsd", peak_lr=1e-3, min_lr=1e-4, warmup_steps=2, decay_steps=3, total_steps=10
    ),
    batch=recipe.BatchConfig(sequences=3, micro_batch_sequences=2),
    numerics=recipe.NumericsConfig(version=1, product="fx", body_bits=14, head_bits=21),
    init=recipe.InitConfig(seed=7, std=0.02, residual_std=0.01),
)


def digest_of(text: str) -> str:
    """A digest that stands for something which is not part of the sample."""
    return content_digest(text.encode("utf-8"))


def array(start: int, *shape: int) -> NDArray[Any]:
    """float32 values start, start+1, ... of that shape."""
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)


TENSORS: dict[tuple[str, str], NDArray[Any]] = {
    ("adam_m", "embedding"): array(0, 4, 3),
    ("adam_m", "norm"): array(1, 3),
    ("adam_v", "embedding"): array(2, 4, 3),
    ("adam_v", "norm"): array(3, 3),
    ("param", "embedding"): array(4, 4, 3),
    ("param", "norm"): array(5, 3),
}

DOCUMENT = state.StateDocument(
    step=1,
    sequence=3,
    seed=7,
    recipe=RECIPE.digest(),
    tensors=tuple(TensorEntry.of(name, role, values) for (role, name), values in TENSORS.items()),
)


def header_of(entries: Sequence[TensorEntry]) -> SafetensorsHeader:
    """The header of a shard that stores these tensors in this order."""
    return SafetensorsHeader.of(
        [(state.shard_key(entry.role, entry.name), entry.dtype, entry.shape) for entry in entries]
    )


def shard(keys: list[tuple[str, str]], path: str) -> tuple[state.ShardEntry, bytes]:
    """A shard file of these tensors, and its entry."""
    entries = [entry for entry in DOCUMENT.tensors if entry.order in keys]
    raw = [header_of(entries).encode(), *(TENSORS[entry.order].tobytes() for entry in entries)]
    labels = [("", state.HEADER_ROLE), *((entry.name, entry.role) for entry in entries)]
    frames, data = [], b""
    for (name, role), part in zip(labels, raw, strict=True):
        frame = compress(part)
        frames.append(state.FrameEntry(name, role, len(data), len(frame), len(part)))
        data += frame
    return state.ShardEntry(path, len(data), content_digest(data), tuple(frames)), data


def fixed_index() -> state.StateIndex:
    """An index with made-up frame lengths, for vectors that must not depend on the version of zstd."""
    files, keys = [], list(TENSORS)
    for number, part in enumerate((keys[:3], keys[3:])):
        header = header_of([entry for entry in DOCUMENT.tensors if entry.order in part]).encode()
        frames = [state.FrameEntry("", state.HEADER_ROLE, 0, 100, len(header))]
        frames += [
            state.FrameEntry(name, role, 100 + 50 * i, 50, TENSORS[role, name].nbytes)
            for i, (role, name) in enumerate(part)
        ]
        path = f"shard-{number:05d}.safetensors.zst"
        files.append(state.ShardEntry(path, 100 + 50 * len(part), digest_of(path), tuple(frames)))
    return state.StateIndex(tuple(files))


INDEX = fixed_index()
HEADER: SafetensorsHeader = header_of(DOCUMENT.tensors)
SAFETENSORS = HEADER.encode() + b"".join(values.tobytes() for values in TENSORS.values())

LEAVES = LeavesFile(
    MICRO_BATCHES,
    tuple(
        tuple(MicroBatchLeaf((step + 1) << 32, digest_of(f"leaf {step} {i}")) for i in range(MICRO_BATCHES))
        for step in range(STEPS)
    ),
)

BATCHES = [np.arange(step, step + 27, dtype=np.uint16).reshape(3, 9) for step in range(STEPS)]


def fixed_stream() -> StreamIndex:
    """An index with made-up frame lengths."""
    rows = [FrameRow(40 * i, 40, batch.nbytes, content_digest(batch)) for i, batch in enumerate(BATCHES)]
    return StreamIndex(tuple(rows))


STREAM = fixed_stream()

RECORDS = record.RecordFile(
    tuple(
        record.RecordRow(
            state_after=digest_of(f"state {step + 1}"),
            batch=batch_digest(BATCHES[step]),
            gradient=digest_of(f"gradient {step}"),
            micro_root=micro_root(LEAVES.steps[step]),
            loss=f32_bits(to_f32(6.25 - step / 10)),
            norm=f32_bits(to_f32(1.5 + step / 10)),
            lr=f32_bits(to_f32(5e-4 * (step + 1))),
        )
        for step in range(STEPS)
    )
)

CORPUS = CorpusIndex(
    (
        Document("1801 Jefferson", 10, 4, digest_of("a")),
        Document("empty", 0, 1, digest_of("")),
        Document("caf\u00e9", 25, 12, digest_of("c")),
    )
)

DATA = run.DataSpec(
    context_length=8,
    corpus=run.Corpus(digest_of("corpus"), "CC0-1.0", "corpus.json", "corpus.txt.zst", "Three documents"),
    dtype="U16",
    end_of_text=0,
    kind="frames",
    seed=3,
    tokenizer=run.Tokenizer(digest_of("tokenizer"), "tokenizer.json"),
    windows=2,
)

RUN_ID = run.run_id("demo", RECIPE, DATA)
CHAIN = record.expand(RECORDS.rows, run_id=RUN_ID, numerics=1, micro_batches=MICRO_BATCHES, state0=digest_of("state 0"))


def artifacts() -> tuple[run.Artifact, ...]:
    """Every file that the sample manifest must list, by path."""
    files = {
        "corpus.json": (300, DATA.corpus.digest),
        "corpus.txt.zst": (40, digest_of("text")),
        "leaves.bin": (len(LEAVES.encode()), content_digest(LEAVES.encode())),
        "records.bin": (len(RECORDS.encode()), content_digest(RECORDS.encode())),
        "stream.bin": (120, digest_of("stream")),
        "stream.idx": (len(STREAM.encode()), content_digest(STREAM.encode())),
        "tokenizer.json": (5000, DATA.tokenizer.digest),
    }
    for step in (0, STEPS):
        files[f"{run.state_path(step)}/index.json"] = (900, digest_of(f"index {step}"))
        files[f"{run.state_path(step)}/state.json"] = (1000, digest_of(f"document {step}"))
    return tuple(run.Artifact(path, size, digest) for path, (size, digest) in sorted(files.items()))


RUN = run.RunManifest(
    name="demo",
    recipe=RECIPE,
    data=DATA,
    log=run.Log(STEPS, record.log_root(CHAIN)),
    artifacts=artifacts(),
    states=tuple(run.PublishedState(step, run.state_path(step), digest_of(f"state {step}")) for step in (0, STEPS)),
    mirrors=("https://example.org/runs/demo", "http://127.0.0.1:8000"),
)


SIGNED_RUN = dataclasses.replace(RUN, publisher=NoteKey.parse(published_logs.PETER))

# The same steps with windows of published ids in place of a stream, and records without what can be derived.
IDS = np.arange(17, dtype=np.uint16)  # as many as the corpus has tokens: two windows
WINDOWS_DATA = dataclasses.replace(DATA, kind="windows", ids=run.Ids(17, content_digest(IDS), "ids.bin.zst"))
COMPACT = compact.CompactRecords(
    MICRO_BATCHES,
    tuple(
        compact.CompactRow(row.state_after, row.gradient, row.norm, leaves)
        for row, leaves in zip(RECORDS.rows, LEAVES.steps, strict=True)
    ),
)


def compact_rows() -> tuple[record.RecordRow, ...]:
    """The rows that follow from the compact records, the ids and the recipe."""
    windows = Windows(IDS, context_length=8, sequences=3, seed=DATA.seed, windows=DATA.windows)
    losses = mean_losses([row.loss_sum for row in COMPACT.steps], 3 * 8)
    return COMPACT.rows(
        batches=[batch_digest(batch) for batch in windows.batches(STEPS)],
        losses=losses.view(np.uint32).tolist(),
        rates=learning_rates(RECIPE.schedule, 0, STEPS).view(np.uint32).tolist(),
    )


WINDOWS_RUN_ID = run.run_id("demo", RECIPE, WINDOWS_DATA)
WINDOWS_CHAIN = record.expand(
    compact_rows(), run_id=WINDOWS_RUN_ID, numerics=1, micro_batches=MICRO_BATCHES, state0=digest_of("state 0")
)


def windows_artifacts() -> tuple[run.Artifact, ...]:
    """Every file that the sample of kind "windows" must list, by path."""
    stored = ("leaves.bin", "records.bin", "stream.bin", "stream.idx")
    kept = [artifact for artifact in artifacts() if artifact.path not in stored]
    kept.append(run.Artifact("ids.bin.zst", 50, digest_of("ids")))
    kept.append(run.Artifact("records.bin", len(COMPACT.encode()), content_digest(COMPACT.encode())))
    return tuple(sorted(kept, key=lambda artifact: artifact.path))


WINDOWS_RUN = dataclasses.replace(
    RUN, data=WINDOWS_DATA, log=run.Log(STEPS, record.log_root(WINDOWS_CHAIN)), artifacts=windows_artifacts()
)


def real_frames() -> list[tuple[FrameRow, bytes]]:
    """The batches as real zstd frames with their index rows."""
    found, offset = [], 0
    for batch in BATCHES:
        frame = encode_frame(batch)
        found.append((frame_row(offset, frame, batch), frame))
        offset += len(frame)
    return found


TRACE = Trace(
    run_id=RUN_ID,
    step=1,
    recipe=RECIPE.digest(),
    numerics=1,
    state_before=CHAIN[1].state_before,
    batch=CHAIN[1].batch,
    micro_batches=(0, 1),
    whole=True,
    backend="numpy",
    ops=(
        TracedOp("forward", 0, "model.embed_tokens.weight", "embedding_forward", (digest_of("x"),)),
        TracedOp("backward", 1, "model.norm.weight", "rms_norm_backward", (digest_of("dx"), digest_of("dweight"))),
        TracedOp("update", None, "step", "learning_rate", (digest_of("rate"),)),
    ),
)
