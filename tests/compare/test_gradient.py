"""The gradient of the whole model against torch autograd in float64. These are accuracy tests: tolerances are meant."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest

from auditkit.formats.recipe import Recipe
from auditkit.model.network import prepare
from auditkit.model.state import initial_state
from auditkit.model.step import grads
from auditkit.numerics import reference
from auditkit.numerics.exact_sum import GRADIENT_UNIT, LOSS_UNIT
from bench.replay import recipes

torch = pytest.importorskip("torch")
from bench import torch_model  # noqa: E402 - needs torch

BASE = recipes()["bundled model"]
LENGTH, SEQUENCES = 64, 4
VARIANTS = {
    "grouped heads, QK-norm, tied head": {},
    "sliding window, untied head": {"sliding_window": 16, "tied_head": False},
    "plain heads, no QK-norm": {"qk_norm": False, "num_kv_heads": 4},
}
LIMITS = {14: 2e-3, 21: 2e-5}  # relative error by bits of the body; the head has 21 bits in both


def recipe(bits: int, changes: dict[str, int | bool]) -> Recipe:
    """The bundled recipe with a short context and some changes to the model."""
    model = dataclasses.replace(BASE.model, context_length=LENGTH, **changes)
    return dataclasses.replace(BASE, model=model, numerics=dataclasses.replace(BASE.numerics, body_bits=bits))


def weights(chosen: Recipe) -> dict[str, npt.NDArray[np.float32]]:
    """Initial weights moved by noise, so that no norm weight is 1 and every gradient is alive."""
    random = np.random.default_rng(1)
    params = initial_state(chosen).params
    return {n: a + np.float32(0.05) * random.standard_normal(a.shape, dtype=np.float32) for n, a in params.items()}


@pytest.mark.parametrize("bits", LIMITS)
@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS.keys())
def test_gradient_is_that_of_torch_in_float64(bits: int, changes: dict[str, int | bool]) -> None:
    chosen = recipe(bits, changes)
    params = weights(chosen)
    tokens = np.random.default_rng(2).integers(0, chosen.model.vocab_size, (SEQUENCES, LENGTH + 1))

    found = grads(prepare(params, chosen, reference), tokens, SEQUENCES * LENGTH, chosen, reference)
    leaves = torch_model.parameters(params, torch.float64)
    loss = torch_model.loss(leaves, torch.from_numpy(tokens), chosen)
    loss.backward()

    assert found.loss_sum / 2**LOSS_UNIT / (SEQUENCES * LENGTH) == pytest.approx(loss.item(), abs=LIMITS[bits])
    ours = {name: np.float64(reference.from_fixed(total, GRADIENT_UNIT)) for name, total in found.grads.items()}
    theirs = {name: leaf.grad.numpy() for name, leaf in leaves.items()}
    assert ours.keys() == theirs.keys()
    error = sum(float(np.square(ours[n] - theirs[n]).sum()) for n in ours) ** 0.5
    norm = sum(float(np.square(theirs[n]).sum()) for n in ours) ** 0.5
    assert error / norm < LIMITS[bits]
    # No tensor may hide behind the large ones.
    for name in ours:
        assert np.linalg.norm(ours[name] - theirs[name]) < 5 * LIMITS[bits] * np.linalg.norm(theirs[name]), name
