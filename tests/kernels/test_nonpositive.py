"""exp_nonpositive of cuda/elementary.cuh: the bits of exp wherever a softmax can call it."""

from __future__ import annotations

import numpy as np

from auditkit.kernels.device import blocks_for
from auditkit.numerics.exp import exp
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.kernels.test_emulator import SOURCES
from tests.same_bits import assert_same_bits

pytestmark = EMULATOR_MARKS
AROUND = 4096  # words on each side of a place where the form changes


def test_every_binade_and_each_word_around_the_bounds() -> None:
    bounds = np.array([-86.0, -87.33654, -103.97208, -np.log(2) / 2, -np.log(2)], np.float32).view(np.uint32)
    words = np.concatenate(
        [
            np.arange(0x80000000, 0xFFFFFFFF, 16_411, dtype=np.uint64),  # -0 to -inf and NaNs
            *(np.arange(int(bound) - AROUND, int(bound) + AROUND, dtype=np.uint64) for bound in bounds),
            np.array([0, 0x7FC00000, 0x7F800001, 0x80000000, 0x80000001, 0xFF800000], np.uint64),
        ]
    ).astype(np.uint32)
    x = words.view(np.float32)
    device = EmulatedDevice(sources=SOURCES)
    y = device.empty(x.shape, np.float32)
    device.launch("nonpositive", "nonpositive", blocks_for(x.size, 256), 256, [device.upload(x), y, np.int64(x.size)])
    assert_same_bits(device.download(y), exp(x))
