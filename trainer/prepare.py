"""From a folder of text to a tokenizer, a corpus that can be published, and the token ids to train on.

One corpus whose text is one file; trainer/data/sources.py makes those of declared sources.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import zstandard

from auditkit.cli import console
from auditkit.errors import UsageError
from auditkit.formats import stream
from auditkit.formats.corpus import CorpusIndex, Document
from auditkit.formats.data_spec import Corpus, DataSpec, Tokenizer
from auditkit.formats.digest import ZERO_DIGEST, Digest, Hasher, content_digest
from trainer import bpe, lock
from trainer.data import encode, pool
from trainer.data.batches import grouped
from trainer.data.document import RawDocument
from trainer.data.encode import TEXT_LEVEL, DocumentEncoder, Setup
from trainer.data.options import DataOptions
from trainer.disk import atomic_file, remove_temporaries, write_atomic
from trainer.prepared import Prepared
from trainer.progress import progress
from trainer.texts import TextFolder, open_folder
from trainer.work import CORPUS, TEXT, TOKENIZER, Work


def prepare(text_dir: Path, folder: Path, options: DataOptions) -> str:
    """Fill a new work folder and return a summary for people.

    The same texts and options give the same bytes, but for those of the compressed text, which vary with zstd.
    Raises `UsageError` if the folder is prepared already or the text too short, `BadArtifact` if it is not UTF-8.
    """
    options.check(_data(options, ZERO_DIGEST, ZERO_DIGEST, 1 << 16, 0, 1))
    texts = open_folder(text_dir, options.limit)
    tokenizer = options.given_tokenizer()
    folder.mkdir(parents=True, exist_ok=True)
    with lock.hold(folder):
        work = Work(folder)
        if work.prepared.exists():
            raise UsageError(f"{folder}: already prepared", hint="choose another work folder")
        remove_temporaries(folder)
        if texts.ignored:
            console.tell(f"left out: {texts.ignored} entries of {text_dir} that are not *.txt files")
        tokenizer = tokenizer or _train_tokenizer(texts, options)
        setup, encoder = options.setup(tokenizer, blocks=False)
        corpus, ids = _write_documents(texts, setup, options.workers(texts.size), work)
        prepared = _describe(options, setup, encoder, corpus, ids)
        write_atomic(work.corpus, corpus.encode())
        write_atomic(work.tokenizer, tokenizer)
        write_atomic(work.prepared, prepared.encode())
    return _summary(prepared, corpus)


def _train_tokenizer(texts: TextFolder, options: DataOptions) -> bytes:
    assert options.vocab_size is not None  # checked: there is no tokenizer that would be taken as it is
    with progress("reading", len(texts.documents)) as report:

        def read() -> Iterator[str]:
            for done, (name, _, text) in enumerate(texts.read(), start=1):
                yield text
                report(done, name)

        return bpe.train(read(), options.vocab_size)


def _write_documents(texts: TextFolder, setup: Setup, processes: int, work: Work) -> tuple[CorpusIndex, Digest]:
    """Write the text and the ids document by document; memory holds a few groups of them a process."""
    documents: list[Document] = []
    hasher = Hasher()
    compressor = zstandard.ZstdCompressor(level=TEXT_LEVEL, write_checksum=True)
    raw = (RawDocument(name, data) for name, data, _ in texts.read())
    jobs = ((encode.pack(group), group) for group in grouped(raw))
    with (
        contextlib.closing(pool.ordered(DocumentEncoder, setup, jobs, processes)) as results,
        atomic_file(work.text) as text_file,
        atomic_file(work.ids) as ids_file,
        compressor.stream_writer(text_file, closefd=False) as text_writer,
        progress("tokenising", len(texts.documents)) as report,
    ):
        for result, group in results:
            found = encode.result(result, setup)
            for document, count in zip(group, found.counts.tolist(), strict=True):
                digest = content_digest(document.data)
                documents.append(Document(document.name, len(document.data), count, digest))
                text_writer.write(document.data)
            ids_file.write(found.ids.tobytes())
            hasher.update(found.ids)
            report(len(documents), documents[-1].name)
    return CorpusIndex(tuple(documents)), hasher.hexdigest()


def _describe(options: DataOptions, setup: Setup, encoder: bpe.Encoder, corpus: CorpusIndex, ids: Digest) -> Prepared:
    windows = (corpus.token_count - 1) // options.context_length
    if windows < 1:
        raise UsageError(
            f"the text has {corpus.token_count} tokens, one window needs {options.context_length + 1}",
            hint="more text, or a smaller --context-length",
        )
    index = content_digest(corpus.encode())
    data = _data(options, index, encoder.digest, setup.vocab_size, encoder.end_of_text, windows)
    return Prepared(data, setup.vocab_size, corpus.token_count, ids)


def _data(
    options: DataOptions, corpus: Digest, tokenizer: Digest, vocab_size: int, end_of_text: int, windows: int
) -> DataSpec:
    return DataSpec(
        context_length=options.context_length,
        corpus=Corpus(digest=corpus, license=options.license, path=CORPUS, text=TEXT, title=options.title),
        dtype=stream.dtype_for(vocab_size),
        end_of_text=end_of_text,
        kind="frames",
        seed=options.seed,
        tokenizer=Tokenizer(digest=tokenizer, path=TOKENIZER),
        windows=windows,
    )


def _summary(prepared: Prepared, corpus: CorpusIndex) -> str:
    tokens = prepared.tokens
    return (
        f"documents {len(corpus.documents)}\nbytes     {corpus.text_size}\n"
        f"tokens    {tokens} ({corpus.text_size / tokens:.2f} bytes each)\n"
        f"windows   {prepared.data.windows} of {prepared.data.context_length} tokens an epoch"
    )
