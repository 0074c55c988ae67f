"""The gradient of the whole model against torch autograd in float64. These are accuracy tests: tolerances are meant."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import pytest

from auditkit.formats.recipe import LossConfig, NumericsConfig, Recipe
from auditkit.model.network import prepare
from auditkit.model.state import initial_state
from auditkit.model.step import grads, micro_batches
from auditkit.numerics import reference
from auditkit.numerics.exact_sum import GRADIENT_UNIT, LOSS_UNIT
from bench.replay import recipes

torch = pytest.importorskip("torch")
from auditkit.measure import torch_model  # noqa: E402 - needs torch

BASE = recipes()["bundled model"]
LENGTH, SEQUENCES = 64, 4  # sequences in micro-batches of 3 and 1
Z_LOSS = 2.0**-7  # large enough to be seen in every gradient

PRODUCTS = {
    "fx14": (NumericsConfig(1, "fx", 14, 14), 2e-3),
    "fx14, head fx21": (NumericsConfig(1, "fx", 14, 21), 2e-3),
    "fx21": (NumericsConfig(1, "fx", 21, 21), 2e-5),
    "f32": (NumericsConfig(1, "f32", 24, 24), 2e-6),
}
VARIANTS: dict[str, tuple[dict[str, int | bool], float]] = {
    "grouped heads, QK-norm, tied head, z-loss": ({}, Z_LOSS),
    "grouped heads, QK-norm, tied head": ({}, 0.0),
    "sliding window, untied head, z-loss": ({"sliding_window": 16, "tied_head": False}, Z_LOSS),
    "plain heads, no QK-norm": ({"qk_norm": False, "num_kv_heads": 4}, 0.0),
    "one key head, sliding window, no QK-norm, untied head": (
        {"num_kv_heads": 1, "sliding_window": 63, "qk_norm": False, "tied_head": False},
        0.0,
    ),
}
Gradients = dict[str, npt.NDArray[np.float64]]


def recipe(numerics: NumericsConfig, changes: dict[str, int | bool], z_loss: float) -> Recipe:
    """The bundled recipe with a short context, uneven micro-batches and some changes to the model."""
    model = dataclasses.replace(BASE.model, context_length=LENGTH, **changes)
    batch = dataclasses.replace(BASE.batch, sequences=SEQUENCES, micro_batch_sequences=3)
    return dataclasses.replace(BASE, model=model, batch=batch, numerics=numerics, loss=LossConfig(z_loss))


def weights(chosen: Recipe) -> dict[str, npt.NDArray[np.float32]]:
    """Initial weights moved by noise, so that no norm weight is 1 and every gradient is alive."""
    random = np.random.default_rng(1)
    params = initial_state(chosen).params
    return {n: a + np.float32(0.05) * random.standard_normal(a.shape, dtype=np.float32) for n, a in params.items()}


def by_auditkit(
    params: dict[str, npt.NDArray[np.float32]], tokens: npt.NDArray[np.int64], chosen: Recipe
) -> tuple[float, Gradients]:
    """Mean loss and gradient: the exact sums of all micro-batches, added and rounded back."""
    prepared, targets = prepare(params, chosen, reference), SEQUENCES * LENGTH
    parts = [grads(prepared, part, targets, chosen, reference) for part in micro_batches(tokens, chosen)]
    assert len(parts) == 2
    names = list(params)
    sums = reference.add_sums(*([part.grads[name] for name in names] for part in parts))
    rounded = reference.from_fixed(sums, GRADIENT_UNIT)
    loss = sum(int(part.loss_sum) for part in parts) / 2**LOSS_UNIT / targets
    return loss, {name: array.astype(np.float64) for name, array in zip(names, rounded, strict=True)}


def by_torch(
    params: dict[str, npt.NDArray[np.float32]], tokens: npt.NDArray[np.int64], chosen: Recipe
) -> tuple[float, Gradients]:
    """The same by autograd in float64, all sequences at once."""
    leaves = torch_model.parameters(params, torch.float64)
    loss = torch_model.loss(leaves, torch.from_numpy(tokens), chosen)
    loss.backward()
    return loss.item(), {name: leaf.grad.numpy() for name, leaf in leaves.items()}


@pytest.mark.parametrize(("numerics", "limit"), PRODUCTS.values(), ids=PRODUCTS.keys())
@pytest.mark.parametrize(("changes", "z_loss"), VARIANTS.values(), ids=VARIANTS.keys())
def test_gradient_is_that_of_torch_in_float64(
    numerics: NumericsConfig, limit: float, changes: dict[str, int | bool], z_loss: float
) -> None:
    chosen = recipe(numerics, changes, z_loss)
    params = weights(chosen)
    tokens = np.random.default_rng(2).integers(0, chosen.model.vocab_size, (SEQUENCES, LENGTH + 1))

    loss, ours = by_auditkit(params, tokens, chosen)
    expected, theirs = by_torch(params, tokens, chosen)

    assert loss == pytest.approx(expected, abs=limit)
    assert ours.keys() == theirs.keys()
    error = sum(float(np.square(ours[n] - theirs[n]).sum()) for n in ours) ** 0.5
    norm = sum(float(np.square(theirs[n]).sum()) for n in ours) ** 0.5
    assert error / norm < limit
    # No tensor may hide behind the large ones.
    for name in ours:
        assert np.linalg.norm(ours[name] - theirs[name]) < 5 * limit * np.linalg.norm(theirs[name]), name
