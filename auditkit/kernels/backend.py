"""The ops of a CUDA device under the names that all back ends share (auditkit/model/ops.py).

Each method launches kernels and returns at once; what goes wrong on the device is left in a status word that
`check_finite`, the last op of a step, reads. Arrays are device memory; tokens may come as NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    product,
    rms_norm,
    rope,
    swiglu,
)
from auditkit.kernels.device import Array, Device
from auditkit.numerics.adamw import AdamWScalars, adamw_scalars
from auditkit.numerics.cross_entropy import mean_loss
from auditkit.numerics.global_norm import clip_factor, norm_from_squares
from auditkit.numerics.lists import Each
from auditkit.numerics.nonfinite import NonFinite
from auditkit.numerics.schedule import learning_rate

NOT_FINITE, SUM_RANGE, TOKEN_RANGE = 1, 2, 4  # bits of the status word, cuda/common.cuh


class CudaOps:
    """The ops on one device. All calls come from one thread, inside `device.use()`."""

    name = "cuda"

    clip_factor = staticmethod(clip_factor)
    learning_rate = staticmethod(learning_rate)
    mean_loss = staticmethod(mean_loss)
    norm_from_squares = staticmethod(norm_from_squares)
    adamw_scalars = staticmethod(adamw_scalars)

    def __init__(self, device: Device) -> None:
        self.device = device
        self._ropes: dict[tuple[int, int, float], Any] = {}
        with device.use():
            self.status = device.zeros((1,), np.uint32)

    def place(self, array: npt.NDArray[Any]) -> Array:
        """A host array on the device."""
        return self.device.upload(array)

    def host(self, array: Array) -> npt.NDArray[Any]:
        """A device array on the host."""
        return self.device.download(array)

    def quantise(self, x: Array, bits: int) -> Any:
        return product.quantise(self.device, self.status, x, bits)

    def quantise_t(self, x: Array, bits: int) -> Any:
        return product.quantise_t(self.device, self.status, x, bits)

    def dot(self, a: Any, b: Any) -> Array:
        return product.dot(self.device, a, b)

    def to_fixed(self, x: Array, unit: int) -> Array:
        return exact_sum.to_fixed(self.device, self.status, x, unit)

    def from_fixed(self, totals: Sequence[Array], unit: int, each: Each = map) -> list[Array]:
        return exact_sum.from_fixed(self.device, totals, unit)

    def add_sums(self, totals: Sequence[Array], terms: Sequence[Array], each: Each = map) -> list[Array]:
        return exact_sum.add_sums(self.device, self.status, totals, terms)

    def add(self, x: Array, y: Array) -> Array:
        return layout.add(self.device, x, y)

    def split_heads(self, x: Array, batch: int, heads: int) -> Array:
        return layout.split_heads(self.device, x, batch, heads)

    def merge_heads(self, x: Array) -> Array:
        return layout.merge_heads(self.device, x)

    def digests(self, arrays: Sequence[Array]) -> list[Digest]:
        return blake3.digests(self.device, arrays)

    def rms_norm_forward(self, x: Array, weight: Array, eps: np.float32) -> tuple[Array, Any]:
        return rms_norm.rms_norm_forward(self.device, x, weight, eps)

    def rms_norm_backward(self, dy: Array, weight: Array, cache: Any) -> tuple[Array, Array]:
        return rms_norm.rms_norm_backward(self.device, self.status, dy, weight, cache)

    def rope_table(self, tokens: int, head_dim: int, theta: float) -> Any:
        key = (tokens, head_dim, theta)
        if key not in self._ropes:
            self._ropes[key] = rope.rope_table(self.device, tokens, head_dim, theta)
        return self._ropes[key]

    def rope_forward(self, x: Array, table: Any) -> Array:
        return rope.rope_forward(self.device, x, table)

    def rope_backward(self, dy: Array, table: Any) -> Array:
        return rope.rope_backward(self.device, dy, table)

    def attention_forward(self, q: Array, k: Array, v: Array, *, window: int, bits: int) -> tuple[Array, Any]:
        return product.attention_forward(self.device, self.status, q, k, v, window=window, bits=bits)

    def attention_backward(self, dout: Array, cache: Any) -> tuple[Array, Array, Array]:
        return product.attention_backward(self.device, self.status, dout, cache)

    def swiglu_forward(self, gate: Array, up: Array) -> tuple[Array, Any]:
        return swiglu.swiglu_forward(self.device, gate, up)

    def swiglu_backward(self, dy: Array, cache: Any) -> tuple[Array, Array]:
        return swiglu.swiglu_backward(self.device, dy, cache)

    def embedding_forward(self, tokens: Any, table: Array) -> Array:
        return embedding.embedding_forward(self.device, self.status, self._tokens(tokens), table)

    def embedding_backward(self, dx: Array, tokens: Any, vocab_size: int, total: Array | None = None) -> Array:
        found = self._tokens(tokens)
        return embedding.embedding_backward(self.device, self.status, dx, found, vocab_size, total=total)

    def cross_entropy(self, logits: Array, targets: Any, z_loss: np.float32, total_targets: int) -> tuple[Array, Array]:
        found = self._tokens(targets)
        return cross_entropy.cross_entropy(self.device, self.status, logits, found, z_loss, total_targets)

    def squares(self, grads: Sequence[Array], each: Each = map) -> int:
        return global_norm.squares_value(self.host(global_norm.squares(self.device, self.status, grads)))

    def adamw(
        self,
        params: Sequence[Array],
        ms: Sequence[Array],
        vs: Sequence[Array],
        grads: Sequence[Array],
        *,
        clip: np.float32,
        scalars: AdamWScalars,
        decayed: Sequence[bool],
        each: Each = map,
    ) -> tuple[list[Array], list[Array], list[Array]]:
        arrays = (params, ms, vs, grads)
        return adamw.adamw(self.device, self.status, *arrays, clip=clip, scalars=scalars, decayed=decayed)

    def check_finite(self, arrays: Mapping[str, Array]) -> None:
        """Read and clear the status word, then look at the arrays. Raises NonFinite, Unsupported or MachineFault."""
        found = int(self.host(self.status)[0])
        if found:
            self.device.clear(self.status)
        if found & TOKEN_RANGE:
            raise MachineFault("a token that was checked on the host is out of range on the device")
        if found & SUM_RANGE:  # before anything else: what came after a wrapped sum means nothing
            raise Unsupported(
                "an exact sum came close to its range, where this device does not decide whether the step has a result",
                hint="--device cpu decides it",
            )
        if found & NOT_FINITE:
            raise NonFinite("a value of the step is not finite, or a term of an exact sum is out of range")
        layout.check_finite(self.device, arrays)

    def _tokens(self, tokens: Any) -> Array:
        """uint32 tokens on the device, from a NumPy array or from a device array of another integer type."""
        if type(tokens) is not np.ndarray:  # a subclass stands for device memory
            if tokens.dtype == np.uint32:
                return tokens
            tokens = self.host(tokens)
        return self.device.upload(tokens.astype(np.uint32))
