"""Names, shapes, order and initial values of the parameters."""

from __future__ import annotations

import dataclasses

import numpy as np

from auditkit.model.params import init_params, parameter_count, parameter_table
from auditkit.numerics.normal import normal
from tests.golden.make_training import RECIPES
from tests.same_bits import assert_same_bits

RECIPE = RECIPES["tied head, grouped heads, window, QK-norm, z-loss, clip, cosine"]


def test_names_and_shapes_are_those_of_the_llama_classes() -> None:
    table = {spec.name: spec for spec in parameter_table(RECIPE.model)}
    assert len(table) == 1 + 2 * 11 + 1
    assert table["model.embed_tokens.weight"].shape == (61, 12)
    assert table["model.layers.1.self_attn.k_proj.weight"].shape == (8, 12)
    assert table["model.layers.0.self_attn.q_norm.weight"].shape == (4,)
    assert table["model.layers.0.mlp.down_proj.weight"].shape == (12, 20)
    assert next(iter(table)) == "model.embed_tokens.weight" and list(table)[-1] == "model.norm.weight"
    untied = dataclasses.replace(RECIPE.model, tied_head=False, qk_norm=False)
    names = [spec.name for spec in parameter_table(untied)]
    assert names[-1] == "lm_head.weight" and not any("q_norm" in name for name in names)


def test_count() -> None:
    assert parameter_count(RECIPE.model) == sum(array.size for array in init_params(RECIPE).values())


def test_only_norms_do_not_decay() -> None:
    for spec in parameter_table(RECIPE.model):
        assert spec.decayed == (len(spec.shape) == 2), spec.name


def test_initial_values_follow_from_seed_and_name() -> None:
    params = init_params(RECIPE)
    seed, std = RECIPE.init.seed, np.float32(RECIPE.init.std)
    assert_same_bits(params["model.embed_tokens.weight"], normal(seed, "model.embed_tokens.weight", (61, 12), std))
    name = "model.layers.0.self_attn.o_proj.weight"
    assert_same_bits(params[name], normal(seed, name, (12, 16), np.float32(RECIPE.init.residual_std)))
    assert_same_bits(params["model.norm.weight"], np.ones(12, np.float32))
    other = init_params(dataclasses.replace(RECIPE, init=dataclasses.replace(RECIPE.init, seed=seed + 1)))
    assert (other["model.embed_tokens.weight"] != params["model.embed_tokens.weight"]).any()
