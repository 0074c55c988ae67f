"""cuda/attention_backward_sm90.cu against the reference, word for word; on the emulator and on a card of sm_90."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from auditkit.kernels import attention as kernels
from auditkit.kernels.attention_backward_sm90 import SOURCE
from auditkit.numerics import attention as reference
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.kernels.test_attention import inputs
from tests.same_bits import assert_same_bits

pytestmark = EMULATOR_MARKS
KERNELS = {"keys", "queries", "tops", "scan", "query", "share", "slope"}


def check(device: Any, shape: tuple[int, ...], given: tuple[Any, ...], bad: int = 0) -> None:
    """dq, dk and dv of q, k, v and dout have the reference's words. bad: the status that is expected."""
    q, k, v, dout = given
    window = shape[5]
    expected, cache = reference.attention_forward(q, k, v, window=window, bits=14)
    with device.use():
        status = device.zeros((1,), np.uint32)
        up = [device.upload(array) for array in (q, k, v)]
        out, held = kernels.attention_forward(device, status, *up, window=window, bits=14)
        assert_same_bits(device.download(out), expected)
        found = kernels.attention_backward(device, status, device.upload(dout), held)
        assert device.download(status)[0] == bad
        if not bad:
            for got, want in zip(found, reference.attention_backward(dout, cache), strict=True):
                assert_same_bits(device.download(got), want)


# (B, H, G, T, D, window)
SHAPES = [
    (1, 1, 1, 1, 128, 0),
    (1, 2, 1, 33, 128, 0),
    (1, 1, 1, 63, 128, 0),
    (1, 1, 1, 64, 128, 5),
    (1, 2, 2, 65, 128, 1),
    (1, 4, 1, 127, 128, 0),
    (1, 3, 1, 130, 128, 64),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape: tuple[int, ...]) -> None:
    device: Any = EmulatedDevice()
    check(device, shape, inputs(shape, "normal", 1))
    names = {kernel.removeprefix("attention_backward_") for op, kernel in device.launches if op == SOURCE}
    assert names == KERNELS


@pytest.mark.parametrize("kind", ["normal", "peaked", "exponents", "subnormal", "zeros"])
def test_kinds(kind: str) -> None:
    device: Any = EmulatedDevice()
    shape = (1, 2, 1, 70, 128, 0)
    check(device, shape, inputs(shape, kind, 2))
