"""Does a step's batch follow from corpus, tokenizer and seed: the text is tokenised again and the windows compared.

Here for a corpus that is one text in one file: all of it is read and compared. block_corpus.py reads only what a step
needs, where the text lies in blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from auditkit.errors import BadArtifact, MismatchError, Unsupported
from auditkit.formats.corpus import CorpusIndex, Document
from auditkit.formats.data_spec import DataSpec
from auditkit.formats.digest import content_digest
from auditkit.formats.limits import LIMITS
from auditkit.formats.timeline import Segment
from auditkit.replay.encoder import TextEncoder
from auditkit.replay.run import Run
from auditkit.replay.sources import Sequence, corpus_index, sequences
from auditkit.replay.steps import DerivedSteps
from auditkit.store.progress import Progress

_CHUNK = 1 << 20  # bytes decompressed at a time: what a document claims to have is not asked for at once


@dataclass(frozen=True)
class Derived:
    """A batch that was derived again and is the published one."""

    library: str
    documents: int
    tokens: int


def derive(
    run: Run, data: DataSpec, index: CorpusIndex, step: int, sources: tuple[Sequence, ...], progress: Progress
) -> Derived:
    """Tokenise the corpus again and compare the windows of one step with its published tokens.

    Incomplete: the tokenizers library is not installed. BadArtifact: the text is not what the index says.
    MismatchError: another number of tokens in a document, or other tokens in a window or among the published ids, with
    the first differing index.
    """
    encoder = encoder_of(run)
    published = run.tokens(step)
    windows = np.full((len(sources), data.context_length + 1), -1, dtype=np.int64)
    begin = 0
    progress.start("tokenise", index.text_size, "bytes")
    try:
        for document, text in documents(run, data, index):
            ids = np.append(next(encoder.ids([text])), data.end_of_text)
            same_count(document.name, document.tokens, ids.size, encoder.library)
            _same_ids(run, data, document, begin, ids, encoder.library)
            for row, source in enumerate(sources):
                copy_ids(windows[row], ids, begin - source.begin)
            begin += ids.size
            progress.advance(document.size)
    finally:
        progress.finish()
    compare_windows(published, windows, sources, encoder.library)
    return Derived(encoder.library, len(index.documents), begin)


class WholeCorpus:
    """The corpus of a segment's data whose text is one file."""

    def __init__(self, run: Run, segment: Segment) -> None:
        """Reads the index. BadArtifact, Unavailable."""
        self._run, self._segment = run, segment
        self._index = corpus_index(run, segment.data)

    def sequences(self, step: int) -> tuple[Sequence, ...]:
        """Where each sequence of a step's batch comes from."""
        return sequences(self._segment, self._index, step)

    def derive(self, step: int, sources: tuple[Sequence, ...], progress: Progress) -> Derived:
        """See `derive`."""
        return derive(self._run, self._segment.data, self._index, step, sources, progress)


def documents(run: Run, data: DataSpec, index: CorpusIndex) -> Iterator[tuple[Document, str]]:
    """Each document of the corpus and its text, in order; one document is in memory at a time.

    BadArtifact: bytes that are not those of the index, or not UTF-8; Unsupported: a document of 256 MiB or more.
    """
    path = data.corpus.text
    reader = zstandard.ZstdDecompressor(max_window_size=LIMITS.zstd_window_bytes)
    with run.file(path).open("rb") as file, reader.stream_reader(file, read_across_frames=True) as stream:
        for document in index.documents:
            if document.size > LIMITS.block_bytes:
                large = f"document {document.name} of {document.size} bytes, at most {LIMITS.block_bytes} are read here"
                raise Unsupported(large, hint="the token ids are checked all the same by `auditkit verify`")
            text = _read(stream, document.size, path)
            if content_digest(text) != document.digest:
                raise BadArtifact(
                    f"{path}: document {document.name} has digest {content_digest(text)}, "
                    f"the corpus index says {document.digest}"
                )
            try:
                yield document, text.decode("utf-8")
            except UnicodeDecodeError as error:
                raise BadArtifact(f"{path}: document {document.name} is not UTF-8 at byte {error.start}") from error
        if _read(stream, 1, path):
            raise BadArtifact(f"{path}: more text than the documents of the corpus index have")


def _read(stream: Any, size: int, path: str) -> bytes:
    parts = []
    try:
        while size and (part := stream.read(min(size, _CHUNK))):
            parts.append(part)
            size -= len(part)
    except zstandard.ZstdError as error:
        raise BadArtifact(f"{path}: not zstd: {error}") from error
    return b"".join(parts)


def encoder_of(run: Run) -> TextEncoder:
    """Text to ids as the trainer does it. Incomplete: the tokenizers library is not installed; BadArtifact."""
    path = run.manifest.data.tokenizer.path
    return TextEncoder(run.read(path), path)


def copy_ids(window: NDArray[np.int64], ids: NDArray[np.int64], offset: int) -> None:
    """Put the ids that begin `offset` places after the window's beginning where they belong, if they reach into it."""
    begin, end = max(offset, 0), min(offset + ids.size, window.size)
    if begin < end:
        window[begin:end] = ids[begin - offset : end - offset]


def same_count(name: str, tokens: int, found: int, library: str) -> None:
    """Refuse a document that has `found` ids here and `tokens` by the corpus; MismatchError."""
    if found != tokens:
        raise MismatchError(
            f"document {name} has {found} tokens with {library}, the corpus index says {tokens}",
            hint="another tokenizer.json, or a release of the library that tokenises otherwise",
        )


def _same_ids(run: Run, data: DataSpec, document: Document, begin: int, ids: NDArray[np.int64], library: str) -> None:
    """Where the run publishes ids and no stream, all of them must follow from the text, not only those of the step."""
    if not isinstance(run.steps, DerivedSteps):
        return
    published = run.steps.ids(data)[begin : begin + ids.size]
    different = np.flatnonzero(published != ids)
    if different.size:
        at = int(different[0])
        raise MismatchError(
            f"document {document.name}, token {at} (token {begin + at} of the corpus): published {int(published[at])}, "
            f"derived with {library} {int(ids[at])}; {different.size} of {ids.size} tokens differ"
        )


def compare_windows(
    published: NDArray[Any], windows: NDArray[np.int64], sources: tuple[Sequence, ...], library: str
) -> None:
    """Refuse published tokens (sequences, context_length + 1) that are not the derived ones; MismatchError."""
    different = np.argwhere(published.astype(np.int64) != windows)
    if different.size:
        row, column = map(int, different[0])
        source = sources[row]
        raise MismatchError(
            f"sequence {row}, token {column} (token {source.begin + column} of the corpus): published "
            f"{int(published[row, column])}, derived with {library} {int(windows[row, column])}; "
            f"{len(different)} of {published.size} tokens differ"
        )
