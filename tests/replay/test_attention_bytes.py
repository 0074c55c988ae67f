"""What a layer keeps and needs by the formulas, against what it takes here, where attention decides: heads that are
wide or many for the model's width.
"""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from auditkit.formats.recipe import NumericsConfig, Recipe
from auditkit.model.network import Network, Prepared
from auditkit.model.params import layer_prefix, parameter_table
from auditkit.numerics import reference as ops
from auditkit.replay.sizes import sizes_of
from tests.replay.make_run import RECIPE

F32_PRODUCT = replace(RECIPE.numerics, product="f32", body_bits=24, head_bits=24)
FX21 = replace(RECIPE.numerics, body_bits=21)


def wide(
    heads: tuple[int, int, int],
    tokens: int,
    sequences: int,
    numerics: NumericsConfig = RECIPE.numerics,
    window: int = 0,
) -> Recipe:
    """H query heads and G key heads of D, 32 times as wide as the model where that goes, with QK-norm."""
    queries, keys, dim = heads
    model = replace(
        RECIPE.model, hidden_size=max(16, queries * dim // 32), num_heads=queries, num_kv_heads=keys, head_dim=dim,
        ffn_size=32, context_length=tokens, sliding_window=window, qk_norm=True,
    )  # fmt: skip
    batch = replace(RECIPE.batch, sequences=sequences, micro_batch_sequences=sequences)
    return replace(RECIPE, model=model, batch=batch, numerics=numerics)


def measured(recipe: Recipe) -> tuple[int, int]:
    """Bytes that the cache of a layer holds, and the most that its passes hold at a time, with the cache."""
    model, bits = recipe.model, recipe.numerics.body_bits
    rng = np.random.default_rng(0)
    params = {s.name: rng.normal(0, 0.02, s.shape).astype(np.float32) for s in parameter_table(model)}
    matrices = {name: array for name, array in params.items() if array.ndim == 2}
    rows = {name: ops.weight_rows(array, bits) for name, array in matrices.items()}
    rows_t = {name: ops.weight_rows_t(array, bits) for name, array in matrices.items()}
    prepared = Prepared(params, rows, rows_t, ops.rope_table(model.context_length, model.head_dim, model.rope_theta))
    network = Network(prepared, recipe, ops, lambda name, _: network.grads.pop(name), exact=False)
    sequences = recipe.batch.micro_batch_sequences
    x = rng.normal(0, 1, (sequences * model.context_length, model.hidden_size)).astype(np.float32)
    tracemalloc.start()
    try:
        cache = network.layer_cache(x, layer_prefix(0), sequences)
        held = tracemalloc.get_traced_memory()[0]
        del cache
        held -= tracemalloc.get_traced_memory()[0]  # masks of what a query sees stay, for all layers
        network.layer_backward(x, layer_prefix(0), network.layer_cache(x, layer_prefix(0), sequences))
        return held, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "recipe",
    [
        pytest.param(wide((1, 1, 1024), 64, 8), id="one head of 1,024"),
        pytest.param(wide((2, 2, 512), 16, 32), id="short sequences, many groups at a time"),
        pytest.param(wide((128, 128, 2), 64, 8), id="many heads of 2"),
        pytest.param(wide((16, 4, 32), 256, 2), id="grouped heads, whose gradients are moved"),
        pytest.param(wide((32, 8, 16), 256, 2, window=8), id="a short window"),
        pytest.param(wide((32, 1, 16), 288, 1, FX21), id="a sum over queries that is not cut"),
        pytest.param(wide((8, 2, 64), 256, 2, F32_PRODUCT), id="the product f32"),
        pytest.param(wide((8, 2, 64), 128, 4), id="heads as they often are"),
    ],
)
def test_what_a_layer_needs_is_counted(recipe: Recipe) -> None:
    sizes = sizes_of(recipe, False)
    held, most = measured(recipe)
    gradient = 4 * sizes.matrix  # made by each product of the backward pass
    assert held <= sizes.cache
    assert 1 <= (sizes.cache + sizes.work(0) + gradient) / most < 1.5
