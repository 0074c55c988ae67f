"""Explain the micro-batches of a step: each published leaf, its loss and its gradient, reproduced or not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from auditkit.explain import micro_guesses
from auditkit.explain.bench import Bench, Variant
from auditkit.explain.findings import Standing, Story
from auditkit.explain.micro_guesses import Around, MicroGuess
from auditkit.explain.search import Searcher, explains
from auditkit.formats.leaves import MicroBatchLeaf

MICRO_BATCHES = "micro-batches"


@dataclass
class Micro:
    """Which leaves are published and which came out here, and how each differing one may have come about.

    `moved` are token ids whose rows of the embedding moved otherwise, where the published states tell.
    """

    bench: Bench
    plain: Variant
    theirs: Sequence[MicroBatchLeaf]
    ours: Sequence[MicroBatchLeaf]
    around: Around
    story: Story
    quick: bool
    moved: Sequence[int] | None = None

    def __post_init__(self) -> None:
        self.variants = [self.plain] * len(self.ours)
        self.different = [i for i, pair in enumerate(zip(self.theirs, self.ours, strict=True)) if pair[0] != pair[1]]
        self.left = list(self.different)

    def explain(self) -> bool:
        """Look for causes until every leaf comes out, and say so; whether all do."""
        if not self.different:
            self.story.add(MICRO_BATCHES, Standing.SAME)
            return True
        where = self.describe()
        self._moved_about()
        self._all(micro_guesses.guesses(self.bench.start.step, self.plain, self.around, self.quick))
        if self.left:
            self._search()
        standing = Standing.DIFFERENT if self.left else Standing.REPRODUCED
        self.story.add(MICRO_BATCHES, standing, where)
        return not self.left

    def describe(self) -> str:
        """Where the leaves depart first, in words."""
        first = self.different[0]
        theirs, ours = self.theirs[first], self.ours[first]
        if theirs.loss_sum != ours.loss_sum:
            said = "its loss is another, so already the forward pass departs"
        else:
            said = "its loss is right and its gradient is not, so the backward pass departs"
        others = "" if len(self.different) == 1 else f", and {len(self.different) - 1} more after it"
        alone = " alone" if len(self.different) == 1 and len(self.ours) > 1 else ""
        return f"micro-batch {first}{alone} of {len(self.ours)}: {said}{others}"

    def _moved_about(self) -> None:
        """A published leaf may be that of another micro-batch."""
        size = self.plain.recipe.batch.micro_batch_sequences
        found = {}
        for i in self.left:
            at = next((j for j, leaf in enumerate(self.ours) if leaf == self.theirs[i]), None)
            if at is not None:
                found[i] = at
        for i, j in found.items():
            rows = slice(i * size, (i + 1) * size), slice(j * size, (j + 1) * size)
            if len(self.plain.inputs[rows[0]]) != len(self.plain.inputs[rows[1]]):
                continue
            inputs, targets = self.plain.inputs.copy(), self.plain.targets.copy()
            inputs[rows[0]], targets[rows[0]] = self.plain.inputs[rows[1]], self.plain.targets[rows[1]]
            self._take([i], replace(self.plain, inputs=inputs, targets=targets))
            self.story.found("permuted", f"micro-batch {j} in the place of micro-batch {i}", MICRO_BATCHES)

    def _all(self, guesses: Iterable[MicroGuess], one_leaf: int | None = None) -> None:
        """Try guesses on the first leaf that is left (or that of one micro-batch), and then on all others."""
        refused = 0
        for guess in guesses:
            if not self.left or (one_leaf is not None and one_leaf not in self.left):
                break
            number = self.left[0] if one_leaf is None else one_leaf
            if not self.bench.allows(1):
                refused += 1
                continue
            self.story.tried[f"micro-batches, {guess.key}"] += 1
            self.bench.progress.advance(1)
            if explains(self.bench, guess, number, self.theirs[number]):
                self._accept(guess, number)
        if refused:
            self.story.not_tried.append(f"{refused} guesses about micro-batches: {self.bench.budget} replays are spent")

    def _accept(self, guess: MicroGuess, number: int) -> None:
        others = [i for i in self.left if i != number]
        fitting = [i for i in others if explains(self.bench, guess, i, self.theirs[i])]
        chosen = sorted([number, *fitting])
        if guess.whole and len(chosen) < len(self.left):
            return
        whole = [i for i in range(len(self.ours)) if i not in self.left]
        everywhere = len(chosen) == len(self.left) and all(
            explains(self.bench, guess, i, self.theirs[i]) for i in whole
        )
        self._take(chosen, guess.variant)
        named = f"micro-batch {chosen[0]}" if len(chosen) == 1 else f"micro-batches {_listed(chosen)}"
        words = guess.words if everywhere or guess.words.startswith("micro-batch") else f"{guess.words} in {named}"
        self.story.found(guess.key, words, MICRO_BATCHES)

    def _take(self, numbers: Sequence[int], variant: Variant) -> None:
        for number in numbers:
            self.variants[number] = variant
        self.left = [i for i in self.left if i not in numbers]

    def _search(self) -> None:
        """Search the batch by its losses, where the forward pass departs."""
        searcher = Searcher(self.bench, self.plain, self.moved)
        for number in list(self.left):
            theirs = self.theirs[number]
            if theirs.loss_sum == self.ours[number].loss_sum:
                continue
            self._all(searcher.sequences(number, theirs, self.around, self.bench.start.step), number)
            if number in self.left:
                self._all(searcher.tokens(number, theirs, quick=self.quick), number)
            if not searcher.affordable_batch:
                self.story.not_tried.append(
                    f"other sequences in micro-batch {number}: the model is too large to search"
                )
            if number in self.left and (self.quick or not searcher.affordable(1)):
                self.story.not_tried.append(f"every token at every place of micro-batch {number}")


def _listed(numbers: Sequence[int], most: int = 12) -> str:
    return ", ".join(map(str, numbers[:most])) + (", .." if len(numbers) > most else "")
