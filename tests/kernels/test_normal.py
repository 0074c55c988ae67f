"""cuda/normal.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.errors import UsageError
from auditkit.kernels.normal import normal
from auditkit.numerics import normal as reference
from tests.kernels.variants import runs
from tests.same_bits import assert_same_bits

STD = np.float32(0.02)


@pytest.mark.parametrize("shape", [(0,), (1,), (2, 3), (127,), (4, 32), (129,), (1023,), (5, 205)])
def test_shapes(device: Any, shape: tuple[int, ...]) -> None:
    for run in runs(device):
        for block in (32, 64, 256):
            got = run.down(normal(run.device, 42, "model.embed_tokens.weight", shape, STD, block=block))
            assert_same_bits(got, reference.normal(42, "model.embed_tokens.weight", shape, STD))


@pytest.mark.parametrize("seed", [0, (1 << 64) - 1])
def test_many_values(device: Any, seed: int) -> None:
    for run in runs(device):
        got = run.down(normal(run.device, seed, "lm_head.weight", (40_001,), np.float32(1)))
        assert_same_bits(got, reference.normal(seed, "lm_head.weight", (40_001,), 1.0))


def test_a_seed_beyond_64_bits_is_refused(device: Any) -> None:
    with device.use(), pytest.raises(UsageError, match="seed"):
        normal(device, 1 << 64, "x", (1,), STD)
