"""The ops of a CUDA device under the names that all back ends share (auditkit/model/ops.py).

Each method launches kernels and returns at once; what goes wrong on the device is left in a status word that
`check_finite`, the last op of a step, reads. Arrays are device memory; tokens may come as NumPy arrays.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from auditkit.errors import MachineFault, Unsupported
from auditkit.formats.digest import Digest
from auditkit.kernels import (
    adamw,
    blake3,
    cross_entropy,
    embedding,
    exact_sum,
    global_norm,
    layout,
    operands,
    product,
    rms_norm,
    rope,
    swiglu,
)
from auditkit.kernels.device import Array, Device
from auditkit.kernels.transfers import Coming
from auditkit.numerics.adamw import adamw_scalars
from auditkit.numerics.cross_entropy import mean_loss
from auditkit.numerics.global_norm import clip_factor, norm_from_squares
from auditkit.numerics.lists import Each
from auditkit.numerics.nonfinite import NonFinite
from auditkit.numerics.schedule import learning_rate

WAITING_TERMS = 1 << 28  # bytes; a matrix alone leaves much of a large card idle
NOT_FINITE, SUM_RANGE, TOKEN_RANGE = 1, 2, 4  # bits of the status word, cuda/common.cuh
SUM_LIMIT = 1 << exact_sum.SUM_BITS
_MOST_SQUARES = SUM_LIMIT << 32  # units 2^-62; from here on the step has no result (SPEC.md section 13)


def _close_to_range() -> Unsupported:
    return Unsupported(
        "an exact sum came close to its range, where this device does not decide whether the step has a result",
        hint="--device cpu decides it",
    )


def _on_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """A launcher as a method: the device comes first."""

    @functools.wraps(function)
    def method(self: CudaOps, *args: Any, **options: Any) -> Any:
        return function(self.device, *args, **options)

    return method


def _checked(function: Callable[..., Any]) -> Callable[..., Any]:
    """A launcher that leaves what goes wrong in the status word, as a method."""

    @functools.wraps(function)
    def method(self: CudaOps, *args: Any, **options: Any) -> Any:
        return function(self.device, self.status, *args, **options)

    return method


def _alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """A launcher over lists, as a method: one launch serves all tensors, so `each` has nothing to do."""

    @functools.wraps(function)
    def method(self: CudaOps, *args: Any, each: Each = map, **options: Any) -> Any:
        return function(self.device, self.status, *args, **options)

    return method


class CudaOps:
    """The ops on one device. All calls come from one thread, inside `device.use()`."""

    name = "cuda"
    waiting_terms = WAITING_TERMS

    clip_factor = staticmethod(clip_factor)
    learning_rate = staticmethod(learning_rate)
    norm_from_squares = staticmethod(norm_from_squares)
    adamw_scalars = staticmethod(adamw_scalars)

    quantise = _checked(product.quantise)
    quantise_t = _checked(product.quantise_t)
    quantise_both = _checked(product.quantise_both)
    quantise_keep = _checked(product.quantise_keep)
    quantise_columns = _checked(operands.quantise_columns)
    kept_columns = _checked(product.kept_columns)
    weight_rows = quantise
    weight_rows_t = quantise_t
    dot = _on_device(product.dot)
    to_fixed = _checked(exact_sum.to_fixed)
    add_pieces = _checked(exact_sum.add_pieces)
    join_sums = _checked(exact_sum.join_sums)
    add = _on_device(layout.add)
    split_heads = _on_device(layout.split_heads)
    merge_heads = _on_device(layout.merge_heads)
    join_rows = _on_device(layout.join_rows)
    columns = _on_device(layout.columns)
    TensorDigest = _on_device(blake3.TensorDigest)
    read_digests = _on_device(blake3.read_digests)
    digests = _on_device(blake3.digests)
    block_nodes = _on_device(blake3.block_nodes)
    rms_norm_forward = _on_device(rms_norm.rms_norm_forward)
    rms_norm_backward = _checked(rms_norm.rms_norm_backward)
    rms_norm_backward_add = _checked(rms_norm.rms_norm_backward_add)
    rope_forward = _on_device(rope.rope_forward)
    rope_heads = _on_device(rope.rope_heads)
    rope_backward = _on_device(rope.rope_backward)
    attention_forward = _checked(product.attention_forward)
    attention_again = _checked(product.attention_again)
    attention_heads = _on_device(product.attention_heads)
    attention_restored = _checked(product.attention_restored)
    attention_backward = _checked(product.attention_backward)
    merge_heads_keep = _checked(operands.merge_heads_keep)
    merge_heads_rows = _checked(operands.merge_heads_rows)
    merge_heads_both = _checked(operands.merge_heads_both)
    rms_norm_keep = _checked(operands.rms_norm_keep)
    rms_norm_rows = _checked(operands.rms_norm_rows)
    swiglu_keep = _checked(operands.swiglu_keep)
    swiglu_rows = _checked(operands.swiglu_rows)
    swiglu_columns = _checked(operands.swiglu_columns)
    swiglu_backward_both = _checked(operands.swiglu_backward_both)
    swiglu_forward = _on_device(swiglu.swiglu_forward)
    swiglu_backward = _on_device(swiglu.swiglu_backward)
    adamw = _alone(adamw.adamw)

    def __init__(self, device: Device) -> None:
        self.device = device
        self._ropes: dict[tuple[int, int, float], Any] = {}
        with device.use():
            self.status = device.zeros((1,), np.uint32)

    def place(self, array: npt.NDArray[Any]) -> Array:
        """A host array on the device."""
        return self.device.upload(array)

    def bring(self, array: npt.NDArray[Any], parts: int = 1) -> Coming:
        """Begin to copy a host array that does not change to the device, the first of some parts of it; `begin` goes on
        with the next one. The result, called once, gives the array.
        """
        return self.device.transfers.bring(array, parts)

    def host(self, array: Array) -> npt.NDArray[Any]:
        """A device array on the host."""
        return self.device.download(array)

    def reset(self) -> None:
        """Forget what an earlier step left in the status word, which ended without reading it."""
        self.device.clear(self.status)

    def forget(self) -> None:
        """Upload tables anew when they are next needed."""
        self._ropes.clear()

    def from_fixed(self, totals: Sequence[Array], unit: int, each: Each = map) -> list[Array]:
        """All sums in one launch."""
        return exact_sum.from_fixed(self.device, self.status, totals, unit)

    def add_sums(
        self, totals: Sequence[Array], terms: Sequence[Array], each: Each = map, *, out: Sequence[Array] | None = None
    ) -> list[Array]:
        """All pairs in one launch."""
        return exact_sum.add_sums(self.device, self.status, totals, terms, out=out)

    def add_terms(
        self,
        totals: Sequence[Array],
        terms: Sequence[Array],
        unit: int,
        each: Each = map,
        *,
        out: Sequence[Array] | None = None,
    ) -> tuple[list[Array], list[Digest]]:
        """All tensors in one go; waits for the device."""
        return exact_sum.add_terms(self.device, self.status, totals, terms, unit, out=out)

    def largest(self, sums: Sequence[Array], each: Each = map) -> int:
        """All arrays in one launch; waits for the device."""
        return int(self.host(exact_sum.largest(self.device, sums))[0])

    def squares(self, grads: Sequence[Array], each: Each = map) -> int:
        """All tensors in one launch; waits for the device. Raises NonFinite or Unsupported where the sum means nothing.

        A sum out of range may have wrapped before; only then the status word is looked at here, not in `check_finite`.
        """
        total = global_norm.squares_value(self.host(global_norm.squares(self.device, self.status, grads)))
        if not 0 <= total < _MOST_SQUARES:
            self._check_status()
        if total < 0:
            raise MachineFault("the squares of the gradient have a negative sum", hint="use another card")
        return total

    def mean_loss(self, loss_sum: int, total_targets: int) -> np.float32:
        """As the op. Raises Unsupported for a sum out of range, which only sums over micro-batches look at else."""
        if not -SUM_LIMIT <= loss_sum < SUM_LIMIT:
            raise _close_to_range()
        return mean_loss(loss_sum, total_targets)

    def rope_table(self, tokens: int, head_dim: int, theta: float) -> Any:
        """The table, uploaded once."""
        key = (tokens, head_dim, theta)
        if key not in self._ropes:
            self._ropes[key] = rope.rope_table(self.device, tokens, head_dim, theta)
        return self._ropes[key]

    def embedding_forward(self, tokens: Any, table: Array) -> Array:
        """As the op; tokens may lie on the host."""
        return embedding.embedding_forward(self.device, self.status, self._tokens(tokens), table)

    def embedding_backward(self, dx: Array, tokens: Any, vocab_size: int, total: Array | None = None) -> Array:
        """As the op; tokens may lie on the host, and `total` is added to in place."""
        found = self._tokens(tokens)
        return embedding.embedding_backward(self.device, self.status, dx, found, vocab_size, total=total)

    def cross_entropy(self, logits: Array, targets: Any, z_loss: np.float32, total_targets: int) -> tuple[Array, Array]:
        """As the op; targets may lie on the host."""
        found = self._tokens(targets)
        return cross_entropy.cross_entropy(self.device, self.status, logits, found, z_loss, total_targets)

    def cross_entropy_rows(
        self, logits: Array, targets: Any, z_loss: np.float32, total_targets: int
    ) -> tuple[Array, Array, Array]:
        """As the op; targets may lie on the host."""
        found = self._tokens(targets)
        return cross_entropy.cross_entropy_rows(self.device, self.status, logits, found, z_loss, total_targets)

    def cross_entropy_operand(
        self, logits: Array, targets: Any, z_loss: np.float32, total_targets: int, bits: int
    ) -> tuple[Array, Array, Array, Any]:
        """As the op; targets may lie on the host."""
        found = self._tokens(targets)
        return operands.cross_entropy_operand(self.device, self.status, logits, found, z_loss, total_targets, bits)

    def cross_entropy_columns(self, logits: Array, first: int, targets: Any, kept: Array, total_targets: int) -> Array:
        """As the op; targets may lie on the host."""
        found = self._tokens(targets)
        return cross_entropy.cross_entropy_columns(self.device, logits, first, found, kept, total_targets)

    def check_finite(self, arrays: Mapping[str, Array]) -> None:
        """Read and clear the status word, then look at the arrays. Raises NonFinite, Unsupported or MachineFault."""
        self._check_status()
        if arrays:
            layout.check_finite(self.device, arrays)

    def _check_status(self) -> None:
        found = int(self.host(self.status)[0])
        if found:
            self.device.clear(self.status)
        if found & TOKEN_RANGE:
            raise MachineFault("a token that was checked on the host is out of range on the device")
        if found & SUM_RANGE:  # before anything else: what came after a wrapped sum means nothing
            raise _close_to_range()
        if found & NOT_FINITE:
            raise NonFinite("a value of the step is not finite, or a term of an exact sum is out of range")

    def _tokens(self, tokens: Any) -> Array:
        """uint32 tokens on the device, from a NumPy array or from a device array of another integer type."""
        if type(tokens) is not np.ndarray:  # a subclass stands for device memory
            if tokens.dtype == np.uint32:
                return tokens
            tokens = self.host(tokens)
        return self.device.upload(tokens.astype(np.uint32))
