"""AdamW, one step on one tensor (SPEC.md section 14; Loshchilov and Hutter, 2019)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from auditkit.numerics.arrays import F32, ieee
from auditkit.numerics.float64 import pow_int

_BLOCK = 32_768


@dataclass(frozen=True)
class AdamWScalars:
    """The step's scalars, computed in binary64 and rounded once to binary32."""

    beta1: np.float32
    one_minus_beta1: np.float32
    beta2: np.float32
    one_minus_beta2: np.float32
    sqrt_correction2: np.float32  # sqrt(1 - beta2^t)
    step_size: np.float32  # lr / (1 - beta1^t)
    decay: np.float32  # 1 - lr * weight_decay
    eps: np.float32


@ieee
def adamw_scalars(
    *, lr: np.float32, beta1: float, beta2: float, eps: float, weight_decay: float, update: int
) -> AdamWScalars:
    """Scalars of update number `update` (1 for the first): every operation in binary64, powers by `pow_int`."""
    rate = float(lr)
    return AdamWScalars(
        beta1=np.float32(beta1),
        one_minus_beta1=np.float32(1.0 - beta1),
        beta2=np.float32(beta2),
        one_minus_beta2=np.float32(1.0 - beta2),
        sqrt_correction2=np.float32(math.sqrt(1.0 - pow_int(beta2, update))),
        step_size=np.float32(rate / (1.0 - pow_int(beta1, update))),
        decay=np.float32(1.0 - rate * weight_decay),
        eps=np.float32(eps),
    )


@ieee
def adamw(
    param: F32, m: F32, v: F32, grad: F32, *, clip: np.float32, scalars: AdamWScalars, decayed: bool
) -> tuple[F32, F32, F32]:
    """New (param, m, v), each of the shape of param; inputs are not changed.

    g = grad * clip; m = beta1 * m + (1 - beta1) * g; v = beta2 * v + (1 - beta2) * (g * g);
    param = param * decay - step_size * (m / (sqrt(v) / sqrt(1 - beta2^t) + eps)); decay only where `decayed`.
    """
    outs = tuple(np.empty(param.shape, np.float32) for _ in range(3))
    flat = [array.reshape(-1) for array in (param, m, v, grad, *outs)]
    decay = scalars.decay if decayed else np.float32(1)
    for start in range(0, param.size, _BLOCK):
        _block([array[start : start + _BLOCK] for array in flat], clip, decay, scalars)
    return outs[0], outs[1], outs[2]


def _block(arrays: list[F32], clip: np.float32, decay: np.float32, s: AdamWScalars) -> None:
    p, m, v, grad, p_out, m_out, v_out = arrays
    g = grad * clip
    np.multiply(m, s.beta1, out=m_out)
    m_out += s.one_minus_beta1 * g
    g *= g
    g *= s.one_minus_beta2
    np.multiply(v, s.beta2, out=v_out)
    v_out += g
    denominator = np.sqrt(v_out, out=g)
    denominator /= s.sqrt_correction2
    denominator += s.eps
    change = m_out / denominator
    change *= s.step_size
    np.multiply(p, decay, out=p_out)
    p_out -= change
