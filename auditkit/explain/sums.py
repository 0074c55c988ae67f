"""The gradient of a step from micro-batches that are right, added up in other ways: what gives the published root?"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from auditkit.explain.bench import Bench, Variant, root
from auditkit.formats.digest import Digest
from auditkit.model.step import GradSum
from auditkit.model.totals import FoldedTotals
from auditkit.numerics import reference
from auditkit.numerics.arrays import F32, I64
from auditkit.numerics.exact_sum import GRADIENT_UNIT
from auditkit.numerics.nonfinite import NonFinite

KEEP_BYTES = 1 << 29  # of the parts of all micro-batches, to be computed once only
RANKS = (2, 4, 8)


class Parts:
    """The gradient sums of all micro-batches, under one variant each: kept if they are small, else computed anew."""

    def __init__(self, bench: Bench, variants: Sequence[Variant]) -> None:
        self._bench, self.variants = bench, list(variants)
        elements = sum(array.size for array in bench.start.state.params.values())
        self._keep = elements * 8 * bench.count <= KEEP_BYTES
        self._kept: list[GradSum] = []

    def __iter__(self) -> Iterator[GradSum]:
        """Each in order. NonFinite: one has no result."""
        if self._kept:
            yield from self._kept
            return
        made = []
        for part in self._bench.parts(self.variants, free=True):
            if part is None:
                raise NonFinite("a micro-batch has no result")
            made += [part] if self._keep else []
            yield part
        self._kept = made

    @property
    def cheap(self) -> bool:
        """Whether they are kept."""
        return self._keep


@dataclass(frozen=True)
class SumGuess:
    """A gradient that was added up otherwise: the key of its kind, words, and its float32 tensors."""

    key: str
    words: str
    rounded: list[F32]


def guesses(parts: Parts, declared: Sequence[F32], names: Sequence[str], quick: bool) -> Iterator[SumGuess]:
    """Sums that leave something out, count it twice, divide it or add in another order; likely ones first."""
    count = len(parts.variants)
    yield from _scaled(declared, count, parts)
    if count == 1:
        return
    total = total_of(parts)
    yield from _folds(parts, count)
    for number, part in enumerate(parts):
        yield SumGuess("left-out", f"micro-batch {number} left out", _rounded(_less(total, part)))
        yield SumGuess("counted-twice", f"micro-batch {number} counted twice", _rounded(_more(total, part)))
        alone = list(part.grads.values())
        yield SumGuess("alone", f"micro-batch {number} alone, the others not added", _rounded(alone))
    if parts.cheap:
        yield from _groups(parts, count, total)
    if not quick:
        yield from _tensors(parts, declared, names)


def _scaled(declared: Sequence[F32], count: int, parts: Parts) -> Iterator[SumGuess]:
    sequences = parts.variants[0].inputs.shape[0]
    tokens = parts.variants[0].total_targets
    factors = {
        count: "by the number of micro-batches", sequences: "by the number of sequences",
        tokens: "by the number of tokens", 2: "by 2", 4: "by 4", 8: "by 8",
    }  # fmt: skip
    for factor, words in factors.items():
        if factor == 1:
            continue
        f = np.float32(factor)
        with np.errstate(all="ignore"):
            yield SumGuess("divided", f"the gradient divided {words} once more", [g / f for g in declared])
            inverse = np.float32(1) / f
            yield SumGuess("divided", f"the gradient times 1/{factor} once more", [g * inverse for g in declared])
            yield SumGuess("divided", f"the gradient multiplied {words}", [g * f for g in declared])
    yield SumGuess("gradient-zero", "a gradient of zero", [np.zeros_like(g) for g in declared])


def total_of(parts: Iterable[GradSum]) -> list[I64]:
    """The exact sums over micro-batches, int64 in units 2^-56, one tensor after the other."""
    total: list[I64] = []
    for part in parts:
        terms = list(part.grads.values())
        total = [a + b for a, b in zip(total, terms, strict=True)] if total else terms
    return total


def _less(total: Sequence[I64], part: GradSum) -> list[I64]:
    return [a - b for a, b in zip(total, part.grads.values(), strict=True)]


def _more(total: Sequence[I64], part: GradSum) -> list[I64]:
    return [a + b for a, b in zip(total, part.grads.values(), strict=True)]


def _rounded(sums: Sequence[I64]) -> list[F32]:
    return reference.from_fixed(sums, GRADIENT_UNIT)


def _folds(parts: Parts, count: int) -> Iterator[SumGuess]:
    """Additions in binary32 in orders that ranks and collectives have; the exact sum where a fold is declared."""
    declared = parts.variants[0].recipe.numerics.fold
    if declared:
        yield SumGuess("fold", "the gradients added exactly instead of in the declared fold", _rounded(total_of(parts)))
    radices: dict[tuple[int, ...], str] = {(): "one after the other"}
    for size in range(2, count):
        if count % size == 0:
            radices[(size,)] = f"in groups of {size}, as {count // size} ranks do"
    if count > 3:  # with fewer it is one after the other
        radices.setdefault((2,) * (count.bit_length() - 1), "as a tree of pairs")
    for groups, words in radices.items():
        if declared and groups == tuple(declared):
            continue
        fold = FoldedTotals(groups, reference)
        for part in parts:
            fold.add(part.grads)
        yield SumGuess("fold", f"the gradients of micro-batches added in binary32, {words}", fold.rounded())
    if parts.cheap:
        fold = FoldedTotals((), reference)
        for part in reversed(list(parts)):
            fold.add(part.grads)
        yield SumGuess("fold", "the gradients of micro-batches added in binary32, the last one first", fold.rounded())


def _groups(parts: Parts, count: int, total: Sequence[I64]) -> Iterator[SumGuess]:
    """What one of several ranks holds: left out, or alone."""
    held = list(parts)
    for ranks in RANKS:
        if count % ranks or count == ranks:
            continue
        each = count // ranks
        for rank in range(ranks):
            for words, chosen in (
                (f"{rank * each} to {(rank + 1) * each - 1}", held[rank * each : (rank + 1) * each]),
                (f"{rank}, {rank + ranks}, ..", held[rank::ranks]),
            ):
                group = total_of(chosen)
                rest = [a - b for a, b in zip(total, group, strict=True)]
                said = f"micro-batches {words}, those of rank {rank} of {ranks},"
                yield SumGuess("left-out", f"{said} left out", _rounded(rest))
                yield SumGuess("alone", f"{said} alone", _rounded(group))


def _tensors(parts: Parts, declared: Sequence[F32], names: Sequence[str]) -> Iterator[SumGuess]:
    """One tensor of the gradient other than the rest: zero, or of one micro-batch alone."""
    for i, name in enumerate(names):
        zero = np.zeros_like(declared[i])
        yield SumGuess("one-tensor", f"the gradient of {name} zero", [*declared[:i], zero, *declared[i + 1 :]])
    for number in (0, len(parts.variants) - 1) if parts.cheap else ():
        part = list(parts)[number]
        alone = _rounded(list(part.grads.values()))
        for i, name in enumerate(names):
            words = f"the gradient of {name} that of micro-batch {number} alone"
            yield SumGuess("one-tensor", words, [*declared[:i], alone[i], *declared[i + 1 :]])


def with_older(total: Sequence[I64], older: Sequence[I64], step: int) -> Iterator[SumGuess]:
    """The sums of the step before, still in the buffer or in the place of the own ones."""
    words = f"the gradient of step {step - 1} not cleared from the buffer before"
    yield SumGuess("not-cleared", words, _rounded([a + b for a, b in zip(total, older, strict=True)]))
    yield SumGuess("stale-gradient", f"a stale gradient, that of step {step - 1}", _rounded(older))


def matches(guess: SumGuess, names: Sequence[str], gradient: Digest) -> bool:
    """Whether a guess gives the published gradient."""
    return root(guess.rounded, names) == gradient
