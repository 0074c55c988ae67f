"""What the stages of a micro-batch's way through the network share: what they bring, take, keep and add up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from auditkit.formats.recipe import Recipe
from auditkit.formats.tensors import GradientTexts
from auditkit.model.kept_results import KeptResults
from auditkit.model.micro_batch import MicroBatch
from auditkit.model.network import Network
from auditkit.model.ops import Ops
from auditkit.model.params import EMBED, FINAL_NORM, HEAD, ParamSpec, layer_prefix, parameter_table
from auditkit.model.piece_sums import Piece, PieceSums, pieces_of
from auditkit.model.plan import Plan
from auditkit.model.shelf import Divided, InMemory, Shelf
from auditkit.model.weights import TABLE_PARTS, Weights
from auditkit.numerics.arrays import F32, I64

FORWARD, OF_HEAD, AGAIN, BACKWARD, TABLES, LEAVES = STAGES = (
    "forward", "head", "forward again", "backward", "tables", "leaves",
)  # fmt: skip
Keys = Sequence[object]  # what arrays of a micro-batch are called


@dataclass(frozen=True)
class Later:
    """What is to begin to come beside a stage: its bytes, and what begins it."""

    nbytes: int
    begin: Callable[[], None]


class Stages:
    """Arrays that wait lie on `inputs`, sums go to `sums`."""

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

    def _names(self, prefix: str) -> list[str]:
        return [name for name in self._specs if name.startswith(prefix)]

    def _pieces(self, name: str) -> tuple[Piece, ...]:
        return pieces_of(self._specs[name], self._plan.cuts.rows)

    def _network(self, batch: MicroBatch, kept: KeptResults | None = None, *, runs_again: bool = False) -> Network:
        """A network whose gradients are to go to the sums together, and then are forgotten (`_add_waiting`)."""

        def take(name: str, sums: F32 | I64) -> None:
            del grads[name]
            self._add(batch, name, 0, sums)

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

    def _needs(self, layer: int) -> Keys:
        """What a micro-batch takes from the shelf in the backward pass of a layer."""
        return (layer,) if layer >= 0 and self._plan.recompute else ()

    def _in_turn(
        self,
        batches: list[MicroBatch],
        what: Keys = (),
        then: Keys = (),
        later: Sequence[Later] = (),
        first: Sequence[Later] = (),
    ) -> Iterator[MicroBatch]:
        """The micro-batches of a stage. While one is under way, what the next one takes from the shelf is brought; with
        the last one, what the first one takes `then`, in the next stage.

        later: what else is to begin meanwhile, for the next stage: by bytes equal shares beside each but the last, so
        that nothing that is needed sooner waits behind all of it. first: what this one needs, beside its first.
        """
        count = len(batches)
        shares = [*_shares(later, max(1, count - 1)), []]  # what begins beside the last one would come too late
        for number, batch in enumerate(batches):
            follows, keys = (batches[number + 1], what) if number + 1 < count else (batches[0], then)
            for soon, wanted in ((batch, what), (follows, keys)):
                for key in wanted:
                    self._inputs.expect(soon.key(key))
            for each in (*(() if number else first), *shares[number]):
                each.begin()
            yield batch

    def _bring(self, names: Sequence[str], stages: int = 1) -> list[Later]:
        """What begins to bring the parameters of the next stage, one by one; of those that come in parts the share of
        this stage, the first of so many.
        """
        found = []
        for name in names:
            parts = self._weights.parts(name)
            size = 4 * _elements(self._specs[name]) // (TABLE_PARTS if name in (EMBED, HEAD) else 1)
            found += [Later(size, partial(self._weights.expect, name))] * -(-parts // stages)
        return found

    def _bring_sums(self, pieces: Iterable[Piece]) -> list[Later]:
        """What begins to bring sums, a piece after the other."""
        return [Later(self._nbytes(piece), partial(self._sums.expect, [piece.key])) for piece in pieces]

    def _nbytes(self, piece: Piece) -> int:
        """Of the exact sums of a piece."""
        spec = self._specs[piece.name]
        return 8 * _elements(spec) // spec.shape[0] * (piece.stop - piece.first)

    @property
    def _of_head(self) -> list[str]:
        """The parameters of the head's stage."""
        return [self._head_name, FINAL_NORM]

    @property
    def _once(self) -> bool:
        """Whether the gradient of the logits is kept; with a tied table all of its gradient comes at the end."""
        return self._plan.logits_once and self._head_name != EMBED

    def _add(self, batch: MicroBatch, name: str, number: int, sums: F32 | I64) -> None:
        """Add and hash a gradient, or the next piece of one, when enough of them are there (`_add_waiting`); its digest
        is read at the end.
        """
        if name not in batch.digests:
            batch.digests[name] = self._ops.TensorDigest(8 * _elements(self._specs[name]))
        batch.waiting.append((f"{name}.{number}", sums, batch.digests[name]))
        if sum(int(terms.nbytes) for _, terms, _ in batch.waiting) > self._ops.waiting_terms:
            self._add_waiting(batch)

    def _add_waiting(self, batch: MicroBatch) -> None:
        """Add and hash the gradients that wait: together, since a matrix alone may leave much of a card idle."""
        if batch.waiting:
            waiting, batch.waiting = batch.waiting, []
            self._sums.add(waiting)


def _shares(later: Sequence[Later], count: int) -> list[list[Later]]:
    """Shares of nearly as many bytes each, in order."""
    shares: list[list[Later]] = [[] for _ in range(count)]
    at, total = 0, sum(each.nbytes for each in later)
    for each in later:
        shares[min(count - 1, at * count // max(1, total))].append(each)
        at += each.nbytes
    return shares


def _layer_of(key: str) -> int:
    """The layer whose input or results lie under a key of a micro-batch; -1 for what is none of a layer."""
    what = key.split(".")[1]
    return int(what) if what.isdigit() else -1


def _elements(spec: ParamSpec) -> int:
    return int(np.prod(spec.shape))
