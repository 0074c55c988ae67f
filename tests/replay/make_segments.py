"""A tiny run of four segments, trained by the real step function; as in make_run.py, changed parts make a lie.

Steps 0 to 2 are those of make_run.py. From step 3 on the learning rate is another, from step 6 on there is more text in
another order, from step 9 on sequences are shorter and batches larger. Cursors and documents are counted here one step
at a time, not by the code under test.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from auditkit.formats import zstd
from auditkit.formats.bits import f32_bits
from auditkit.formats.chain import chain, log_entries
from auditkit.formats.compact import CompactRecords, CompactRow, encode_all
from auditkit.formats.corpus import CorpusIndex, Document
from auditkit.formats.digest import content_digest
from auditkit.formats.leaves import MAGIC as LEAVES_MAGIC
from auditkit.formats.leaves import micro_root
from auditkit.formats.recipe import Recipe
from auditkit.formats.record import RecordFile, RecordRow, log_root
from auditkit.formats.run import Change, DataSpec, Ids, Log, PublishedState, RunManifest, run_id, state_path
from auditkit.formats.state import StateDocument
from auditkit.formats.stream import StreamIndex, batch_digest, encode_frame, frame_row, to_tokens
from auditkit.formats.timeline import Timeline
from auditkit.model.state import State, document, initial_state
from auditkit.model.step import StepResult, step
from auditkit.numerics import reference
from auditkit.numerics.shuffle import window_order
from tests.replay import make_run
from tests.replay.make_run import RECIPE, VOCABULARY
from trainer import bpe
from trainer.state_files import write_state

STARTS = (0, 3, 6, 9)
STEPS = 12
PUBLISHED = (0, 3, 5, 6, 8, 12)  # of the boundaries, state 9 is left out

BASE = replace(RECIPE, schedule=replace(RECIPE.schedule, total_steps=STEPS))
LOWER = replace(BASE, schedule=replace(BASE.schedule, peak_lr=1e-3, min_lr=5e-4))
SHORT = replace(
    LOWER,
    model=replace(LOWER.model, context_length=10),
    batch=replace(LOWER.batch, sequences=5, micro_batch_sequences=1),
)


@dataclass
class Corpus:
    """Texts, their index, and the ids of all of them (tokens,) uint16."""

    texts: dict[str, bytes]
    index: CorpusIndex
    ids: np.ndarray


@dataclass
class Stretch:
    """One segment: where it begins, in which data, and at which place in them."""

    start: int
    recipe: Recipe
    data: DataSpec
    corpus: Corpus
    sequence: int


@dataclass
class Parts:
    """Everything of a run of segments before it is published; `claims` replaces the roots that segments begin from."""

    stretches: list[Stretch]
    tokenizer: bytes
    batches: list[np.ndarray]
    states: list[State]
    results: list[StepResult]
    published: tuple[int, ...] = PUBLISHED
    claims: dict[int, str] = field(default_factory=dict)
    rows: list[RecordRow] = field(default_factory=list)

    def copy(self) -> Parts:
        """Parts whose lists may be changed."""
        return replace(
            self,
            stretches=[replace(stretch) for stretch in self.stretches],
            batches=list(self.batches),
            states=list(self.states),
            results=list(self.results),
            claims=dict(self.claims),
            rows=list(self.rows),
        )

    def stretch(self, number: int) -> Stretch:
        """The segment of a step."""
        return [stretch for stretch in self.stretches if stretch.start <= number][-1]

    def document(self, number: int, *, begun: bool = False) -> StateDocument:
        """The document of state `number` as the step before left it, or as the segment that begins there has it."""
        stretch = self.stretch(number if begun else max(0, number - 1))
        tensors = document(self.states[number], stretch.recipe).tensors
        sequence = stretch.sequence + (number - stretch.start) * stretch.recipe.batch.sequences
        return StateDocument(number, sequence, stretch.recipe.init.seed, stretch.recipe.digest(), tensors)


def train() -> Parts:
    """Tokenise and train for real."""
    texts = make_run.corpus_texts()
    tokenizer = bpe.train((text.decode() for text in texts.values()), VOCABULARY)
    more = {**texts, "part-3.txt": b"to have this or that, at one from the word of it " * 30}
    first, second = (_corpus(given, tokenizer) for given in (texts, more))
    data = make_run._data(first.index, tokenizer, 0, (len(first.ids) - 1) // 16)
    found = replace(data.corpus, digest=content_digest(second.index.encode()), title="Words, and more of them")
    found = replace(found, path="more/corpus.json", text="more/corpus.txt.zst")
    larger = replace(data, corpus=found, seed=6, windows=(len(second.ids) - 1) // 16)
    shorter = replace(larger, context_length=10, windows=(len(second.ids) - 1) // 10)
    three = RECIPE.batch.sequences
    stretches = [
        Stretch(0, BASE, data, first, 0),
        Stretch(3, LOWER, data, first, 3 * three),
        Stretch(6, LOWER, larger, second, 0),
        Stretch(9, SHORT, shorter, second, 0),
    ]
    parts = Parts(stretches, tokenizer, [], [initial_state(BASE)], [])
    for number in range(STEPS):
        parts.batches.append(batch(parts.stretch(number), number))
        go_on(parts, number)
    return parts


def go_on(parts: Parts, number: int, recipe: Recipe | None = None) -> None:
    """Take one step with its batch, by the recipe of its segment or another."""
    recipe = recipe or parts.stretch(number).recipe
    state, result = step(parts.states[number], parts.batches[number], recipe, reference)
    parts.states[number + 1 :] = [state]
    parts.results[number:] = [result]


def batch(stretch: Stretch, number: int) -> np.ndarray:
    """The windows of one step, cut one at a time."""
    count, width, data = stretch.recipe.batch.sequences, stretch.data.context_length, stretch.data
    first, rows = stretch.sequence + (number - stretch.start) * count, []
    for sequence in range(first, first + count):
        epoch, place = divmod(sequence, data.windows)
        begin = int(window_order(data.seed, epoch, data.windows)[place]) * width
        rows.append(stretch.corpus.ids[begin : begin + width + 1])
    return to_tokens(np.stack(rows), "U16", VOCABULARY)


def _corpus(texts: dict[str, bytes], tokenizer: bytes) -> Corpus:
    encoder = bpe.Encoder(tokenizer)
    ids = {name: encoder.encode(text.decode(), what=name) for name, text in texts.items()}
    listed = tuple(Document(name, len(text), len(ids[name]), content_digest(text)) for name, text in texts.items())
    return Corpus(texts, CorpusIndex(listed), np.concatenate(list(ids.values())).astype(np.uint16))


def rows_of(parts: Parts) -> list[RecordRow]:
    """The record rows that follow from the parts."""
    return [
        RecordRow(
            state_after=parts.document(number + 1).root(),
            batch=batch_digest(tokens),
            gradient=result.gradient,
            micro_root=micro_root(result.leaves),
            loss=f32_bits(float(result.loss)),
            norm=f32_bits(float(result.norm)),
            lr=f32_bits(float(result.lr)),
        )
        for number, (tokens, result) in enumerate(zip(parts.batches, parts.results, strict=True))
    ]


def publish(parts: Parts, folder: Path, *, compact: bool = False) -> Path:
    """Write a run folder in which every digest, root and size follows from the parts."""
    rows = parts.rows or rows_of(parts)
    specs = [_compact_data(stretch) if compact else stretch.data for stretch in parts.stretches]
    files = {"tokenizer.json": parts.tokenizer, **(_compact_files(parts) if compact else _files(parts, rows))}
    for spec, stretch in zip(specs, parts.stretches, strict=True):
        files[spec.corpus.path] = stretch.corpus.index.encode()
        files[spec.corpus.text] = zstd.compress(b"".join(stretch.corpus.texts.values()))
        if spec.ids is not None:
            files[spec.ids.path] = zstd.compress(stretch.corpus.ids)
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    states = tuple(_publish_state(parts, folder, number) for number in parts.published)
    write_manifest(parts, folder, specs, rows, states)
    return folder


def write_manifest(
    parts: Parts, folder: Path, specs: Sequence[DataSpec], rows: Sequence[RecordRow], states: tuple[PublishedState, ...]
) -> None:
    """A manifest whose log is that of `rows` and of the segments."""
    first, *later = zip(parts.stretches, specs, strict=True)
    changes = tuple(
        Change(s.start, s.recipe, spec, parts.claims.get(s.start, parts.document(s.start, begun=True).root()))
        for s, spec in later
    )
    recipe, spec = first[0].recipe, first[1]
    timeline = Timeline.of(recipe, spec, states[0].root, changes, len(rows))
    entries = list(log_entries(chain(rows, timeline, run_id("tiny", recipe, spec)), timeline))
    log = Log(len(entries), log_root(entries))
    listed = make_run.artifacts(folder)
    made = RunManifest("tiny", recipe, spec, log, listed, states, (), changes=changes)
    (folder / "run.json").write_bytes(made.encode())


def _files(parts: Parts, rows: Sequence[RecordRow]) -> dict[str, bytes]:
    frames = [encode_frame(tokens) for tokens in parts.batches]
    offsets = np.cumsum([0, *map(len, frames)]).tolist()
    index = [frame_row(o, f, t) for o, f, t in zip(offsets[:-1], frames, parts.batches, strict=True)]
    leaves = b"".join(leaf.encode() for result in parts.results for leaf in result.leaves)
    return {
        "records.bin": RecordFile(tuple(rows)).encode(),
        "leaves.bin": LEAVES_MAGIC + leaves,
        "stream.bin": b"".join(frames),
        "stream.idx": StreamIndex(tuple(index)).encode(),
    }


def _compact_data(stretch: Stretch) -> DataSpec:
    path = "more/ids.bin.zst" if stretch.data.corpus.path.startswith("more/") else "ids.bin.zst"
    ids = Ids(len(stretch.corpus.ids), content_digest(stretch.corpus.ids), path)
    return replace(stretch.data, kind="windows", ids=ids)


def _compact_files(parts: Parts) -> dict[str, bytes]:
    rows = [
        CompactRow(parts.document(number + 1).root(), result.gradient, f32_bits(float(result.norm)), result.leaves)
        for number, result in enumerate(parts.results)
    ]
    ends = [*(stretch.start for stretch in parts.stretches[1:]), len(rows)]
    pieces = [
        CompactRecords(stretch.recipe.batch.micro_batches, tuple(rows[stretch.start : end]))
        for stretch, end in zip(parts.stretches, ends, strict=True)
    ]
    return {"records.bin": encode_all(pieces)}


def _publish_state(parts: Parts, folder: Path, number: int) -> PublishedState:
    made = parts.document(number)
    (folder / "states").mkdir(exist_ok=True)
    write_state(folder / state_path(number), parts.states[number], made)
    return PublishedState(number, state_path(number), made.root())
