"""A tiny run of two declared sources, in parts as in make_run.py; its batches are cut by the oracle, one at a time."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from auditkit.formats import zstd
from auditkit.formats.blocks import Block, BlockDocument, BlockIndex, encode_block
from auditkit.formats.compact import CompactRecords
from auditkit.formats.data_spec import Source
from auditkit.formats.digest import content_digest
from auditkit.formats.leaves import LeavesFile
from auditkit.formats.record import RecordFile
from auditkit.formats.run import Corpus, DataSpec, Ids, Tokenizer
from auditkit.formats.shards import ShardedCorpus, SourceShards, shard_paths
from auditkit.formats.stream import StreamIndex, encode_frame, frame_row, to_tokens
from auditkit.model.state import initial_state
from auditkit.model.step import step
from auditkit.numerics import reference
from tests.ops.oracle import order
from tests.replay import make_compact, make_run
from tests.replay.make_run import CONTEXT, RECIPE, STEPS, VOCABULARY, WORDS, Parts
from trainer import bpe

WEIGHTS = {"web": 3, "books": 1}
EPOCHS = {"web": 0, "books": 2}
BLOCK_DOCUMENTS, SHARD_BLOCKS = 3, 2


@dataclass
class Documents:
    """The texts of each source by name, whose order counts, and the numbers of ids that the corpus claims."""

    texts: dict[str, dict[str, bytes]]
    tokens: dict[str, dict[str, int]]


def texts() -> dict[str, dict[str, bytes]]:
    """Many short pages, some empty, and two long books."""
    chooser = random.Random(5)
    pages = {f"pages.jsonl:{i}": " ".join(chooser.choices(WORDS, k=i % 9 * 4)).encode() for i in range(1, 31)}
    pages["pages.jsonl:7"] = "naïve café 日本語 <|endoftext|> not the end".encode()
    books = {f"book-{i}.txt": " ".join(chooser.choices(WORDS, k=90)).encode() for i in range(2)}
    return {"web": pages, "books": books}


def train(steps: int = STEPS) -> tuple[Parts, Documents]:
    """Tokenise, draw and train for real."""
    listed = texts()
    tokenizer = bpe.train((text.decode() for source in listed.values() for text in source.values()), VOCABULARY)
    encoder = bpe.Encoder(tokenizer)
    ids = {
        source: {name: encoder.encode(text.decode(), what=name) for name, text in named.items()}
        for source, named in listed.items()
    }
    documents = Documents(listed, {s: {name: len(found) for name, found in named.items()} for s, named in ids.items()})
    joined = {source: np.concatenate(list(named.values())) for source, named in ids.items()}
    data = _data(documents, tokenizer, encoder.end_of_text)
    batches = [batch(joined, data, number) for number in range(steps)]
    states, results = [initial_state(RECIPE)], []
    for tokens in batches:
        state, result = step(states[-1], tokens, RECIPE, reference)
        states.append(state)
        results.append(result)
    everything = np.concatenate(list(joined.values())).astype(np.uint16)
    parts = Parts(
        RECIPE, data, {}, None, tokenizer, everything, batches, states, results  # type: ignore[arg-type]
    )  # fmt: skip
    return parts, documents


def batch(joined: dict[str, np.ndarray], data: DataSpec, number: int) -> np.ndarray:
    """The windows of one step, each found by the oracle."""
    windows = [(len(ids) - 1) // CONTEXT for ids in joined.values()]
    rows = []
    for sequence in range(number * RECIPE.batch.sequences, (number + 1) * RECIPE.batch.sequences):
        source, _, window = order.sequence(data.seed, list(WEIGHTS.values()), windows, sequence)
        ids = list(joined.values())[source]
        rows.append(ids[window * CONTEXT : window * CONTEXT + CONTEXT + 1])
    return to_tokens(np.stack(rows), "U16", VOCABULARY)


def shards(documents: Documents) -> tuple[ShardedCorpus, dict[str, bytes]]:
    """The corpus index and the files of all shards."""
    sources, files = [], {}
    for source, named in documents.texts.items():
        blocks, shards = [], []
        names = list(named)
        for at in range(0, len(names), BLOCK_DOCUMENTS):
            some = names[at : at + BLOCK_DOCUMENTS]
            listed = tuple(BlockDocument(n, len(named[n]), documents.tokens[source][n]) for n in some)
            blocks.append(Block(listed, b"".join(named[n] for n in some)))
        for number, at in enumerate(range(0, len(blocks), SHARD_BLOCKS)):
            text, rows = b"", []
            for block in blocks[at : at + SHARD_BLOCKS]:
                frame, row = encode_block(block, len(text), level=3)
                text += frame
                rows.append(row)
            index = BlockIndex(tuple(rows))
            paths = shard_paths("corpus", source, number)
            files |= dict(zip(paths, (text, index.encode()), strict=True))
            shards.append(index.shard())
        sources.append(SourceShards(source, tuple(shards)))
    return ShardedCorpus(tuple(sources)), files


def _data(documents: Documents, tokenizer: bytes, end_of_text: int) -> DataSpec:
    corpus, _ = shards(documents)
    tokens = {name: sum(counts.values()) for name, counts in documents.tokens.items()}
    return DataSpec(
        context_length=CONTEXT,
        corpus=Corpus(content_digest(corpus.encode()), "CC0-1.0 AND MIT", "corpus.json", "corpus", "Pages and books"),
        dtype="U16",
        end_of_text=end_of_text,
        kind="frames",
        seed=5,
        sources=tuple(
            Source(
                name, f"The {name}", "MIT" if name == "books" else "CC0-1.0", tokens[name], WEIGHTS[name], EPOCHS[name]
            )
            for name in documents.texts
        ),
        tokenizer=Tokenizer(content_digest(tokenizer), "tokenizer.json", "tokenizers 0.0.0", 1),
        windows=sum((count - 1) // CONTEXT for count in tokens.values()),
    )


def with_documents(parts: Parts, documents: Documents) -> Parts:
    """The same run with another corpus, whose index the manifest names."""
    made = parts.copy()
    corpus, _ = shards(documents)
    made.data = replace(parts.data, corpus=replace(parts.data.corpus, digest=content_digest(corpus.encode())))
    return made


def publish(parts: Parts, documents: Documents, folder: Path, *, compact: bool = False) -> Path:
    """Write a run folder in which every digest, root and size follows from the parts."""
    folder.mkdir(parents=True, exist_ok=True)
    corpus, files = shards(documents)
    files |= {"corpus.json": corpus.encode(), "tokenizer.json": parts.tokenizer}
    if compact:
        steps = make_compact.steps_of(parts)
        files["records.bin"] = CompactRecords(parts.recipe.batch.micro_batches, tuple(steps)).encode()
        files["ids.bin.zst"] = zstd.compress(parts.ids)
        ids = Ids(len(parts.ids), content_digest(parts.ids), "ids.bin.zst")
        spec = replace(parts.data, kind="windows", ids=ids)
        return make_run.write(parts, folder, spec, make_run.rows_of(parts), files)
    rows = make_run.rows_of(parts)
    frames = [encode_frame(tokens) for tokens in parts.batches]
    offsets = np.cumsum([0, *map(len, frames)])
    listed = zip(offsets[:-1].tolist(), frames, parts.batches, strict=True)
    files |= {
        "records.bin": RecordFile(tuple(rows)).encode(),
        "leaves.bin": LeavesFile(parts.recipe.batch.micro_batches, tuple(r.leaves for r in parts.results)).encode(),
        "stream.bin": b"".join(frames),
        "stream.idx": StreamIndex(tuple(frame_row(o, f, t) for o, f, t in listed)).encode(),
    }
    return make_run.write(parts, folder, parts.data, rows, files)
