"""The least time that a step can take on a machine: its operations over the rate of the exact dot, its bytes over the
bandwidth of a copy. docs/performance.md explains the terms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from auditkit.formats.recipe import Recipe
from auditkit.measure.rates import Rates, planes
from auditkit.model.params import parameter_table
from auditkit.replay.sizes import Sizes, sizes_of

PASSES = 3  # of a matrix's product: forward, gradient of its input, gradient of its weights
ATTENTION = 7  # products of queries and keys: two forward, and backward the scores again, dP, dQ, dK, dV
SUM_BYTES = 24  # a parameter and micro-batch: its gradient written in binary32 and read, the total read and written
# A parameter and step: sum read, gradient written and read by norm, digest and AdamW; parameter and moments read and
# written, then read by the check for finite values and by the digest of the state.
UPDATE_BYTES = 8 + 4 + 3 * 4 + 12 + 12 + 12 + 12


@dataclass(frozen=True)
class Work:
    """What must be done: of a micro-batch operations and bytes, of a step once the bytes of the update and of rounding
    the weights.
    """

    operations: float
    bytes: float
    step_bytes: float


@dataclass(frozen=True)
class Floor:
    """Seconds. A micro-batch takes at least the longer of its two: arithmetic and traffic can overlap."""

    arithmetic: float
    traffic: float
    step_traffic: float

    @property
    def micro_batch(self) -> float:
        """Of a micro-batch."""
        return max(self.arithmetic, self.traffic)

    def step(self, micro_batches: int) -> float:
        """Of a whole step."""
        return micro_batches * self.micro_batch + self.step_traffic


def work_of(recipe: Recipe, cuda: bool) -> Work:
    """Operations and bytes of a recipe on a kind of back end."""
    sizes, body = sizes_of(recipe, cuda), _matrices(recipe)
    rounding = body * (2 * 4 + 2 * sizes.body) + sizes.table * (2 * 4 + 2 * sizes.head)
    traffic = 2 * sizes.body * body + 2 * sizes.head * sizes.table + SUM_BYTES * sizes.parameters
    traffic += sizes.tokens * (recipe.model.num_layers * _layer_bytes(sizes) + _head_bytes(sizes))
    return Work(operations(recipe, cuda), float(traffic), float(UPDATE_BYTES * sizes.parameters + rounding))


def floor_of(recipe: Recipe, cuda: bool, rates: Rates) -> Floor:
    """The least seconds at measured rates."""
    work = work_of(recipe, cuda)
    return Floor(work.operations / rates.operations, work.bytes / rates.copy, work.step_bytes / rates.copy)


def operations(recipe: Recipe, cuda: bool) -> float:
    """Additions and multiplications of a micro-batch's products, every elementary product counted."""
    model, numerics, sizes = recipe.model, recipe.numerics, sizes_of(recipe, cuda)
    length = model.context_length
    span = min(model.sliding_window or length, length)
    keys = span - span * (span - 1) / (2 * length)  # the mean over the queries of how many keys each sees
    attention = ATTENTION * model.num_layers * model.num_heads * model.head_dim * keys
    body = planes(numerics.body_bits, cuda) * (PASSES * _matrices(recipe) + attention)
    head = planes(numerics.head_bits, cuda) * PASSES * sizes.table
    return 2.0 * sizes.tokens * (body + head)


def _matrices(recipe: Recipe) -> int:
    """Elements of the weights of the body's products."""
    specs = parameter_table(recipe.model)
    return sum(int(np.prod(spec.shape)) for spec in specs if spec.kind in ("matrix", "residual"))


def _layer_bytes(sizes: Sizes) -> int:
    """Bytes of a token in a layer, every array written once and read once: operands of the products in fixed point, by
    rows and by columns, and what the products give, in binary32.
    """
    model = sizes.recipe.model
    width, ffn = model.hidden_size, model.ffn_size
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    inputs = 2 * width + queries + ffn
    outputs = queries + 2 * keys + 2 * width + 2 * ffn
    gradients = 5 * width + queries + ffn  # of the inputs, one for each product
    return 2 * 2 * sizes.body * (inputs + outputs) + 2 * 4 * (outputs + gradients)


def _head_bytes(sizes: Sizes) -> int:
    """Bytes of a token in the head: logits once, their gradient and the last hidden state in fixed point."""
    model = sizes.recipe.model
    return 2 * 4 * model.vocab_size + 2 * 2 * sizes.head * (model.vocab_size + model.hidden_size)
