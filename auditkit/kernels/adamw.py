"""AdamW on the device, all tensors in one launch (cuda/adamw.cu); SPEC.md section 14."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from auditkit.kernels.device import Array, Device
from auditkit.kernels.tensor_table import TensorTable
from auditkit.numerics.adamw import AdamWScalars

Arrays: TypeAlias = Sequence[Array]


def adamw(
    device: Device,
    status: Array,
    params: Arrays,
    ms: Arrays,
    vs: Arrays,
    grads: Arrays,
    *,
    clip: np.float32,
    scalars: AdamWScalars,
    decayed: Sequence[bool],
    out: tuple[Arrays, Arrays, Arrays] | None = None,
    block: int | None = None,
) -> tuple[list[Array], list[Array], list[Array]]:
    """New params, ms and vs of all tensors, float32 of the shapes given.

    decayed: for each tensor, whether it decays. out: where the new values go, e.g. the old arrays; new ones by default.
    A new value that is not finite sets bit 0 of `status`.
    """
    made = out or tuple([device.empty(p.shape, np.float32) for p in params] for _ in range(3))
    table = TensorTable.of(device, params, ms, vs, grads, *made, [int(flag) for flag in decayed])
    s = scalars
    moments = (s.beta1, s.one_minus_beta1, s.beta2, s.one_minus_beta2)
    numbers = (clip, *moments, s.sqrt_correction2, s.step_size, s.decay, s.eps)
    table.launch(device, "adamw", "adamw", (status, *(np.float32(x) for x in numbers)), block=block)
    return list(made[0]), list(made[1]), list(made[2])
