"""cuda/philox.cu against the reference, word for word."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.errors import UsageError
from auditkit.kernels.philox import philox
from auditkit.numerics import philox as reference
from tests.kernels.variants import runs
from tests.same_bits import assert_same_bits

MOST = (1 << 64) - 1


@pytest.mark.parametrize("count", [0, 1, 31, 32, 33, 257])
def test_counts(device: Any, count: int) -> None:
    for run in runs(device):
        for block in (32, 64, 256):
            assert_same_bits(
                run.down(philox(run.device, 20, 7, 5, count, block=block)), reference.philox(20, 7, 5, count)
            )


def test_large_numbers(device: Any) -> None:
    for run in runs(device):
        for seed, stream, start in (
            (MOST, MOST, MOST - 9),
            (1 << 32, 1 << 63, (1 << 32) - 4),
            (5, 0xFFFFFFFF, 1 << 40),
        ):
            got = run.down(philox(run.device, seed, stream, start, 9))
            assert_same_bits(got, reference.philox(seed, stream, start, 9))


@pytest.mark.parametrize(("seed", "stream", "start"), [(-1, 0, 0), (1 << 64, 0, 0), (0, -1, 0), (0, 0, MOST)])
def test_numbers_beyond_64_bits_are_refused(device: Any, seed: int, stream: int, start: int) -> None:
    with device.use(), pytest.raises(UsageError, match="outside"):
        philox(device, seed, stream, start, 1)
    assert np.iinfo(np.uint64).max == MOST
