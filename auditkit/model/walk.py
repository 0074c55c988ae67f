"""Micro-batches through the network with little memory: one layer at a time, several micro-batches together.

The network is the one of `network.py`, and so are its operations; what changes is when they run and what is kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.model.kept_results import KeptResults
from auditkit.model.micro_batch import MicroBatch
from auditkit.model.params import EMBED, layer_prefix
from auditkit.model.piece_sums import Piece
from auditkit.model.stages import AGAIN, BACKWARD, FORWARD, LEAVES, Keys, Later
from auditkit.model.vocabulary import Vocabulary
from auditkit.numerics.arrays import IntArray


class Walk(Vocabulary):
    """Takes groups of micro-batches through the network. Arrays that wait lie on `inputs`, sums go to `sums`."""

    def groups(self, parts: Sequence[IntArray]) -> Iterator[list[MicroBatchLeaf]]:
        """The leaves of micro-batches (s, T + 1), group by group, when the sums have all of their gradients and none of
        the next group's. Raises NonFinite.
        """
        groups, last = self._groups(parts), len(self._layers) - 1
        before, batches = list[MicroBatch](), next(groups, [])
        self._embed(batches, self._layers[0])
        while batches:
            soon = next(groups, [])
            beside = soon if self._plan.beside else []
            for number in range(last):
                self._layer(number, batches, before, [EMBED] if beside and number + 3 > last else [])
            self._embed(beside, self._of_layers(last, batches, before))  # there is no room for its table beside logits
            self._layer(last, batches, before)
            if before:
                self._tables(before, self._of_head)
                yield self._leaves(before)
                before = []  # its digests go before the head's are made
            self._head(batches, self._of_layers(0, beside, batches))
            before, batches = batches, soon
            if not beside:
                for number in range(last + 1):
                    self._layer(number, [], before)
                self._tables(before, [EMBED] if batches else [])
                yield self._leaves(before)
                before = []
                self._embed(batches, self._layers[0])

    def _groups(self, parts: Sequence[IntArray]) -> Iterator[list[MicroBatch]]:
        """Micro-batches in groups; of two groups that are under way at once the keys differ."""
        size = self._plan.group
        for first in range(0, len(parts), size):
            number = first % (2 * size) if self._plan.beside else 0
            yield [MicroBatch(number + at, tokens) for at, tokens in enumerate(parts[first : first + size])]

    def _leaves(self, batches: list[MicroBatch]) -> list[MicroBatchLeaf]:
        """Of micro-batches whose gradients are all there; waits for the device."""
        self._stage(LEAVES)
        names = list(self._specs)
        sums = self._ops.join_sums([loss for batch in batches for loss in batch.losses])
        found = self._ops.read_digests([batch.digests[name] for batch in batches for name in names])
        losses = iter(self._ops.host(sums).tolist())
        roots = (self._texts.root(found[at : at + len(names)]) for at in range(0, len(found), len(names)))
        return [MicroBatchLeaf(batch.loss_sum(losses), root) for batch, root in zip(batches, roots, strict=True)]

    def _embed(self, batches: list[MicroBatch], after: Sequence[str]) -> None:
        """A group's micro-batches enter the first layer; after: the parameters of the next stage."""
        if not batches:
            return
        self._stage(FORWARD)
        self._weights.stage([EMBED], after)
        table = self._weights.prepared.params[EMBED]
        for batch in self._in_turn(batches, later=self._bring(after)):
            batch.passing = self._ops.embedding_forward(batch.inputs, table)

    def _of_layers(self, number: int, batches: list[MicroBatch], before: list[MicroBatch]) -> list[str]:
        """The parameters of a stage of layers (`_layer`)."""
        names = [*(self._layers[number] if batches else []), *(self._layers[-1 - number] if before else [])]
        return list(dict.fromkeys(names))

    def _layer(
        self, number: int, batches: list[MicroBatch], before: list[MicroBatch], tables: Sequence[str] = ()
    ) -> None:
        """Layer `number` forward of a group, and layer `number` from the last backward of the group before: one after
        the other of both in turn. Either may be of no micro-batches.

        tables: what comes besides, until the last layer's stage.
        """
        last = len(self._layers) - 1
        if number < last:
            after = [*tables, *self._of_layers(number + 1, batches, before)]
        else:
            after = self._of_head if batches else []
        self._weights.stage(self._of_layers(number, batches, before), after)
        later, first = self._bring(after, last - number if tables else 1), list[Later]()
        if before:
            later += self._sums_after(last - number)
            first = [] if number else self._bring_sums(self._of_layer(last))
        waiting = iter(batches)
        for batch in self._in_turn(before or batches, *self._wanted(last - number, before), later, first):
            self._forward(number, batch if not before else next(waiting, None))
            if before:
                self._backward(last - number, batch)
        self._sums.settle()

    def _sums_after(self, layer: int) -> list[Later]:
        """What begins to bring the sums that are added to after those of a layer."""
        return self._bring_sums(self._of_layer(layer - 1) if layer else self._pieces(EMBED)[:1])

    def _of_layer(self, layer: int) -> list[Piece]:
        """The pieces of a layer's sums."""
        return [piece for name in self._layers[layer] for piece in self._pieces(name)]

    def _keep_of(self, layer: int) -> tuple[str, ...]:
        return self._plan.keep_of(layer, len(self._layers))

    def _wanted(self, layer: int, before: list[MicroBatch]) -> tuple[Keys, Keys]:
        """What a micro-batch takes from the shelf in the backward pass of a layer, and in that of the next."""
        return (self._needs(layer), self._needs(layer - 1)) if before else ((), ())

    def _forward(self, layer: int, batch: MicroBatch | None) -> None:
        if batch is None:
            return
        self._stage(FORWARD)
        again = self._plan.recompute
        kept = KeptResults(self._keep_of(layer) if again else ())
        network = self._network(batch, kept, runs_again=again)
        x = batch.passed()
        batch.passing, cache = network.layer_forward(x, layer_prefix(layer), batch.size)
        if again:
            batch.counts[layer] = kept.counts
            self._inputs.put(batch.key(layer), [x, *kept.arrays])
        else:
            batch.caches.append(cache)

    def _backward(self, layer: int, batch: MicroBatch) -> None:
        network, prefix = self._network(batch), layer_prefix(layer)
        if self._plan.recompute:
            self._stage(AGAIN)
            x, *kept = self._take(batch, layer)
            again = self._network(batch, KeptResults(self._keep_of(layer), kept, batch.counts[layer]))
            cache = again.layer_cache(x, prefix, batch.size)
            del x, kept, again
        else:
            cache = batch.caches.pop()
        self._stage(BACKWARD)
        batch.passing = network.layer_backward(batch.passed(), prefix, cache)
        self._add_waiting(batch)
