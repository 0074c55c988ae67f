"""Documents in groups of about the same size, each of which becomes a job and, with declared sources, a block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trainer.data.document import RawDocument

# A block is what a reader fetches for one sequence: half a megabyte of text is about 0.2 MB compressed, and larger
# blocks would be compressed by a few per cent better.
BLOCK_BYTES = 1 << 19
BLOCK_DOCUMENTS = 1 << 12


def grouped(documents: Iterable[RawDocument], most: int = BLOCK_BYTES) -> Iterator[list[RawDocument]]:
    """Consecutive documents whose texts have at most `most` bytes together, a longer one by itself; none is empty."""
    group: list[RawDocument] = []
    size = 0
    for document in documents:
        if group and (size + len(document.data) > most or len(group) == BLOCK_DOCUMENTS):
            yield group
            group, size = [], 0
        group.append(document)
        size += len(document.data)
    if group:
        yield group
