"""What attention holds on a device, against what the planner says that it needs (auditkit/replay/memory.py)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from auditkit.kernels import attention_chunks
from auditkit.kernels.attention import attention_backward, attention_forward
from auditkit.replay.sizes import sizes_of
from tests.kernels.emulator import EmulatedDevice
from tests.kernels.on_devices import EMULATOR_MARKS
from tests.replay.make_run import RECIPE

pytestmark = EMULATOR_MARKS
SCRATCH = 9 * 64 * 64 * 8  # bytes of a product's, which the planner counts apart


class Counting(EmulatedDevice):
    """Remembers the most bytes that were held at once."""

    most = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        made = super().empty(shape, dtype)
        self.most = max(self.most, sum(self._buffers.values()))
        return made


@pytest.mark.parametrize("small", [False, True], ids=["one chunk", "many chunks"])
@pytest.mark.parametrize("bits", [14, 21])
def test_the_planner_knows_what_attention_holds(small: bool, bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if small:
        for name in ("QUERY_ROWS", "KEY_ROWS", "MOST"):
            monkeypatch.setattr(attention_chunks, name, 1)
    model = replace(RECIPE.model, num_heads=2, num_kv_heads=1, head_dim=64, context_length=256, sliding_window=0)
    numerics, batch = replace(RECIPE.numerics, body_bits=bits), replace(RECIPE.batch, micro_batch_sequences=1)
    recipe = replace(RECIPE, model=model, numerics=numerics, batch=batch)
    sizes = sizes_of.__wrapped__(recipe, True)  # not the one that is kept
    device: Any = Counting()
    rng = np.random.default_rng(1)
    q, k, v, dout = (rng.standard_normal((1, heads, 256, 64)).astype(np.float32) for heads in (2, 1, 1, 2))
    status, up = device.zeros((1,), np.uint32), [device.upload(x) for x in (q, k, v)]
    _, held = attention_forward(device, status, *up, window=0, bits=bits)
    before, gradient = sum(device._buffers.values()), device.upload(dout)
    device.most = 0
    attention_backward(device, status, gradient, held)
    taken, chunk = device.most - before, sizes.attention(0)
    rows = sizes.work(0) - chunk if sizes.work(0) > chunk else 0
    assert chunk <= taken <= 1.1 * (chunk + rows) + SCRATCH, f"{taken:,} of {chunk:,} and {rows:,}"
