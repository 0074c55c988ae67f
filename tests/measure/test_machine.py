"""The measured profile of a card: every rate is one, and nothing stays allocated."""

from __future__ import annotations

import gc

from auditkit.formats.recipe import Recipe
from auditkit.measure.machine import measured_profile
from auditkit.replay.backend import Backend, CudaBackend
from auditkit.replay.predict import CARD
from tests.kernels.on_devices import EMULATOR_MARKS

pytestmark = EMULATOR_MARKS


def test_all_that_takes_most_of_a_micro_batch_is_measured(recipe: Recipe, card: Backend) -> None:
    assert isinstance(card, CudaBackend)
    found = measured_profile(recipe, card, copy=1 << 12)
    for name in ("products", "head", "attention", "backward", "to_host", "to_device", "lock"):
        value, declared = getattr(found, name), getattr(CARD, name)
        assert value > 0 and value != declared, name
    gc.collect()
    assert not card.ops.device.pool.used_bytes() - card.ops.status.nbytes
