"""All golden steps on a card: five recipes of 100 steps give the committed records, which a CPU checks as well."""

from __future__ import annotations

import pytest

from auditkit.kernels.backend import CudaOps
from auditkit.model.state import initial_state
from auditkit.replay.backend import CudaBackend
from tests.golden.make_recipes import first_difference, load
from tests.golden.recipes import RECIPES, STEPS, rows
from tests.kernels.on_devices import GPU_MARKS, real_device

pytestmark = [pytest.mark.gpu, *GPU_MARKS]


@pytest.mark.parametrize("name", list(RECIPES))
def test_all_steps_equal_the_golden_records(name: str) -> None:
    golden = load().trained[name]
    backend = CudaBackend(CudaOps(real_device()), 1, "gpu")
    recipe = RECIPES[name]
    found = [row for row, _ in rows(backend, recipe, initial_state(recipe), STEPS)]
    assert first_difference(found, golden.rows) == ""
    assert len(found) == len(golden.rows)
    even = recipe.batch.sequences % recipe.batch.micro_batch_sequences == 0
    assert backend.recorder.recording == even  # both ways of launching are covered
