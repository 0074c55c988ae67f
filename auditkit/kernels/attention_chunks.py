"""The chunks in which the scores of an attention are computed; no cut can change a bit (SPEC.md section 8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

STEP = 128  # tokens: a chunk begins at a multiple, so that its rows and columns are whole parts of operands
# Rows of a chunk's result, when its rows are queries or keys: as many as give each multiprocessor of a large card a tile.
QUERY_ROWS, KEY_ROWS = 1 << 14, 1 << 13  # the results for keys are two, dK and dV
MOST = 1 << 27  # scores of a chunk, if a step of one group has not more


@dataclass(frozen=True)
class Chunk:
    """Some groups, tokens whose queries (or keys) are the rows of a chunk, and tokens of its columns."""

    groups: slice
    rows: slice
    columns: slice

    def scores(self, heads: int) -> int:
        """Its elements, with `heads` queries a token."""
        count = (self.groups.stop - self.groups.start) * (self.rows.stop - self.rows.start)
        return count * (self.columns.stop - self.columns.start) * heads


def query_chunks(groups: int, heads: int, tokens: int, window: int) -> list[Chunk]:
    """Chunks whose rows are queries, with the keys that they see; the largest first."""

    def keys(start: int, stop: int) -> slice:
        first = max(0, start - window + 1) if window else 0
        return slice(first // STEP * STEP, stop)

    return _largest_first(_chunks(groups, heads, tokens, QUERY_ROWS // heads, keys), heads)


def key_chunks(groups: int, heads: int, tokens: int, window: int) -> list[Chunk]:
    """Chunks whose rows are keys, with the queries that see them: all of these, for they are one exact sum."""

    def queries(start: int, stop: int) -> slice:
        last = min(tokens, stop - 1 + window) if window else tokens
        return slice(start, min(tokens, -(-last // STEP) * STEP))

    return _largest_first(_chunks(groups, heads, tokens, KEY_ROWS, queries), heads)


def most_scores(groups: int, heads: int, tokens: int, window: int) -> tuple[int, int]:
    """Elements of the largest chunk of queries, and of the largest of keys."""
    queries, keys = (cut(groups, heads, tokens, window)[0].scores(heads) for cut in (query_chunks, key_chunks))
    return queries, keys


def _chunks(groups: int, heads: int, tokens: int, rows: int, met: Callable[[int, int], slice]) -> Iterator[Chunk]:
    """rows: tokens of all groups together that a chunk should have. met: the tokens of the columns, from those of rows."""
    size = max(STEP, rows // max(1, groups) // STEP * STEP)
    for start in range(0, tokens, size):
        stop = min(tokens, start + size)
        columns = met(start, stop)
        of_group = Chunk(slice(0, 1), slice(start, stop), columns).scores(heads)
        parts = -(-groups // max(1, MOST // of_group))
        for part in range(parts):
            at = slice(part * groups // parts, (part + 1) * groups // parts)
            yield Chunk(at, slice(start, stop), columns)


def _largest_first(chunks: Iterator[Chunk], heads: int) -> list[Chunk]:
    """So that memory that one chunk gives back is enough for the next."""
    return sorted(chunks, key=lambda chunk: -chunk.scores(heads))
