"""Does a step's batch follow from corpus, tokenizer and seed: the text is tokenised again and the windows compared.

The only module that uses the `tokenizers` library, and only when it is asked to: a verification of a step works on the
published token ids and needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from auditkit.errors import BadArtifact, Incomplete, MismatchError
from auditkit.formats.corpus import CorpusIndex, Document
from auditkit.formats.digest import content_digest
from auditkit.formats.limits import LIMITS
from auditkit.replay.run import Run
from auditkit.replay.sources import Sequence
from auditkit.replay.steps import DerivedSteps
from auditkit.store.progress import Progress

Encode = Callable[[str], list[int]]

_MISSING_HINT = "pip install 'auditkit-verifier[data]' installs it; verification itself does not need it"


@dataclass(frozen=True)
class Derived:
    """A batch that was derived again and is the published one."""

    library: str
    documents: int
    tokens: int


def derive(run: Run, index: CorpusIndex, step: int, sources: tuple[Sequence, ...], progress: Progress) -> Derived:
    """Tokenise the corpus again and compare the windows of one step with its published tokens.

    Incomplete: the tokenizers library is not installed. BadArtifact: the text is not what the index says.
    MismatchError: another number of tokens in a document, or other tokens in a window or among the published ids, with
    the first differing index.
    """
    encode, library = _encoder(run)
    published = run.tokens(step)
    width = run.manifest.data.context_length + 1
    windows = np.full((len(sources), width), -1, dtype=np.int64)
    begin = 0
    progress.start("tokenise", index.text_size, "bytes")
    try:
        for document, text in documents(run, index):
            ids = np.array([*encode(text), run.manifest.data.end_of_text], dtype=np.int64)
            _same_count(document, ids.size, library)
            _same_ids(run, document, begin, ids, library)
            for row, source in enumerate(sources):
                _copy(windows[row], ids, begin - source.begin)
            begin += ids.size
            progress.advance(document.size)
    finally:
        progress.finish()
    _compare(published, windows, sources, library)
    return Derived(library, len(index.documents), begin)


def documents(run: Run, index: CorpusIndex) -> Iterator[tuple[Document, str]]:
    """Each document of the corpus and its text, in order; one document is in memory at a time.

    BadArtifact: bytes that are not those of the index, or not UTF-8.
    """
    path = run.manifest.data.corpus.text
    reader = zstandard.ZstdDecompressor(max_window_size=LIMITS.zstd_window_bytes)
    with run.file(path).open("rb") as file, reader.stream_reader(file, read_across_frames=True) as stream:
        for document in index.documents:
            data = _read(stream, document.size, path)
            if content_digest(data) != document.digest:
                raise BadArtifact(
                    f"{path}: document {document.name} has digest {content_digest(data)}, "
                    f"the corpus index says {document.digest}"
                )
            try:
                yield document, data.decode("utf-8")
            except UnicodeDecodeError as error:
                raise BadArtifact(f"{path}: document {document.name} is not UTF-8 at byte {error.start}") from error
        if _read(stream, 1, path):
            raise BadArtifact(f"{path}: more text than the documents of the corpus index have")


def _read(stream: Any, size: int, path: str) -> bytes:
    try:
        data: bytes = stream.read(size) if size else b""
    except zstandard.ZstdError as error:
        raise BadArtifact(f"{path}: not zstd: {error}") from error
    return data


def _encoder(run: Run) -> tuple[Encode, str]:
    """Text to ids as the trainer does it, and the library's name and version."""
    path = run.manifest.data.tokenizer.path
    data = run.read(path)
    try:
        import tokenizers
    except ImportError as error:
        raise Incomplete("the tokenizers library is not installed", hint=_MISSING_HINT) from error
    try:
        made: Any = tokenizers.Tokenizer.from_buffer(data)
    except (ValueError, TypeError) as error:
        raise BadArtifact(f"{path}: {str(error).lower()}") from error
    # the name of a special token inside a document is text: only the end of a document gives the special id
    made.encode_special_tokens = True
    return (lambda text: list(made.encode(text, add_special_tokens=False).ids)), f"tokenizers {tokenizers.__version__}"


def _copy(window: NDArray[np.int64], ids: NDArray[np.int64], offset: int) -> None:
    """Put the ids that begin `offset` places after the window's beginning where they belong, if they reach into it."""
    begin, end = max(offset, 0), min(offset + ids.size, window.size)
    if begin < end:
        window[begin:end] = ids[begin - offset : end - offset]


def _same_count(document: Document, found: int, library: str) -> None:
    if found != document.tokens:
        raise MismatchError(
            f"document {document.name} has {found} tokens with {library}, the corpus index says {document.tokens}",
            hint="another tokenizer.json, or a release of the library that tokenises otherwise",
        )


def _same_ids(run: Run, document: Document, begin: int, ids: NDArray[np.int64], library: str) -> None:
    """Where the run publishes ids and no stream, all of them must follow from the text, not only those of the step."""
    if not isinstance(run.steps, DerivedSteps):
        return
    published = run.steps.ids[begin : begin + ids.size]
    different = np.flatnonzero(published != ids)
    if different.size:
        at = int(different[0])
        raise MismatchError(
            f"document {document.name}, token {at} (token {begin + at} of the corpus): published {int(published[at])}, "
            f"derived with {library} {int(ids[at])}; {different.size} of {ids.size} tokens differ"
        )


def _compare(published: NDArray[Any], windows: NDArray[np.int64], sources: tuple[Sequence, ...], library: str) -> None:
    different = np.argwhere(published.astype(np.int64) != windows)
    if different.size:
        row, column = map(int, different[0])
        source = sources[row]
        raise MismatchError(
            f"sequence {row}, token {column} (token {source.begin + column} of the corpus): published "
            f"{int(published[row, column])}, derived with {library} {int(windows[row, column])}; "
            f"{len(different)} of {published.size} tokens differ"
        )
