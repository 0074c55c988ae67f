"""What rounding the operands of a layer's 14-bit products takes in a step, on a card: for bench/exact_dot_model.py.

A step rounds most operands where they are made (auditkit/kernels/operands.py). What that takes is the difference
between the op that rounds and the op that does not: a pass that rounding adds to RMSNorm is counted, the norm is not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from auditkit.kernels import layout, operands, product, rms_norm, swiglu
from auditkit.kernels.device import Device

Clock = Callable[[Device, Callable[[], Any]], float]  # milliseconds of a call

BITS = 14
SEQUENCE = 4096  # tokens


def layer_roundings(device: Device, tokens: int, width: int, ffn: int, heads: tuple[int, int], clock: Clock) -> float:
    """Milliseconds for the operands of a layer's products, forward and backward, of so many tokens.

    heads: query and key heads. What is rounded: forward before q, k and v (after a norm), before o (heads), before gate
    and up (a norm), before down (SwiGLU); backward the gradients of what down, gate and up, o, q, k and v give.
    """
    status, on = device.zeros((1,), np.uint32), (device,)

    def normals(*shape: int) -> Any:
        return device.cupy.asarray(torch.randn(shape, device="cuda"))

    def added(rounding: Callable[[], Any], alone: Callable[[], Any] | None = None) -> float:
        """Milliseconds that rounding adds to an op."""
        return clock(device, rounding) - (0.0 if alone is None else clock(device, alone))

    x, weight, eps = normals(tokens, width), normals(width), np.float32(1e-5)
    norm = added(partial(operands.rms_norm_keep, *on, status, x, weight, eps, BITS),
                 partial(rms_norm.rms_norm_forward, *on, x, weight, eps))  # fmt: skip
    plain = added(partial(product.quantise_both, *on, status, x, BITS))
    del x
    batch, dim = max(1, tokens // SEQUENCE), width // heads[0]
    merged = {}
    for count in set(heads):
        of_heads = normals(batch, count, tokens // batch, dim)
        merged[count] = added(partial(operands.merge_heads_both, *on, status, of_heads, BITS),
                              partial(layout.merge_heads, *on, of_heads))  # fmt: skip
        del of_heads
    gate, up, dy = (normals(tokens, ffn) for _ in range(3))
    forward = added(partial(operands.swiglu_keep, *on, status, gate, up, BITS),
                    partial(swiglu.swiglu_forward, *on, gate, up))  # fmt: skip
    cache = swiglu.SwigluCache(gate, up)
    backward = added(partial(operands.swiglu_backward_both, *on, status, dy, cache, BITS),
                     partial(swiglu.swiglu_backward, *on, dy, cache))  # fmt: skip
    queries, keys = heads
    return 2 * norm + 2 * plain + 2 * merged[queries] + 2 * merged[keys] + forward + backward
