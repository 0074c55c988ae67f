"""How large the arrays of a step are, by its recipe and the kind of back end; memory.py adds them up.

Two kinds of back end differ in what a row in fixed point takes: 8 bytes an element on a CPU (exact in binary64), 3 or 6
on a card (digits in int8), and in how attention keeps its scores. The ops in C of a CPU need less than the reference,
whose figures these are: 2 bytes an element for 14 bits, no weights kept, and at most 32 MiB for the pairs of a group.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from auditkit.formats.recipe import Recipe
from auditkit.kernels.backend import WAITING_TERMS
from auditkit.kernels.exact_dot_planes import padded_length
from auditkit.model.kept_results import ATTENTION, GATE, HEADS, MID, UP
from auditkit.model.params import ParamSpec, layer_prefix, parameter_count, parameter_table
from auditkit.model.plan import Plan
from auditkit.replay import attention_bytes

LATER_BYTES = 3 * (16 << 20)  # a few rows of a weight in binary64 at a time, and their product
READ_BYTES = 4 * (16 << 20)  # buffers of files that are read, hashed and decompressed


@functools.lru_cache(maxsize=32)
def sizes_of(recipe: Recipe, cuda: bool) -> Sizes:
    """The sizes of a recipe's arrays; kept, for hundreds of plans ask for them."""
    return Sizes(recipe, cuda)


@dataclass(frozen=True)
class Sizes:
    """The sizes of a recipe's arrays on one kind of back end."""

    recipe: Recipe
    cuda: bool

    @cached_property
    def tokens(self) -> int:
        """Of a micro-batch."""
        return self.recipe.batch.micro_batch_sequences * self.recipe.model.context_length

    @cached_property
    def parameters(self) -> int:
        """Trained scalars."""
        return parameter_count(self.recipe.model)

    @cached_property
    def layer(self) -> int:
        """Parameters of a layer."""
        return sum(_elements(spec) for spec in self._layer)

    @cached_property
    def matrix(self) -> int:
        """Parameters of the largest tensor of a layer."""
        return max(_elements(spec) for spec in self._layer)

    @property
    def _layer(self) -> Iterable[ParamSpec]:
        return (s for s in parameter_table(self.recipe.model) if s.name.startswith(layer_prefix(0)))

    @cached_property
    def table(self) -> int:
        """Elements of a vocabulary table."""
        return self.recipe.model.vocab_size * self.recipe.model.hidden_size

    @cached_property
    def sum_bytes(self) -> int:
        """Bytes a parameter of the running sums: an integer, or with a fold a sum a level."""
        fold = self.recipe.numerics.fold
        return 4 * (len(fold) + 1) if fold else 8

    @cached_property
    def terms(self) -> int:
        """Bytes an element of a gradient's terms: none on a card, which adds and hashes them, but for a fold."""
        return 0 if self.cuda and not self.recipe.numerics.fold else 8

    @cached_property
    def waiting(self) -> int:
        """Elements of a layer's gradients that wait to be added: on a card all of them, if they are few."""
        return min(self.layer, WAITING_TERMS // 4 + self.matrix) if self.cuda else self.matrix

    @property
    def pieces_waiting(self) -> int:
        """Bytes of pieces of a table's gradient that wait to be added."""
        return WAITING_TERMS if self.cuda else 0

    def row_bytes(self, bits: int) -> int:
        """Bytes an element of rows in fixed point; the product f32 rounds nothing, but turns its operands."""
        if bits == 24:
            return 4
        return (3 if bits == 14 else 6) if self.cuda else 8

    @cached_property
    def body(self) -> int:
        """Bytes an element of rows of the body's products."""
        return self.row_bytes(self.recipe.numerics.body_bits)

    @cached_property
    def head(self) -> int:
        """Bytes an element of rows of the head's products."""
        return self.row_bytes(self.recipe.numerics.head_bits)

    @cached_property
    def cache(self) -> int:
        """Bytes that the forward pass of a layer keeps for its backward pass, of one micro-batch."""
        model = self.recipe.model
        queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
        operands = 2 * model.hidden_size + model.ffn_size + queries  # of products: kept as columns if those are smaller
        floats = 2 * model.hidden_size + 4 * model.ffn_size + queries + (queries + keys if model.qk_norm else 0)
        each = min(4, self.body) if self.cuda else 4
        kept = self.tokens * (each * operands + 4 * floats + self.body * (queries + 2 * keys))
        if self.cuda:
            return kept
        of_rows = attention_bytes.row_bytes_kept(model, self.tokens)
        return kept + of_rows + attention_bytes.kept_weights(model, self.tokens)

    def results(self, keep: Sequence[str]) -> int:
        """Bytes of the results of a layer that a plan keeps, of one micro-batch."""
        model = self.recipe.model
        queries, width, ffn = model.num_heads * model.head_dim, model.hidden_size, model.ffn_size
        elements = {ATTENTION: queries + 2 * model.num_heads, MID: width, HEADS: 0, UP: ffn, GATE: ffn}
        heads = self._heads if HEADS in keep else 0
        return 4 * self.tokens * sum(elements[name] for name in keep) + heads

    @cached_property
    def _heads(self) -> int:
        """Bytes of queries, keys and values as the attention reads them; on a card in fixed point."""
        model = self.recipe.model
        count = self.tokens * (model.num_heads + 2 * model.num_kv_heads)  # rows of a head's width
        if not self.cuda or self.recipe.numerics.body_bits == 24:
            return 4 * count * model.head_dim
        rows = count + 64 * 3 * self.recipe.batch.micro_batch_sequences * model.num_kv_heads  # whole blocks of 64
        return rows * self.body * padded_length(model.head_dim) + 4 * count

    @cached_property
    def stream(self) -> int:
        """Bytes of what enters a layer, of one micro-batch."""
        return 4 * self.tokens * self.recipe.model.hidden_size

    @cached_property
    def tables(self) -> int:
        """Vocabulary tables."""
        return 1 if self.recipe.model.tied_head else 2

    def attention(self, key_heads: int) -> int:
        """Bytes that the backward pass of an attention needs besides the cache."""
        if self.cuda:
            return attention_bytes.backward_on_card(self.recipe, key_heads, self.body)
        return attention_bytes.backward_on_processor(self.recipe)

    def work(self, key_heads: int) -> int:
        """Bytes of the backward pass of a layer besides its cache and its weights."""
        model = self.recipe.model
        queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
        # Bytes an element of dy, dgate and dup, and of the rows and columns of one; on a card of dy, dup and of both.
        gated = max(12 + 2 * self.body, 8 + 4 * self.body if self.cuda else 0)
        mlp = self.tokens * (gated * model.ffn_size + 8 * model.hidden_size)
        rows = 4 if self.cuda else 2  # of dO and z; on a card also z and q turned
        attention = self.tokens * (4 * (4 * queries + 2 * model.hidden_size + 2 * keys) + rows * self.body * queries)
        return max(mlp, attention + self.attention(key_heads))

    @cached_property
    def later(self) -> int:
        """Bytes of a few rows of a weight in binary64 and their product."""
        return min(LATER_BYTES, 24 * max(self.matrix, self.table))

    @cached_property
    def reading(self) -> int:
        """Bytes of the buffers of files."""
        return min(READ_BYTES, (4 << 20) + 16 * self.parameters)

    @cached_property
    def rows_of_layer(self) -> int:
        """Bytes of a layer's weights in fixed point, both ways; a CPU makes a few at a time."""
        return 2 * self.body * self.layer if self.cuda else self.later

    def logits(self, tokens: int) -> int:
        """Bytes for so many rows of logits, with the rows of the head's weights one way."""
        split = 8 if not self.cuda and self.recipe.numerics.head_bits == 21 else 0
        weights = self.head * self.table if self.cuda else self.later + 3 * 8 * 64 * self.recipe.model.vocab_size
        return tokens * self.recipe.model.vocab_size * (4 + self.head + split) + weights

    def chunk(self, plan: Plan) -> int:
        """Bytes of the largest array that comes and goes: some rows of the logits' gradient in fixed point. Of what is
        free it needs one piece.
        """
        return (plan.cuts.tokens or self.tokens) * self.recipe.model.vocab_size * self.head

    def logits_once(self, tokens: int, rows: int) -> int:
        """Bytes for all rows of logits, so many in fixed point at a time, then so many columns; with the head's weights
        in fixed point both ways and the sums of their gradient. Before there are logits, it has the weights themselves.
        """
        model, width = self.recipe.model, self.recipe.model.hidden_size
        weights = 2 * self.head * self.table if self.cuda else self.later + 3 * 8 * 64 * model.vocab_size
        split = 8 if not self.cuda and self.recipe.numerics.head_bits == 21 else 0
        chunk = tokens * model.vocab_size * (self.head + split)
        piece = rows * (self.tokens * (4 + 2 * self.head) + width * (4 + self.terms + (0 if self.cuda else 16)))
        piece += self.pieces_waiting
        making = (4 if self.cuda else 0) * self.table
        logits = self.tokens * (4 * model.vocab_size + self.head * width)
        return weights + max(making, logits + max(chunk, piece))

    def columns(self, rows: int) -> int:
        """Bytes for the gradient of so many rows of the head's weights."""
        width = self.recipe.model.hidden_size
        sums = rows * width * (4 + 8 + 8 + (8 if not self.cuda else 0) + self.sum_bytes)
        weights = self.head * rows * width if self.cuda else self.later
        return self.tokens * (rows * (4 + 2 * self.head) + 2 * width * self.head) + sums + weights


def _elements(spec: ParamSpec) -> int:
    return int(np.prod(spec.shape, dtype=np.int64))
