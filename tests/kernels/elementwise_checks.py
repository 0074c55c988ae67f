"""What the kernel of every elementary function must hold, called by the test of each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests.kernels.variants import runs
from tests.ops.elementary_checks import check_vectors, load, random_patterns
from tests.same_bits import assert_same_bits

BLOCKS = (32, 64, 256)
SIZES = sorted({0, 1, 3, 4, 5, 1021, *(4 * block + more for block in (32, 256) for more in (-1, 0, 1)), 4099})
AWKWARD = (0, 0x80000000, 1, 0x80000001, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFF800001)


def words_of(op: str) -> np.ndarray[Any, Any]:
    """Every input of the op's vectors, the awkward ones, and random patterns."""
    cases = [int(case[0], 16) for case in load(op)["cases"]]
    listed = np.array([*AWKWARD, *cases], np.uint32).view(np.float32)
    return np.concatenate([listed, random_patterns(4096 + 8, 31)])


def check_elementary(device: Any, op: str, launcher: Callable[..., Any], reference: Callable[..., Any]) -> None:
    """Sizes around quads and blocks, three blocks, all kinds of words, several axes: the reference's words."""
    words = words_of(op)
    want = reference(words)
    for run in runs(device):
        for size in SIZES:
            x = run.up(words[:size])
            for block in BLOCKS if size < 1100 else BLOCKS[-1:]:
                assert_same_bits(run.down(launcher(run.device, x, block=block)), want[:size])
        whole = words[: words.size // 8 * 8].reshape(-1, 2, 4)
        assert_same_bits(run.down(launcher(run.device, run.up(whole))), reference(whole))


def check_sweep(device: Any, op: str, launcher: Callable[..., Any]) -> None:
    """The committed vectors, a million words of all exponents among them."""
    with device.use():
        check_vectors(lambda x, out=None: device.download(launcher(device, device.upload(x))), op)
