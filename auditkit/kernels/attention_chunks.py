"""The chunks in which the scores of an attention are computed; no cut can change a bit (SPEC.md section 8)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

STEP = 128  # tokens: a chunk begins at a multiple, so that its rows and columns are whole parts of operands
# Rows of a chunk's result where rows are queries or keys: so many that each multiprocessor of a large card has a tile.
QUERY_ROWS, KEY_ROWS = 1 << 14, 1 << 13  # the results for keys are two, dK and dV
MOST = 1 << 27  # scores of a chunk, unless STEP tokens of one group have more


@dataclass(frozen=True)
class Sizes:
    """Groups (sequences times key heads), the query heads of each, tokens, and the window (0 for none)."""

    groups: int
    heads: int
    tokens: int
    window: int


@dataclass(frozen=True)
class Chunk:
    """A part of the scores of some groups: rows and columns are rows of queries (token by token, the heads of a token
    side by side) and keys, or the other way round.

    query, key: their first tokens.
    """

    groups: slice
    rows: slice
    columns: slice
    query: int
    key: int

    @property
    def batch(self) -> int:
        """How many groups."""
        return int(self.groups.stop - self.groups.start)

    @property
    def height(self) -> int:
        """How many rows."""
        return int(self.rows.stop - self.rows.start)

    @property
    def width(self) -> int:
        """How many columns."""
        return int(self.columns.stop - self.columns.start)

    @property
    def scores(self) -> int:
        """Elements."""
        return self.batch * self.height * self.width


def query_chunks(sizes: Sizes) -> list[Chunk]:
    """Chunks whose rows are queries, with the keys that they see."""

    def keys(start: int, stop: int) -> slice:
        first = max(0, start - sizes.window + 1) if sizes.window else 0
        return slice(first // STEP * STEP, stop)

    return [
        Chunk(groups, _stacked(tokens, sizes), met, tokens.start, met.start)
        for groups, tokens, met in _cut(sizes, QUERY_ROWS // sizes.heads, keys)
    ]


def key_chunks(sizes: Sizes) -> list[Chunk]:
    """Chunks whose rows are keys, with the queries that see them: all of these, for they are one exact sum."""

    def queries(start: int, stop: int) -> slice:
        last = stop - 1 + sizes.window if sizes.window else sizes.tokens
        return slice(start, min(sizes.tokens, -(-last // STEP) * STEP))

    return [
        Chunk(groups, tokens, _stacked(met, sizes), met.start, tokens.start)
        for groups, tokens, met in _cut(sizes, KEY_ROWS, queries)
    ]


def _cut(sizes: Sizes, rows: int, met: Callable[[int, int], slice]) -> Iterator[tuple[slice, slice, slice]]:
    """Groups, tokens of the rows, tokens of the columns; `rows` tokens of all groups together, if MOST allows.

    met: the tokens of the columns, from where those of the rows begin and end.
    """
    groups, size = sizes.groups, max(STEP, rows // max(1, sizes.groups) // STEP * STEP)
    for start in range(0, sizes.tokens, size):
        tokens = slice(start, min(sizes.tokens, start + size))
        columns = met(tokens.start, tokens.stop)
        of_group = sizes.heads * (tokens.stop - tokens.start) * (columns.stop - columns.start)
        parts = -(-groups // max(1, MOST // of_group))
        for part in range(parts):
            yield slice(part * groups // parts, (part + 1) * groups // parts), tokens, columns


def _stacked(tokens: slice, sizes: Sizes) -> slice:
    """The rows of queries of some tokens."""
    return slice(tokens.start * sizes.heads, tokens.stop * sizes.heads)
