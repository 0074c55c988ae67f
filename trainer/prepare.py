"""From a folder of text to a tokenizer, a corpus that can be published, and the token ids to train on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import zstandard

from auditkit.cli import console
from auditkit.errors import BadArtifact, UsageError
from auditkit.formats import stream
from auditkit.formats.corpus import CorpusIndex, Document
from auditkit.formats.digest import ZERO_DIGEST, Digest, Hasher, content_digest
from auditkit.formats.fields import Fields
from auditkit.formats.run import Corpus, DataSpec, Tokenizer
from trainer import bpe, lock
from trainer.disk import atomic_file, remove_temporaries, write_atomic
from trainer.prepared import Prepared
from trainer.progress import progress
from trainer.texts import TextFolder, open_folder
from trainer.work import CORPUS, TEXT, TOKENIZER, Work

TEXT_LEVEL = 12  # of zstd: text is compressed once and downloaded often


@dataclass(frozen=True)
class DataOptions:
    """What the user chooses about the data; `license` is an SPDX expression, `seed` orders the windows."""

    vocab_size: int
    context_length: int
    seed: int
    title: str
    license: str


def prepare(text_dir: Path, folder: Path, options: DataOptions) -> str:
    """Fill a new work folder and return a summary for people.

    The same texts and options give the same bytes, but for those of the compressed text, which vary with zstd.
    Raises `UsageError` if the folder is prepared already or the text too short, `BadArtifact` if it is not UTF-8.
    """
    _check_options(options)
    texts = open_folder(text_dir)
    folder.mkdir(parents=True, exist_ok=True)
    with lock.hold(folder):
        work = Work(folder)
        if work.prepared.exists():
            raise UsageError(f"{folder}: already prepared", hint="choose another work folder")
        remove_temporaries(folder)
        if texts.ignored:
            console.tell(f"left out: {texts.ignored} entries of {text_dir} that are not *.txt files")
        tokenizer = _train_tokenizer(texts, options.vocab_size)
        encoder = bpe.Encoder(tokenizer)
        corpus, ids = _write_documents(texts, encoder, work)
        prepared = _describe(options, encoder, corpus, ids)
        write_atomic(work.corpus, corpus.encode())
        write_atomic(work.tokenizer, tokenizer)
        write_atomic(work.prepared, prepared.encode())
    return _summary(prepared, corpus)


def _train_tokenizer(texts: TextFolder, vocab_size: int) -> bytes:
    with progress("reading", len(texts.documents)) as report:

        def read() -> Iterator[str]:
            for done, (name, _, text) in enumerate(texts.read(), start=1):
                yield text
                report(done, name)

        return bpe.train(read(), vocab_size)


def _write_documents(texts: TextFolder, encoder: bpe.Encoder, work: Work) -> tuple[CorpusIndex, Digest]:
    """Write the text and the ids document by document; memory holds one document at a time."""
    dtype = stream.dtype_for(encoder.vocab_size)
    documents: list[Document] = []
    hasher = Hasher()
    compressor = zstandard.ZstdCompressor(level=TEXT_LEVEL, write_checksum=True)
    with (
        atomic_file(work.text) as text_file,
        atomic_file(work.ids) as ids_file,
        compressor.stream_writer(text_file, closefd=False) as text_writer,
        progress("tokenising", len(texts.documents)) as report,
    ):
        for name, data, text in texts.read():
            tokens = stream.to_tokens(encoder.encode(text, what=name), dtype, encoder.vocab_size)
            documents.append(Document(name, len(data), len(tokens), content_digest(data)))
            text_writer.write(data)
            ids_file.write(tokens.tobytes())
            hasher.update(tokens)
            report(len(documents), name)
    return CorpusIndex(tuple(documents)), hasher.hexdigest()


def _describe(options: DataOptions, encoder: bpe.Encoder, corpus: CorpusIndex, ids: Digest) -> Prepared:
    windows = (corpus.token_count - 1) // options.context_length
    if windows < 1:
        raise UsageError(
            f"the text has {corpus.token_count} tokens, one window needs {options.context_length + 1}",
            hint="more text, or a smaller --context-length",
        )
    data = _data(options, content_digest(corpus.encode()), encoder.digest, encoder.end_of_text, windows)
    return Prepared(data, encoder.vocab_size, corpus.token_count, ids)


def _data(options: DataOptions, corpus: Digest, tokenizer: Digest, end_of_text: int, windows: int) -> DataSpec:
    text = Corpus(digest=corpus, license=options.license, path=CORPUS, text=TEXT, title=options.title)
    return DataSpec(
        context_length=options.context_length,
        corpus=text,
        dtype=stream.dtype_for(options.vocab_size),
        end_of_text=end_of_text,
        kind="frames",
        seed=options.seed,
        tokenizer=Tokenizer(digest=tokenizer, path=TOKENIZER),
        windows=windows,
    )


def _check_options(options: DataOptions) -> None:
    """Refuse what the formats do not allow before any work is done; raises `UsageError`."""
    try:
        DataSpec.from_fields(Fields(_data(options, ZERO_DIGEST, ZERO_DIGEST, 0, 1).to_value(), "options"))
    except BadArtifact as error:
        raise UsageError(error.message, hint=error.hint) from error


def _summary(prepared: Prepared, corpus: CorpusIndex) -> str:
    tokens = prepared.tokens
    return (
        f"documents {len(corpus.documents)}\nbytes     {corpus.text_size}\n"
        f"tokens    {tokens} ({corpus.text_size / tokens:.2f} bytes each)\n"
        f"windows   {prepared.data.windows} of {prepared.data.context_length} tokens an epoch"
    )
