"""Search a batch by its losses: sequences in another order or from elsewhere, and one token that was replaced.

The forward result of a sequence does not depend on the others (SPEC.md section 8), and losses are exact integers that
add up: so the loss sum of a leaf says which sequences it can be of. A sequence is only named if the gradient agrees.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from auditkit.explain.bench import Bench, Variant
from auditkit.explain.micro_guesses import Around, MicroGuess
from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import Recipe
from auditkit.model.network import Network, prepare
from auditkit.model.params import EMBED, FINAL_NORM, HEAD, layer_prefix
from auditkit.numerics import reference
from auditkit.numerics.arrays import F32, I64, IntArray
from auditkit.numerics.cross_entropy import row_losses
from auditkit.numerics.nonfinite import NonFinite

COMBINATIONS = 1 << 18  # of sequences, whose sums of losses are looked at
MOST_WORK = 1 << 36  # tokens times weights of all forward passes in the search for a token
MOST_BATCH = 1 << 42  # the same for the losses of all sequences of a step
CHUNK = 1 << 13  # tokens of one forward pass
LIKELY = 24  # rows of the embedding that moved most


class Losses(Network):
    """The forward pass alone."""

    def logits(self, inputs: IntArray) -> F32:
        """Logits (B * T, V) of inputs (B, T). Raises NonFinite."""
        ops, params = self.ops, self.prepared.params
        x = ops.embedding_forward(inputs.reshape(-1), params[EMBED])
        for layer in range(self.model.num_layers):
            x, _ = self.layer_forward(x, layer_prefix(layer), len(inputs))
        y, _ = self.norm(x, FINAL_NORM)
        weight = EMBED if self.model.tied_head else HEAD
        return ops.dot(ops.quantise(y, self.recipe.numerics.head_bits), self.prepared.rows[weight])

    def rows(self, logits: F32, targets: IntArray) -> I64:
        """The exact loss (units 2^-32) of each row of logits (N, V) with its target (N,). Raises NonFinite."""
        return row_losses(logits.copy(), targets, np.float32(self.recipe.loss.z_loss))

    def sums(self, inputs: IntArray, targets: IntArray) -> I64:
        """The exact loss of each sequence of inputs and targets (B, T), (B,) int64, a few sequences at a time."""
        step = max(1, CHUNK // inputs.shape[1])
        found = []
        for at in range(0, len(inputs), step):
            x, y = inputs[at : at + step], targets[at : at + step]
            found.append(self.rows(self.logits(x), y.reshape(-1)).reshape(x.shape).sum(axis=1))
        return np.concatenate(found)


class Searcher:
    """Searches the batch of one micro-batch, whose published leaf is another than that of `plain`."""

    def __init__(self, bench: Bench, plain: Variant, moved: Sequence[int] | None) -> None:
        self._bench, self._plain, self._moved = bench, plain, moved
        recipe: Recipe = plain.recipe
        self._losses = Losses(prepare(plain.params, recipe, reference), recipe, reference)
        self._size = recipe.batch.micro_batch_sequences
        self._weights = sum(array.size for array in plain.params.values())

    def sequences(self, number: int, theirs: MicroBatchLeaf, around: Around, step: int) -> Iterator[MicroGuess]:
        """Micro-batch `number` of other sequences of the step or its neighbours, whose losses have the right sum."""
        plain = self._plain
        if not self.affordable_batch:
            return
        own = range(number * self._size, min((number + 1) * self._size, len(plain.inputs)))
        losses = self._losses.sums(plain.inputs, plain.targets).tolist()
        delta = theirs.loss_sum - sum(losses[i] for i in own)
        for name, inputs, targets, other in self._pool(around, step, losses):
            for i in own:
                if losses[i] + delta == other:
                    words = f"{name} in the place of sequence {i}"
                    rows = [(inputs, targets) if j == i else (plain.inputs[j], plain.targets[j]) for j in own]
                    yield self._put("sequence", words, own, rows)
        yield from self._combinations(number, theirs, own, losses)

    def _combinations(
        self, number: int, theirs: MicroBatchLeaf, own: range, losses: Sequence[int]
    ) -> Iterator[MicroGuess]:
        """Any other sequences of the batch."""
        plain, count = self._plain, len(losses)
        if math.comb(count, len(own)) > COMBINATIONS:
            return
        for chosen in itertools.combinations(range(count), len(own)):
            if sum(losses[i] for i in chosen) == theirs.loss_sum and list(chosen) != list(own):
                said = f"micro-batch {number} of sequences {', '.join(map(str, chosen))} of the batch"
                yield self._put("permuted", said, own, [(plain.inputs[i], plain.targets[i]) for i in chosen])

    def _pool(self, around: Around, step: int, losses: Sequence[int]) -> Iterator[tuple[str, IntArray, IntArray, int]]:
        plain = self._plain
        for i, loss in enumerate(losses):
            yield f"sequence {i} of the batch", plain.inputs[i], plain.targets[i], loss
        for other in (step - 1, step + 1):
            tokens = around.tokens(other)
            if tokens is None or tokens[:, :-1].shape != plain.inputs.shape:
                continue
            inputs, targets = tokens[:, :-1], tokens[:, 1:]
            for i, loss in enumerate(self._losses.sums(inputs, targets).tolist()):
                yield f"sequence {i} of the batch of step {other}", inputs[i], targets[i], loss

    def _put(self, key: str, words: str, own: range, rows: Sequence[tuple[IntArray, IntArray]]) -> MicroGuess:
        inputs, targets = self._plain.inputs.copy(), self._plain.targets.copy()
        for place, (x, y) in zip(own, rows, strict=True):
            inputs[place], targets[place] = x, y
        return MicroGuess(key, words, replace(self._plain, inputs=inputs, targets=targets))

    def tokens(self, number: int, theirs: MicroBatchLeaf, *, quick: bool) -> Iterator[MicroGuess]:
        """Micro-batch `number` with one token replaced, as input and target, or as one of them alone."""
        plain = self._plain
        own = range(number * self._size, min((number + 1) * self._size, len(plain.inputs)))
        losses = self._losses.sums(plain.inputs[own.start : own.stop], plain.targets[own.start : own.stop])
        delta = theirs.loss_sum - int(losses.sum())
        for sequence, loss in zip(own, losses.tolist(), strict=True) if self._moved else ():
            yield from self._replaced(sequence, loss + delta, np.array(self._moved), set(self._moved or ()))
        for sequence, loss in zip(own, losses.tolist(), strict=True) if not quick and self.affordable(len(own)) else ():
            yield from self._replaced(sequence, loss + delta, np.arange(plain.recipe.model.vocab_size), None)

    @property
    def affordable_batch(self) -> bool:
        """Whether the losses of all sequences of the step can be computed."""
        return self._plain.inputs.size * self._weights <= MOST_BATCH

    def affordable(self, sequences: int) -> bool:
        """Whether every token at every place can be tried."""
        length, vocabulary = self._plain.inputs.shape[1], self._plain.recipe.model.vocab_size
        return bool(sequences * length * length * vocabulary * self._weights <= MOST_WORK)

    def _replaced(self, sequence: int, wanted: int, values: IntArray, held: set[int] | None) -> Iterator[MicroGuess]:
        """One token of a sequence, in `held` (None: any), replaced by one of `values` so that the loss is `wanted`.

        A target changes the loss of its own row only, and an input those from its own place on: so the row of the place
        before, whose target it is, has the same logits in both.
        """
        inputs, targets = self._plain.inputs[sequence], self._plain.targets[sequence]
        length, count = len(inputs), len(values)
        tokens = np.concatenate([inputs, targets[-1:]])
        logits = self._losses.logits(inputs[None])
        rows = self._losses.rows(logits, targets)
        for place in range(length + 1):
            if held is not None and int(tokens[place]) not in held:
                continue
            before = np.zeros(count, np.int64)  # what the new target adds to the loss
            if place:
                before = self._losses.rows(np.repeat(logits[place - 1 : place], count, axis=0), values)
                before -= rows[place - 1]
                yield from self._named(" as a target only", sequence, place, values, int(rows.sum()) + before, wanted)
            if place < length:
                many = np.repeat(inputs[None], count, axis=0)
                many[:, place] = values
                found = self._losses.sums(many, np.repeat(targets[None], count, axis=0))
                yield from self._named("", sequence, place, values, found + before, wanted)
                yield from self._named(" as an input only", sequence, place, values, found, wanted)

    def _named(
        self, kind: str, sequence: int, place: int, values: IntArray, losses: I64, wanted: int
    ) -> Iterator[MicroGuess]:
        """A guess for each value with the wanted loss. A token at either end of a window is no target, or no input."""
        plain = self._plain
        old = np.concatenate([plain.inputs[sequence], plain.targets[sequence, -1:]])
        for value in values[losses == wanted].tolist():
            inputs, targets = plain.inputs[sequence].copy(), plain.targets[sequence].copy()
            if "target" not in kind:
                inputs[place] = value
            if "input" not in kind and place:
                targets[place - 1] = value
            words = f"token {place} of sequence {sequence} is {value} instead of {int(old[place])}{kind}"
            yield self._put("token", words, range(sequence, sequence + 1), [(inputs, targets)])


def moved_rows(theirs: F32, ours: F32) -> list[int]:
    """The rows of two arrays (V, C) that differ most, the first moments of the embedding for example."""
    with np.errstate(all="ignore"):
        distance = np.abs(theirs.astype(np.float64) - ours.astype(np.float64)).max(axis=1)
    order = np.argsort(-distance, kind="stable")
    return [int(row) for row in order[:LIKELY] if distance[row] > 0]


def explains(bench: Bench, guess: MicroGuess, number: int, theirs: MicroBatchLeaf) -> bool:
    """Whether a guess gives the published leaf of a micro-batch, loss and gradient."""
    try:
        return bench.leaf(guess.variant, number) == theirs
    except NonFinite:
        return False
