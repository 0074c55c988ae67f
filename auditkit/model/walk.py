"""Micro-batches through the network with little memory: one layer at a time, several micro-batches together.

The network is the one of `network.py`, and so are its operations; what changes is when they run and what is kept. The
logits of all tokens never exist at once: the forward pass takes some rows of them, and the gradient of the head's
weights, whose columns are rounded over all tokens of a micro-batch, makes some columns of them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from auditkit.formats.leaves import MicroBatchLeaf
from auditkit.formats.recipe import Recipe
from auditkit.formats.tensors import GradientTexts
from auditkit.model.kept_results import KeptResults
from auditkit.model.network import Network
from auditkit.model.ops import Ops, TensorDigest
from auditkit.model.params import EMBED, FINAL_NORM, HEAD, ParamSpec, layer_prefix, parameter_table
from auditkit.model.piece_sums import Piece, PieceSums, pieces_of
from auditkit.model.plan import Plan
from auditkit.model.shelf import Divided, InMemory, Shelf
from auditkit.model.weights import Weights
from auditkit.numerics.arrays import F32, I64, IntArray
from auditkit.numerics.exact_sum import GRADIENT_UNIT
from auditkit.numerics.nonfinite import NonFinite

FORWARD, OF_HEAD, AGAIN, BACKWARD, TABLES, LEAVES = STAGES = (
    "forward", "head", "forward again", "backward", "tables", "leaves",
)  # fmt: skip
Keys = Sequence[object]  # what arrays of a micro-batch are called

_LIMIT = 1 << 62


class MicroBatch:
    """One micro-batch under way: its tokens, what was found, and the digests of its gradients."""

    def __init__(self, number: int, tokens: IntArray) -> None:
        self.number, self.size = number, tokens.shape[0]
        self.inputs, self.targets = tokens[:, :-1].reshape(-1), tokens[:, 1:].reshape(-1)
        self.passing: Any = None  # (N, C): what the last layer that was run hands to the next, x or its gradient
        self.losses: list[I64] = []  # exact sums of some rows each, () in units 2^-32; read when all is under way
        self.digests: dict[str, TensorDigest] = {}
        self.caches: list[Any] = []
        self.counts: list[int] = []  # arrays of each result that is kept of a layer
        self.waiting: list[tuple[str, Any, TensorDigest]] = []  # gradients that are still to be added to the sums

    def key(self, what: object) -> str:
        """What an array of this micro-batch is called on a shelf."""
        return f"{self.number}.{what}"

    def passed(self) -> Any:
        """What is passing, which then is the caller's alone."""
        found, self.passing = self.passing, None
        return found

    def loss_sum(self) -> int:
        """The exact sum of the losses, units 2^-32. Raises NonFinite."""
        total = sum(int(loss) for loss in self.losses)
        if not -_LIMIT <= total < _LIMIT:
            raise NonFinite("an exact sum leaves 62 bits")
        return total


class Walk:
    """Takes groups of micro-batches through the network. Arrays that wait lie on `inputs`, sums go to `sums`."""

    def __init__(
        self,
        weights: Weights,
        total_targets: int,
        recipe: Recipe,
        ops: Ops,
        plan: Plan,
        inputs: Shelf,
        sums: PieceSums,
        stage: Callable[[str], None] = lambda _: None,
    ) -> None:
        """stage: told which of STAGES begins."""
        self._weights, self._total_targets, self._recipe, self._ops = weights, total_targets, recipe, ops
        self._plan, self._sums, self._stage = plan, sums, stage
        near = range(recipe.model.num_layers - plan.near, recipe.model.num_layers)
        self._inputs = Divided(InMemory(), inputs, lambda key: _layer_of(key) in near) if plan.near else inputs
        self._specs = {spec.name: spec for spec in parameter_table(recipe.model)}
        self._head_name = EMBED if recipe.model.tied_head else HEAD
        self._layers = [self._names(layer_prefix(layer)) for layer in range(recipe.model.num_layers)]
        layout = tuple((spec.name, np.dtype(np.int64), spec.shape) for spec in self._specs.values())
        self._texts = GradientTexts(layout)

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

    def _names(self, prefix: str) -> list[str]:
        return [name for name in self._specs if name.startswith(prefix)]

    def _pieces(self, name: str) -> tuple[Piece, ...]:
        return pieces_of(self._specs[name], self._plan.cuts.rows)

    def _network(self, batch: MicroBatch, kept: KeptResults | None = None, *, runs_again: bool = False) -> Network:
        """A network whose gradients are to go to the sums together, and then are forgotten (`_add_waiting`)."""

        def take(name: str, sums: F32 | I64) -> None:
            del grads[name]
            self._wait(batch, name, 0, sums)
            if sum(int(terms.nbytes) for _, terms, _ in batch.waiting) > self._ops.waiting_terms:
                self._add_waiting(batch)

        network = Network(
            self._weights.prepared,
            self._recipe,
            self._ops,
            take,
            self._plan.cuts.key_heads,
            kept,
            exact=False,
            runs_again=runs_again,
        )
        grads = network.grads  # not the network: a cycle of references would keep what it holds for a while
        return network

    def _held(self, batch: MicroBatch, what: object) -> list[Any]:
        """Arrays from the shelf, which keeps them."""
        held = self._inputs.get(batch.key(what))
        assert held is not None
        return held

    def _take(self, batch: MicroBatch, what: object) -> list[Any]:
        """Arrays from the shelf, for the last time."""
        held = self._held(batch, what)
        self._inputs.drop(batch.key(what))
        return held

    def _in_turn(
        self, batches: list[MicroBatch], what: Keys = (), then: Keys = (), later: Sequence[Callable[[], None]] = ()
    ) -> Iterator[MicroBatch]:
        """The micro-batches of a stage. While one is under way, what the next one takes from the shelf is brought; with
        the last one, what the first one takes `then`, in the next stage. `later`: what else is to begin meanwhile, a
        share beside each, the earlier the better, so that nothing that is needed sooner waits behind all of it.
        """
        count = len(batches)
        for number, batch in enumerate(batches):
            follows, keys = (batches[number + 1], what) if number + 1 < count else (batches[0], then)
            for soon, wanted in ((batch, what), (follows, keys)):
                for key in wanted:
                    self._inputs.expect(soon.key(key))
            for begin in later[-(-number * len(later) // count) : -(-(number + 1) * len(later) // count)]:
                begin()
            yield batch

    def _bring(self, names: Sequence[str]) -> list[Callable[[], None]]:
        """What begins to bring the parameters of the next stage, one by one."""
        return [partial(self._weights.expect, name) for name in names]

    def _bring_sums(self, keys: Iterable[str]) -> list[Callable[[], None]]:
        return [partial(self._sums.expect, [key]) for key in keys]

    def _embed(self, batches: list[MicroBatch]) -> None:
        self._stage(FORWARD)
        self._weights.stage([EMBED], self._layers[0])
        table = self._weights.prepared.params[EMBED]
        for batch in self._in_turn(batches, later=self._bring(self._layers[0])):
            batch.passing = self._ops.embedding_forward(batch.inputs, table)

    def _forward(self, layer: int, batches: list[MicroBatch]) -> None:
        after = self._layers[layer + 1] if layer + 1 < len(self._layers) else [self._head_name, FINAL_NORM]
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

    def _needs(self, layer: int) -> Keys:
        """What a micro-batch takes from the shelf in the backward pass of a layer."""
        return (layer,) if layer >= 0 and self._plan.recompute else ()

    @property
    def _once(self) -> bool:
        """Whether the gradient of the logits is kept; with a tied table all of its gradient comes at the end."""
        return self._plan.logits_once and self._head_name != EMBED

    def _head(self, batches: list[MicroBatch]) -> None:
        """Loss and gradient of what enters the head, some rows of logits at a time."""
        self._stage(OF_HEAD)
        last = len(self._layers)
        self._weights.stage([FINAL_NORM, self._head_name], self._layers[-1])
        later = self._bring(self._layers[-1])  # not its sums as well: there is least room here
        if self._once:
            self._weights.round(HEAD)
            self._sums.expect(piece.key for piece in self._pieces(HEAD))
        for batch in self._in_turn(batches, then=self._needs(last - 1), later=later):
            network = self._network(batch)
            y, cache = network.norm(batch.passed(), FINAL_NORM)
            dy, kept, gradients = self._logits(batch, y)
            if self._once:
                self._head_sums(batch, y, gradients)
            else:
                self._inputs.put(batch.key("head"), [y, kept])
            del y, kept, gradients
            batch.passing = network.norm_backward(dy, FINAL_NORM, cache)
            self._add_waiting(batch)
        self._sums.settle()

    def _head_sums(self, batch: MicroBatch, y: F32, gradients: list[F32]) -> None:
        """The gradient of the head's weights from that of all logits, some of its rows at a time."""
        ops, bits = self._ops, self._recipe.numerics.head_bits
        of_y = ops.quantise_t(y, bits)
        for piece in self._pieces(HEAD):
            columns = ops.quantise_columns(gradients, piece.first, piece.stop, bits)
            self._add(batch, HEAD, piece.number, ops.dot(columns, of_y))
            del columns

    def _logits(self, batch: MicroBatch, y: F32) -> tuple[F32, F32, list[F32]]:
        """The loss of a batch, the gradient of y (N, C), what is kept of the rows of the logits, (N, 2), and if it is
        made once the gradient of all logits (N, V), in parts.
        """
        ops, bits = self._ops, self._recipe.numerics.head_bits
        z_loss, tokens = np.float32(self._recipe.loss.z_loss), y.shape[0]
        size = self._plan.cuts.tokens or tokens
        found: list[tuple[F32, F32]] = []
        gradients: list[F32] = []
        for at in range(0, tokens, size):
            logits = ops.dot(ops.quantise(y[at : at + size], bits), self._head_rows())
            targets = batch.targets[at : at + size]
            loss, gradient, kept, of_gradient = ops.cross_entropy_operand(
                logits, targets, z_loss, self._total_targets, bits
            )
            batch.losses.append(loss)
            if self._once:
                gradients.append(gradient)
            del logits, gradient  # one array, which was overwritten
            found.append((ops.dot(of_gradient, self._head_rows_t()), kept))
            del of_gradient  # before the next logits are made
        return ops.join_rows([dy for dy, _ in found]), ops.join_rows([kept for _, kept in found]), gradients

    def _head_rows(self) -> Any:
        """The head's weights in fixed point; where there is room, those of the stage, else made for each product."""
        if self._once:
            return self._weights.prepared.rows[HEAD]
        weight = self._weights.prepared.params[self._head_name]
        return self._ops.weight_rows(weight, self._recipe.numerics.head_bits)

    def _head_rows_t(self) -> Any:
        if self._once:
            return self._weights.prepared.rows_t[HEAD]
        weight = self._weights.prepared.params[self._head_name]
        return self._ops.weight_rows_t(weight, self._recipe.numerics.head_bits)

    def _tables(self, batches: list[MicroBatch], more: bool) -> None:
        """The gradients of embedding and head, some rows of the vocabulary at a time; of the embedding alone, where the
        head's are made.
        """
        self._stage(TABLES)
        self._weights.stage([] if self._once else [self._head_name], [EMBED] if more else [])
        what: Keys = () if self._once else ("head",)
        if self._plan.tables_by_batch:
            for batch in self._in_turn(batches, what, later=self._bring([EMBED])):
                held = [self._take(batch, key) for key in what]
                for piece in self._pieces(EMBED):
                    self._table_piece(batch, piece, *held)
                    self._sums.settle()
                batch.passing = None
                del held  # before the next one's are taken
            return
        self._tables_by_piece(batches, what)
        for batch in batches:
            batch.passing = None
            for key in what:
                self._inputs.drop(batch.key(key))

    def _tables_by_piece(self, batches: list[MicroBatch], what: Keys) -> None:
        """All micro-batches for one piece of the tables before the next, so that its sums are brought once for all."""
        names, pieces = {EMBED} if self._once else {self._head_name, EMBED}, self._pieces(EMBED)
        for number, piece in enumerate(pieces):
            self._sums.expect(f"{name}.{piece.number}" for name in names)
            follows = [f"{name}.{soon.number}" for soon in pieces[number + 1 : number + 2] for name in names]
            later = self._bring_sums(follows) if follows else self._bring([EMBED])
            for batch in self._in_turn(batches, what, what if follows else (), later):
                self._table_piece(batch, piece, *(self._held(batch, key) for key in what))
            self._sums.settle()

    def _table_piece(self, batch: MicroBatch, piece: Piece, head: Sequence[F32] = ()) -> None:
        """Add a piece of the gradients of the tables.

        head: what enters the head (N, C), and what is kept of its rows, (N, 2), where its weights' is to be made.
        """
        of_head: Any = self._head_gradient(batch, piece, *head) if head else None
        if self._head_name != EMBED and of_head is not None:
            self._add(batch, HEAD, piece.number, of_head)
            of_head = None
        tokens = batch.inputs.astype(np.int64) - piece.first
        here = np.flatnonzero((tokens >= 0) & (tokens < piece.stop - piece.first))
        rows = self._ops.embedding_forward(here, batch.passing)  # a gather of the tokens' rows
        sums = self._ops.embedding_backward(rows, tokens[here], piece.stop - piece.first, of_head)
        self._add(batch, EMBED, piece.number, sums)

    def _head_gradient(self, batch: MicroBatch, piece: Piece, y: F32, kept: F32) -> F32 | I64:
        """Rows of the gradient of the head's weights, from columns of the logits that are made again: the same bits."""
        ops, bits = self._ops, self._recipe.numerics.head_bits
        weight = self._weights.prepared.params[self._head_name][piece.first : piece.stop]
        logits = ops.dot(ops.quantise(y, bits), ops.weight_rows(weight, bits))
        gradient = ops.cross_entropy_columns(logits, piece.first, batch.targets, kept, self._total_targets)
        columns = ops.quantise_t(gradient, bits)
        del logits, gradient
        product = ops.dot(columns, ops.quantise_t(y, bits))
        return ops.to_fixed(product, GRADIENT_UNIT) if self._head_name == EMBED else product

    def _add(self, batch: MicroBatch, name: str, number: int, sums: F32 | I64) -> None:
        """Add and hash a gradient, or the next piece of one; nobody waits for its digest before the end."""
        self._wait(batch, name, number, sums)
        self._add_waiting(batch)

    def _wait(self, batch: MicroBatch, name: str, number: int, sums: F32 | I64) -> None:
        if name not in batch.digests:
            batch.digests[name] = self._ops.TensorDigest(8 * _elements(self._specs[name]))
        batch.waiting.append((f"{name}.{number}", sums, batch.digests[name]))

    def _add_waiting(self, batch: MicroBatch) -> None:
        """Add and hash the gradients that wait: together, since a matrix alone may leave much of a card idle."""
        if batch.waiting:
            waiting, batch.waiting = batch.waiting, []
            self._sums.add(waiting)


def _layer_of(key: str) -> int:
    """The layer whose input or results lie under a key of a micro-batch; -1 for what is none of a layer."""
    what = key.split(".")[1]
    return int(what) if what.isdigit() else -1


def _elements(spec: ParamSpec) -> int:
    return int(np.prod(spec.shape))
