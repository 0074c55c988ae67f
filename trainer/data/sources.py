"""From declared sources to a corpus of blocks and the ids to train on, by two passes over the input.

The first pass trains a tokenizer, on a declared part of the documents; the second one tokenises in several processes.
Everything is made in one temporary folder and gets its names at the end.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from auditkit.cli import console
from auditkit.errors import UsageError
from auditkit.formats import stream
from auditkit.formats.data_spec import Corpus, DataSpec, Source, Tokenizer
from auditkit.formats.digest import ZERO_DIGEST, content_digest
from auditkit.formats.shards import ShardedCorpus, SourceShards
from auditkit.numerics.sample import sampled
from auditkit.replay.encoder import pieces
from trainer import bpe, lock
from trainer.data import encode, inputs, pool, readers
from trainer.data.batches import BLOCK_BYTES, grouped
from trainer.data.declared import Declared, Sources
from trainer.data.document import RawDocument
from trainer.data.encode import DocumentEncoder, Setup
from trainer.data.ids import IdsWriter
from trainer.data.inputs import Inputs
from trainer.data.options import DataOptions
from trainer.data.shard_files import CORPUS_FOLDER, SHARD_BYTES, ShardWriter
from trainer.disk import TEMPORARY, explain, remove, remove_temporaries, sync_file, sync_folder, write_atomic
from trainer.prepared import Prepared
from trainer.progress import progress
from trainer.work import CORPUS, TOKENIZER, Work

SAMPLE_BYTES = 1 << 28  # of input that a tokenizer is trained on, about, where the user does not say how much

_FLAGS = 1 << 16  # documents whose place in the sample is found at once


@dataclass(frozen=True)
class MixOptions:
    """What only declared sources have: the tokenizer's sample (one document in so many), sizes of a shard, a block."""

    one_in: int | None = None
    shard_bytes: int = SHARD_BYTES
    block_bytes: int = BLOCK_BYTES


@dataclass(frozen=True)
class _Read:
    """The input: each source with its files."""

    sources: tuple[Declared, ...]
    found: tuple[Inputs, ...]
    options: DataOptions
    scratch: Path

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(found.size for found in self.found)

    def documents(self, label: str) -> Iterator[tuple[int, RawDocument]]:
        """All documents in order, each with the number of its source; a bar shows how much of the input was read."""
        with progress(label, self.size) as report:
            done = 0
            name = ""

            def advance(count: int) -> None:
                nonlocal done
                done += count
                report(done, name)

            for number, (source, found) in enumerate(zip(self.sources, self.found, strict=True)):
                for file in found.files:
                    name = file.name
                    read = readers.documents(file, source.text_key, self.options.limit, self.scratch, advance)
                    yield from ((number, document) for document in read)


def prepare_sources(declared: Sources, folder: Path, options: DataOptions, mix: MixOptions) -> str:
    """Fill a new work folder and return a summary for people.

    The same files and options give the same bytes for any number of processes, but for those of the compressed text,
    which vary with zstd. Raises `UsageError` if the folder is prepared already or a source too short, `BadArtifact`
    with file, line or row, and byte for what is no document, `Unsupported` for a full disk.
    """
    _check(declared, options, mix)
    found = tuple(inputs.find(source.path, source.name) for source in declared.sources)
    tokenizer = options.given_tokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    with lock.hold(folder):
        work = Work(folder)
        if work.prepared.exists():
            raise UsageError(f"{folder}: already prepared", hint="choose another work folder")
        remove_temporaries(folder)
        for source, listed in zip(declared.sources, found, strict=True):
            if listed.ignored:
                console.tell(f"source {source.name}: left out {listed.ignored} files of other kinds")
        with _made_in(folder) as made:
            read = _Read(declared.sources, found, options, made)
            one_in = 0
            if tokenizer is None:
                one_in = mix.one_in or max(1, -(-read.size // SAMPLE_BYTES))
                tokenizer = _train(read, one_in)
            prepared, corpus = _write(read, declared, mix, tokenizer, one_in)
            for name, data in ((CORPUS, corpus.encode()), (TOKENIZER, tokenizer)):
                _write_file(made / name, data)
            _give_names(made, work)
        write_atomic(work.prepared, prepared.encode())
    return _summary(prepared, corpus)


def _check(declared: Sources, options: DataOptions, mix: MixOptions) -> None:
    if mix.one_in is not None and options.tokenizer is not None:
        raise UsageError("--tokenizer-sample is of no use with --tokenizer FILE, which is taken as it is")
    tokens = [options.context_length + 1] * len(declared.sources)
    spec = _spec(declared, options, tokens, tokenizer=Tokenizer(ZERO_DIGEST, TOKENIZER, "-", mix.one_in or 0))
    options.check(replace(spec, windows=len(tokens)))


def _train(read: _Read, one_in: int) -> bytes:
    size = read.options.vocab_size
    assert size is not None  # checked: there is no tokenizer that would be taken as it is
    return bpe.train(_sample(read, one_in), size)


def _sample(read: _Read, one_in: int) -> Iterator[str]:
    """The texts of the tokenizer's sample, cut into pieces so that no long text has to be held more than once."""
    current, number = -1, 0
    for source, document in read.documents("reading for the tokenizer"):
        if source != current:
            current, number = source, 0
        if number % _FLAGS == 0:
            flags = sampled(read.options.seed, source, number, _FLAGS, one_in)
        if flags[number % _FLAGS]:
            yield from pieces(document.data.decode("utf-8"))
        number += 1


def _write(
    read: _Read, declared: Sources, mix: MixOptions, tokenizer: bytes, one_in: int
) -> tuple[Prepared, ShardedCorpus]:
    """The shards and the ids of all sources, and what is to be said of them."""
    options, made = read.options, read.scratch
    setup, encoder = options.setup(tokenizer, blocks=True)
    work = Work(made)
    with work.ids.open("xb") as ids_file, work.ids_chunks.open("xb") as chunks_file:
        ids = IdsWriter(ids_file, chunks_file)
        shards, tokens = _write_sources(read, setup, ids, mix)
        digest, chunks = ids.finish()
        for file in (ids_file, chunks_file):
            sync_file(file)
    _check_lengths(declared.sources, tokens, options.context_length)
    corpus = ShardedCorpus(tuple(shards))
    made_by = Tokenizer(encoder.digest, TOKENIZER, encoder.library, one_in)
    spec = _spec(declared, options, tokens, made_by, content_digest(corpus.encode()), encoder.end_of_text, setup)
    return Prepared(spec, setup.vocab_size, ids.count, digest, chunks), corpus


def _write_sources(read: _Read, setup: Setup, ids: IdsWriter, mix: MixOptions) -> tuple[list[SourceShards], list[int]]:
    """The shards of each source, and how many ids it has; one source is written after the other."""
    names = [source.name for source in read.sources]
    writers = [ShardWriter(read.scratch, name, mix.shard_bytes) for name in names]
    tokens = [0] * len(names)
    results = pool.ordered(DocumentEncoder, setup, _jobs(read, mix.block_bytes), read.options.workers(read.size))
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.closing(results))
        for writer in writers:
            stack.callback(writer.close)
        for data, source in results:
            found = encode.result(data, setup)
            assert found.row is not None
            writers[source].add(found.frame, found.row)
            ids.write(found.ids)
            tokens[source] += found.ids.size
        _check_lengths(read.sources, tokens, read.options.context_length)
        return [writer.finish() for writer in writers], tokens


def _jobs(read: _Read, block_bytes: int) -> Iterator[tuple[bytes, int]]:
    """Groups of documents of one source, with its number."""
    for number, pairs in itertools.groupby(read.documents("tokenising"), key=operator.itemgetter(0)):
        for group in grouped((document for _, document in pairs), block_bytes):
            yield encode.pack(group), number


def _check_lengths(sources: Sequence[Declared], tokens: Sequence[int], width: int) -> None:
    for source, count in zip(sources, tokens, strict=True):
        if count <= width:
            raise UsageError(
                f"source {source.name} has {count} tokens, one window needs {width + 1}",
                hint="more text, or a smaller --context-length",
            )


def _spec(
    declared: Sources,
    options: DataOptions,
    tokens: Sequence[int],
    tokenizer: Tokenizer,
    corpus: str = ZERO_DIGEST,
    end_of_text: int = 0,
    setup: Setup | None = None,
) -> DataSpec:
    """The data section; without `setup` one that only stands for it where options are checked."""
    sources = tuple(
        Source(source.name, source.title, source.license, count, source.weight, source.epochs)
        for source, count in zip(declared.sources, tokens, strict=True)
    )
    return DataSpec(
        context_length=options.context_length,
        corpus=Corpus(corpus, declared.license, CORPUS, CORPUS_FOLDER, declared.title),
        dtype=stream.dtype_for(setup.vocab_size if setup else 1 << 16),
        end_of_text=end_of_text,
        kind="frames",
        seed=options.seed,
        tokenizer=tokenizer,
        windows=sum((count - 1) // options.context_length for count in tokens),
        sources=sources,
    )


@contextlib.contextmanager
def _made_in(folder: Path) -> Iterator[Path]:
    """A temporary folder inside the work folder, which goes whatever happens."""
    made = folder / f"{TEMPORARY}data-{os.getpid()}"
    try:
        made.mkdir()
        yield made
    except OSError as error:
        raise explain(error, Path(error.filename or folder), then="prepare again") from error
    finally:
        with contextlib.suppress(OSError):
            remove(made)


def _give_names(made: Path, work: Work) -> None:
    """Move everything that was made to where it belongs, when all of it is on the disk."""
    for parent, _, _ in os.walk(made):
        sync_folder(Path(parent))
    for name in (CORPUS_FOLDER, work.ids.name, work.ids_chunks.name, CORPUS, TOKENIZER):
        remove(work.folder / name)  # of an attempt that was killed at this place
        os.replace(made / name, work.folder / name)
    sync_folder(work.folder)


def _write_file(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        sync_file(file)


def _summary(prepared: Prepared, corpus: ShardedCorpus) -> str:
    lines = []
    for source, shards in zip(prepared.data.sources, corpus.sources, strict=True):
        documents = sum(shard.documents for shard in shards.shards)
        windows = prepared.data.windows_of(source)
        epochs = f", at most {source.epochs} epochs" if source.epochs else ""
        lines.append(
            f"source    {source.name}: {documents} documents, {source.tokens} tokens, {windows} windows, "
            f"weight {source.weight}{epochs}"
        )
    shards_in_all = sum(len(source.shards) for source in corpus.sources)
    return "\n".join([*lines, f"tokens    {prepared.tokens}", f"shards    {shards_in_all}"])
