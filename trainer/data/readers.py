"""Files as documents: by the suffix of a name, one document a file, a line or a row."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trainer.data import lines, parquet
from trainer.data.chunks import Advance, chunks
from trainer.data.document import Limit, RawDocument, check_text
from trainer.data.inputs import LINES, PARQUET, Input


def documents(file: Input, key: str, limit: Limit, scratch: Path, advance: Advance) -> Iterator[RawDocument]:
    """The documents of a file; memory holds a document, or a few megabytes of rows.

    `key` names the text of a line or row. `scratch` is a folder for a Parquet file that has to be decompressed first:
    it is read from its end. Raises Unavailable, BadArtifact with file, line or row, and byte.
    """
    if file.kind == PARQUET:
        with _unpacked(file, scratch, advance) as path:
            yield from parquet.documents(path, file.name, key, limit)
    elif file.kind == LINES:
        yield from lines.documents(chunks(file, advance), file.name, key, limit)
    else:
        yield _whole(file, limit, advance)


def _whole(file: Input, limit: Limit, advance: Advance) -> RawDocument:
    parts, size = [], 0
    for piece in chunks(file, advance):
        size += len(piece)
        limit.check(size, file.name)
        parts.append(piece)
    data = b"".join(parts)
    check_text(data, file.name)
    return RawDocument(file.name, data)


@contextlib.contextmanager
def _unpacked(file: Input, scratch: Path, advance: Advance) -> Iterator[Path]:
    """The file itself, or what it holds, in a temporary file that goes afterwards."""
    if not file.packed:
        yield file.path
        advance(file.size)
        return
    descriptor, name = tempfile.mkstemp(dir=scratch)
    path = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            for piece in chunks(file, advance):
                out.write(piece)
        yield path
    finally:
        path.unlink(missing_ok=True)
