"""Head and vocabulary tables of a step with little memory: the logits of all tokens never exist at once.

The forward pass takes some rows of them, and the gradient of the head's weights, whose columns are rounded over all
tokens of a micro-batch, makes some columns of them again, or reads the gradient of all where there is room for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from auditkit.model.micro_batch import MicroBatch
from auditkit.model.params import EMBED, FINAL_NORM, HEAD
from auditkit.model.piece_sums import Piece
from auditkit.model.stages import OF_HEAD, TABLES, Keys, Later, Stages
from auditkit.numerics.arrays import F32, I64
from auditkit.numerics.exact_sum import GRADIENT_UNIT


class Vocabulary(Stages):
    """The stages that read or make what belongs to the vocabulary."""

    def _head(self, batches: list[MicroBatch], after: Sequence[str]) -> None:
        """Loss and gradient of what enters the head, some rows of logits at a time.

        after: the parameters of the next stage.
        """
        self._stage(OF_HEAD)
        last = len(self._layers)
        self._weights.stage(self._of_head, after)
        later = self._bring(after)  # not the sums of a layer as well: there is least room here
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

    def _tables(self, batches: list[MicroBatch], after: Sequence[str]) -> None:
        """The gradients of embedding and head, some rows of the vocabulary at a time; of the embedding alone, where the
        head's are made. after: the parameters of the next stage.
        """
        self._stage(TABLES)
        self._weights.stage([] if self._once else [self._head_name], after)
        what, bring = (() if self._once else ("head",)), self._bring(after)
        if self._plan.tables_by_batch:
            for batch in self._in_turn(batches, what, later=bring):
                held = [array for key in what for array in self._take(batch, key)]
                for run in self._runs():
                    self._table_pieces(batch, run, held)
                self._sums.settle()
                batch.passing = None
                del held  # before the next one's are taken
            return
        self._tables_by_piece(batches, what, bring)
        for batch in batches:
            batch.passing = None
            for key in what:
                self._inputs.drop(batch.key(key))

    def _tables_by_piece(self, batches: list[MicroBatch], what: Keys, bring: list[Later]) -> None:
        """All micro-batches for one piece of the tables before the next, so that its sums are brought once for all."""
        names, pieces = {EMBED} if self._once else {self._head_name, EMBED}, self._pieces(EMBED)
        for number, piece in enumerate(pieces):
            self._sums.expect(f"{name}.{piece.number}" for name in names)
            follows = [replace(soon, name=name) for soon in pieces[number + 1 : number + 2] for name in names]
            later = self._bring_sums(follows) if follows else bring
            for batch in self._in_turn(batches, what, what if follows else (), later):
                self._table_pieces(batch, [piece], [array for key in what for array in self._held(batch, key)])
            self._sums.settle()

    def _runs(self) -> list[Sequence[Piece]]:
        """Pieces of the embedding whose gradients are made together: as many as may wait to be added, since each alone
        is little work; one at a time where the head's is made of them as well.
        """
        pieces = self._pieces(EMBED)
        size = 8 * (pieces[0].stop - pieces[0].first) * self._recipe.model.hidden_size
        count = max(1, self._ops.waiting_terms // size) if self._once else 1
        return [pieces[at : at + count] for at in range(0, len(pieces), count)]

    def _table_pieces(self, batch: MicroBatch, pieces: Sequence[Piece], head: Sequence[F32] = ()) -> None:
        """Add pieces of the gradients of the tables that follow each other.

        head: where the gradient of the head's weights is to be made as well, of one piece: what enters the head (N, C),
        and what is kept of its rows, (N, 2).
        """
        first, stop = pieces[0].first, pieces[-1].stop
        of_head: Any = self._head_gradient(batch, pieces[0], *head) if head else None
        if self._head_name != EMBED and of_head is not None:
            self._add(batch, HEAD, pieces[0].number, of_head)
            of_head = None
        tokens = batch.inputs.astype(np.int64) - first
        here = np.flatnonzero((tokens >= 0) & (tokens < stop - first))
        rows = self._ops.embedding_forward(here, batch.passing)  # a gather of the tokens' rows
        sums = self._ops.embedding_backward(rows, tokens[here], stop - first, of_head)
        for piece in pieces:
            self._add(batch, EMBED, piece.number, sums[piece.first - first : piece.stop - first])
        self._add_waiting(batch)

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
