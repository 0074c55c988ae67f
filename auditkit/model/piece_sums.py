"""Running sums of the gradient, a piece of a tensor at a time, wherever they lie; exact, or in the declared fold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from auditkit.formats.recipe import Recipe
from auditkit.model.ops import Ops, TensorDigest
from auditkit.model.params import ParamSpec
from auditkit.model.shelf import Shelf
from auditkit.numerics.arrays import F32, I64
from auditkit.numerics.exact_sum import GRADIENT_UNIT
from auditkit.numerics.fold import Fold

BLOCK_ELEMENTS = 32_768  # of binary32, 128 KiB: pieces are hashed in blocks of so much


@dataclass(frozen=True)
class Piece:
    """Rows `first` to `stop` - 1 of a tensor, its `number`-th piece."""

    name: str
    number: int
    first: int
    stop: int

    @property
    def key(self) -> str:
        """What it is called on a shelf."""
        return f"{self.name}.{self.number}"


def pieces_of(spec: ParamSpec, rows: int) -> tuple[Piece, ...]:
    """A tensor in its pieces: vocabulary tables in pieces of `rows` rows (0: whole), all others whole."""
    count = spec.shape[0]
    size = rows if rows and spec.kind in ("embedding", "head") else count
    return tuple(Piece(spec.name, i, at, min(count, at + size)) for i, at in enumerate(range(0, count, size)))


class PieceSums:
    """Takes the gradient sums of micro-batches, for each piece in the order of the micro-batches."""

    def __init__(self, recipe: Recipe, ops: Ops, shelf: Shelf) -> None:
        self._ops, self._shelf, self._radices = ops, shelf, recipe.numerics.fold
        self._counts: dict[str, int] = {}
        self._open: dict[str, list[Any]] = {}

    def add(self, pieces: Sequence[tuple[str, F32 | I64, TensorDigest]]) -> None:
        """Add the sums of the next micro-batch to those of some pieces, and hash them, the next ones of their tensors.

        pieces: key, terms and digest of each; terms: int64 sums, or float32 that stand for them. Raises NonFinite.
        """
        if self._radices:
            for key, terms, digest in pieces:
                held = self._held(key)
                self._put(key, self._folded(held, self._counts.get(key, 0), terms, digest))
            return
        totals = [next(iter(held), None) for held in self._all_held([key for key, _, _ in pieces])]
        terms_of, digests = [terms for _, terms, _ in pieces], [digest for _, _, digest in pieces]
        made = self._ops.add_pieces(totals, terms_of, GRADIENT_UNIT, digests)
        for (key, _, _), sums in zip(pieces, made, strict=True):
            self._put(key, [sums])

    def _held(self, key: str) -> list[Any]:
        return self._all_held([key])[0]

    def _all_held(self, keys: Sequence[str]) -> list[list[Any]]:
        away = [key for key in keys if key not in self._open and self._counts.get(key, 0)]
        found = dict(zip(away, self._shelf.get_all(away), strict=True)) if away else {}
        return [self._open.pop(key) if key in self._open else found.get(key) or [] for key in keys]

    def _put(self, key: str, held: list[Any]) -> None:
        self._open[key] = held
        self._counts[key] = self._counts.get(key, 0) + 1

    def expect(self, keys: Iterable[str]) -> None:
        """The next micro-batches' sums of these pieces will soon be added."""
        for key in keys:
            if self._counts.get(key, 0) and key not in self._open:
                self._shelf.expect(key)

    def settle(self) -> None:
        """Put all pieces that were added to back onto the shelf."""
        opened, self._open = self._open, {}
        if opened:
            self._shelf.put_all(opened)

    def resume(self, keys: list[str], count: int) -> None:
        """Go on from what the shelf holds of `count` micro-batches."""
        self._counts = dict.fromkeys(keys, count)

    def rounded(self, key: str) -> F32:
        """The gradient of a piece, float32."""
        held = self._shelf.get(key)
        assert held is not None
        if not self._radices:
            return self._ops.from_fixed(held, GRADIENT_UNIT)[0]
        return self._fold(held, self._counts[key]).total()

    def _folded(self, held: list[Any], count: int, terms: F32 | I64, digest: TensorDigest) -> list[Any]:
        (sums,) = self._ops.add_pieces([None], [terms], GRADIENT_UNIT, [digest])
        fold = self._fold(held, count)
        fold.push(self._ops.from_fixed([sums], GRADIENT_UNIT)[0])
        return fold.held()

    def _fold(self, held: list[Any], count: int) -> Fold[F32]:
        fold: Fold[F32] = Fold(self._radices, self._ops.add)
        fold.resume(count, held)
        return fold
