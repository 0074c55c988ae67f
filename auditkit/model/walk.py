"""Micro-batches through the network with little memory: one layer at a time, several micro-batches together.

The network is the one of `network.py`, and so are its operations; what changes is when they run and what is kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.model.kept_results import KeptResults
from auditkit.model.micro_batch import MicroBatch
from auditkit.model.params import EMBED, layer_prefix
from auditkit.model.stages import AGAIN, BACKWARD, FORWARD, LEAVES
from auditkit.model.vocabulary import Vocabulary
from auditkit.numerics.arrays import IntArray


class Walk(Vocabulary):
    """Takes groups of micro-batches through the network. Arrays that wait lie on `inputs`, sums go to `sums`."""

    def group(self, parts: Sequence[IntArray], *, more: bool = False) -> list[MicroBatchLeaf]:
        """The leaves of micro-batches (s, T + 1), whose gradients are added to the sums; more: another group follows.

        Raises NonFinite.
        """
        batches = [MicroBatch(number, tokens) for number, tokens in enumerate(parts)]
        self._embed(batches)
        for layer in range(len(self._layers)):
            self._forward(layer, batches)
        self._head(batches)
        for layer in reversed(range(len(self._layers))):
            self._backward(layer, batches)
        self._tables(batches, more)
        self._stage(LEAVES)
        names = list(self._specs)
        found = self._ops.read_digests([batch.digests[name] for batch in batches for name in names])
        roots = (self._texts.root(found[at : at + len(names)]) for at in range(0, len(found), len(names)))
        return [MicroBatchLeaf(batch.loss_sum(), root) for batch, root in zip(batches, roots, strict=True)]

    def _embed(self, batches: list[MicroBatch]) -> None:
        self._stage(FORWARD)
        self._weights.stage([EMBED], self._layers[0])
        table = self._weights.prepared.params[EMBED]
        for batch in self._in_turn(batches, later=self._bring(self._layers[0])):
            batch.passing = self._ops.embedding_forward(batch.inputs, table)

    def _forward(self, layer: int, batches: list[MicroBatch]) -> None:
        after = self._layers[layer + 1] if layer + 1 < len(self._layers) else self._of_head
        self._weights.stage(self._layers[layer], after)
        for batch in self._in_turn(batches, later=self._bring(after)):
            again = self._plan.recompute
            kept = KeptResults(self._plan.keep if again else ())
            network = self._network(batch, kept, runs_again=again)
            x = batch.passed()
            batch.passing, cache = network.layer_forward(x, layer_prefix(layer), batch.size)
            if again:
                batch.counts = kept.counts
                self._inputs.put(batch.key(layer), [x, *kept.arrays])
            else:
                batch.caches.append(cache)
            del network, cache, kept, x

    def _backward(self, layer: int, batches: list[MicroBatch]) -> None:
        after = self._layers[layer - 1] if layer else []
        self._weights.stage(self._layers[layer], after)
        tables = [piece.key for piece in self._pieces(EMBED)[:1]]
        sums = [f"{name}.0" for name in self._layers[layer - 1]] if layer else tables
        later = [*self._bring(after), *self._bring_sums(sums)]
        if layer + 1 == len(self._layers):
            self._sums.expect(f"{name}.0" for name in self._layers[layer])
        for batch in self._in_turn(batches, self._needs(layer), self._needs(layer - 1), later):
            network, prefix = self._network(batch), layer_prefix(layer)
            if self._plan.recompute:
                x, *kept = self._take(batch, layer)
                self._stage(AGAIN)
                again = self._network(batch, KeptResults(self._plan.keep, kept, batch.counts))
                cache = again.layer_cache(x, prefix, batch.size)
                del x, kept, again
            else:
                cache = batch.caches.pop()
            self._stage(BACKWARD)
            batch.passing = network.layer_backward(batch.passed(), prefix, cache)
            self._add_waiting(batch)
            del cache
        self._sums.settle()
