"""A real tiny run made by the real step function, kept in parts, so that tests can publish it honestly or otherwise.

`publish` computes every digest, root and manifest from the parts as they are: a test that changes a part first plays an
adversary who is consistent in everything but the training.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from auditkit.formats import zstd
from auditkit.formats.bits import f32_bits
from auditkit.formats.corpus import CorpusIndex, Document
from auditkit.formats.digest import content_digest
from auditkit.formats.leaves import LeavesFile, MicroBatchLeaf, micro_root
from auditkit.formats.recipe import (
    BatchConfig,
    InitConfig,
    LossConfig,
    ModelConfig,
    NumericsConfig,
    OptimizerConfig,
    Recipe,
    ScheduleConfig,
)
from auditkit.formats.record import RecordFile, RecordRow, expand, log_root
from auditkit.formats.run import (
    Artifact,
    Corpus,
    DataSpec,
    Log,
    PublishedState,
    RunManifest,
    Tokenizer,
    run_id,
    state_path,
)
from auditkit.formats.stream import StreamIndex, batch_digest, encode_frame, frame_row, to_tokens
from auditkit.model.state import State, document, initial_state
from auditkit.model.step import StepResult, step
from auditkit.numerics import reference
from auditkit.numerics.shuffle import window_order
from trainer import bpe
from trainer.state_files import write_state

VOCABULARY = 300
CONTEXT = 16
STEPS = 8
PUBLISHED = (0, 4, 5, 8)
WORDS = "the of and to in a is that it was for on are with as his they be at one have this from or had by".split()

RECIPE = Recipe(
    model=ModelConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        num_layers=2,
        num_heads=2,
        num_kv_heads=1,
        head_dim=8,
        ffn_size=24,
        context_length=CONTEXT,
        rope_theta=10000.0,
        norm_eps=float(np.float32(1e-5)),
        tied_head=True,
        qk_norm=False,
        sliding_window=0,
    ),
    loss=LossConfig(z_loss=0.0),
    optimizer=OptimizerConfig(
        kind="adamw", beta1=0.9, beta2=0.95, eps=float(np.float32(1e-8)), weight_decay=0.1, clip_norm=1.0
    ),
    schedule=ScheduleConfig(kind="cosine", peak_lr=3e-3, min_lr=3e-4, warmup_steps=2, decay_steps=0, total_steps=STEPS),
    batch=BatchConfig(sequences=3, micro_batch_sequences=2),
    numerics=NumericsConfig(),
    init=InitConfig(seed=7, std=0.02, residual_std=0.01),
)


@dataclass
class Parts:
    """Everything of a run before it is published."""

    recipe: Recipe
    data: DataSpec
    texts: dict[str, bytes]
    corpus: CorpusIndex
    tokenizer: bytes
    ids: np.ndarray  # (tokens,) uint16, of all documents
    batches: list[np.ndarray]  # (sequences, context + 1) uint16, one a step
    states: list[State]  # before step 0, 1, ..., and after the last
    results: list[StepResult]
    published: tuple[int, ...] = PUBLISHED
    name: str = "tiny"
    mirrors: tuple[str, ...] = ()
    labels: dict[int, int] = field(default_factory=dict)  # published step -> step of the state that lies there
    rows: list[RecordRow] = field(default_factory=list)  # replaces the records that follow from states and results

    def copy(self) -> Parts:
        """Parts whose lists may be changed; arrays are shared and must be replaced, not written to."""
        return replace(
            self,
            texts=dict(self.texts),
            batches=list(self.batches),
            states=list(self.states),
            results=list(self.results),
            labels=dict(self.labels),
            rows=list(self.rows),
        )


def corpus_texts() -> dict[str, bytes]:
    """Three documents of English-like text, one with letters beyond ASCII, one empty."""
    chooser = random.Random(11)
    texts = {f"part-{i}.txt": " ".join(chooser.choices(WORDS, k=400)) for i in range(3)}
    texts["part-1.txt"] += " na\u00efve caf\u00e9 \u65e5\u672c\u8a9e <|endoftext|> not the end"
    texts["part-2-empty.txt"] = ""
    return {name: text.encode() for name, text in sorted(texts.items())}


def train(steps: int = STEPS, recipe: Recipe = RECIPE) -> Parts:
    """Tokenise, shuffle and train for real."""
    texts = corpus_texts()
    tokenizer = bpe.train((text.decode() for text in texts.values()), VOCABULARY)
    encoder = bpe.Encoder(tokenizer)
    ids = {name: encoder.encode(text.decode(), what=name) for name, text in texts.items()}
    corpus = CorpusIndex(
        tuple(Document(name, len(text), len(ids[name]), content_digest(text)) for name, text in texts.items())
    )
    joined = np.concatenate(list(ids.values()))
    data = _data(corpus, tokenizer, encoder.end_of_text, windows=(len(joined) - 1) // CONTEXT)
    batches = [batch(joined, data, recipe, number) for number in range(steps)]
    states, results = [initial_state(recipe)], []
    for tokens in batches:
        state, result = step(states[-1], tokens, recipe, reference)
        states.append(state)
        results.append(result)
    return Parts(recipe, data, texts, corpus, tokenizer, joined.astype(np.uint16), batches, states, results)


def train_with(parts: Parts, *, wrong_step: int) -> Parts:
    """The same run with twice the learning rate in one step; the record of that step tells the rate of the recipe."""
    made = parts.copy()
    for number in range(wrong_step, len(parts.batches)):
        recipe = parts.recipe
        if number == wrong_step:
            schedule = replace(recipe.schedule, peak_lr=2 * recipe.schedule.peak_lr, min_lr=2 * recipe.schedule.min_lr)
            recipe = replace(recipe, schedule=schedule)
        state, result = step(made.states[number], parts.batches[number], recipe, reference)
        if number == wrong_step:
            result = replace(result, lr=parts.results[number].lr)
        made.states[number + 1], made.results[number] = state, result
    return made


def _data(corpus: CorpusIndex, tokenizer: bytes, end_of_text: int, windows: int) -> DataSpec:
    return DataSpec(
        context_length=CONTEXT,
        corpus=Corpus(content_digest(corpus.encode()), "CC0-1.0", "corpus.json", "corpus.txt.zst", "Words in no order"),
        dtype="U16",
        end_of_text=end_of_text,
        kind="frames",
        seed=5,
        tokenizer=Tokenizer(content_digest(tokenizer), "tokenizer.json"),
        windows=windows,
    )


def batch(joined: np.ndarray, data: DataSpec, recipe: Recipe, number: int) -> np.ndarray:
    """The windows of one step, one after the other, in the declared order."""
    rows = []
    for sequence in range(number * recipe.batch.sequences, (number + 1) * recipe.batch.sequences):
        epoch, place = divmod(sequence, data.windows)
        begin = int(window_order(data.seed, epoch, data.windows)[place]) * CONTEXT
        rows.append(joined[begin : begin + CONTEXT + 1])
    return to_tokens(np.stack(rows), "U16", VOCABULARY)


def rows_of(parts: Parts) -> list[RecordRow]:
    """The record rows that follow from the parts."""
    return [
        RecordRow(
            state_after=document(after, parts.recipe).root(),
            batch=batch_digest(tokens),
            gradient=result.gradient,
            micro_root=micro_root(result.leaves),
            loss=f32_bits(float(result.loss)),
            norm=f32_bits(float(result.norm)),
            lr=f32_bits(float(result.lr)),
        )
        for after, tokens, result in zip(parts.states[1:], parts.batches, parts.results, strict=True)
    ]


def publish(parts: Parts, folder: Path) -> Path:
    """Write a run folder in which every digest, root and size follows from the parts."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = parts.rows or rows_of(parts)
    leaves = tuple(result.leaves for result in parts.results)
    frames = [encode_frame(tokens) for tokens in parts.batches]
    offsets = np.cumsum([0, *map(len, frames)])
    index = StreamIndex(
        tuple(frame_row(int(o), f, t) for o, f, t in zip(offsets[:-1], frames, parts.batches, strict=True))
    )
    files = {
        "records.bin": RecordFile(tuple(rows)).encode(),
        "leaves.bin": LeavesFile(parts.recipe.batch.micro_batches, leaves).encode(),
        "stream.bin": b"".join(frames),
        "stream.idx": index.encode(),
        "corpus.json": parts.corpus.encode(),
        "corpus.txt.zst": zstd.compress(b"".join(parts.texts.values())),
        "tokenizer.json": parts.tokenizer,
    }
    return write(parts, folder, parts.data, rows, files)


def write(parts: Parts, folder: Path, spec: DataSpec, rows: Sequence[RecordRow], files: dict[str, bytes]) -> Path:
    """Write `files`, the states and a manifest whose log is that of `rows`."""
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    states = tuple(_publish_state(parts, folder, number) for number in parts.published)
    identity = run_id(parts.name, parts.recipe, spec)
    chain = expand(
        rows,
        run_id=identity,
        numerics=parts.recipe.numerics.version,
        micro_batches=parts.recipe.batch.micro_batches,
        state0=states[0].root,
    )
    manifest = RunManifest(
        name=parts.name,
        recipe=parts.recipe,
        data=spec,
        log=Log(len(rows), log_root(chain)),
        artifacts=artifacts(folder),
        states=states,
        mirrors=parts.mirrors,
    )
    (folder / "run.json").write_bytes(manifest.encode())
    return folder


def artifacts(folder: Path) -> tuple[Artifact, ...]:
    """Every file that a manifest lists, with the digest that it has now."""
    found = []
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        shard_of_a_state = name.startswith("states/") and name.endswith(".zst")  # its index lists it
        if path.is_file() and name != "run.json" and not shard_of_a_state:
            data = path.read_bytes()
            found.append(Artifact(name, len(data), content_digest(data)))
    return tuple(sorted(found, key=lambda artifact: artifact.path))


def _publish_state(parts: Parts, folder: Path, number: int) -> PublishedState:
    state = replace(parts.states[parts.labels.get(number, number)], step=number)
    made = document(state, parts.recipe)
    (folder / "states").mkdir(exist_ok=True)
    write_state(folder / state_path(number), state, made)
    return PublishedState(number, state_path(number), made.root())


def flip(array: np.ndarray, element: int, bit: int = 0) -> np.ndarray:
    """A copy of an array with one bit of one element flipped."""
    changed = np.ascontiguousarray(array).copy()
    words = changed.reshape(-1).view(np.uint8)
    words[element * array.itemsize + bit // 8] ^= 1 << bit % 8
    return changed


def flip_state(state: State, role: str, name: str, element: int, bit: int = 0) -> State:
    """A state with one bit of one tensor flipped; `role` is params, adam_m or adam_v."""
    tensors: dict[str, Any] = dict(getattr(state, role))
    tensors[name] = flip(tensors[name], element, bit)
    return replace(state, **{role: tensors})


def change_leaf(result: StepResult, number: int, **fields: Any) -> StepResult:
    """A step's result with one micro-batch leaf changed."""
    leaves: list[MicroBatchLeaf] = list(result.leaves)
    leaves[number] = replace(leaves[number], **fields)
    return replace(result, leaves=tuple(leaves))
