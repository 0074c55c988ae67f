"""The parameters of a model: names, shapes and kinds in their one order, and their initial values (SPEC.md section 6).

Names and shapes are those of the Llama and Qwen3 classes of the `transformers` library, so that a published state can
be loaded there: weight matrices are (out, in).
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from auditkit.formats.recipe import ModelConfig, Recipe
from auditkit.numerics.arrays import F32
from auditkit.numerics.normal import normal, normal_slice

Kind = Literal["embedding", "head", "matrix", "residual", "norm"]

EMBED = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class ParamSpec:
    """One parameter. Kind `residual` is a matrix that writes into the residual stream; `norm` has one axis."""

    name: str
    shape: tuple[int, ...]
    kind: Kind

    @property
    def decayed(self) -> bool:
        """Whether weight decay applies: to everything but the norm weights."""
        return self.kind != "norm"


def layer_prefix(layer: int) -> str:
    """The name prefix of one decoder layer."""
    return f"model.layers.{layer}."


@functools.cache
def parameter_table(model: ModelConfig) -> tuple[ParamSpec, ...]:
    """All parameters in the order of the forward pass."""
    width, vocab = model.hidden_size, model.vocab_size
    specs = [ParamSpec(EMBED, (vocab, width), "embedding")]
    for layer in range(model.num_layers):
        specs.extend(_layer(model, layer_prefix(layer)))
    specs.append(ParamSpec(FINAL_NORM, (width,), "norm"))
    if not model.tied_head:
        specs.append(ParamSpec(HEAD, (vocab, width), "head"))
    return tuple(specs)


def _layer(model: ModelConfig, prefix: str) -> Iterator[ParamSpec]:
    width, ffn, dim = model.hidden_size, model.ffn_size, model.head_dim
    queries, keys = model.num_heads * dim, model.num_kv_heads * dim
    yield ParamSpec(prefix + "input_layernorm.weight", (width,), "norm")
    yield ParamSpec(prefix + "self_attn.q_proj.weight", (queries, width), "matrix")
    yield ParamSpec(prefix + "self_attn.k_proj.weight", (keys, width), "matrix")
    yield ParamSpec(prefix + "self_attn.v_proj.weight", (keys, width), "matrix")
    if model.qk_norm:
        yield ParamSpec(prefix + "self_attn.q_norm.weight", (dim,), "norm")
        yield ParamSpec(prefix + "self_attn.k_norm.weight", (dim,), "norm")
    yield ParamSpec(prefix + "self_attn.o_proj.weight", (width, queries), "residual")
    yield ParamSpec(prefix + "post_attention_layernorm.weight", (width,), "norm")
    yield ParamSpec(prefix + "mlp.gate_proj.weight", (ffn, width), "matrix")
    yield ParamSpec(prefix + "mlp.up_proj.weight", (ffn, width), "matrix")
    yield ParamSpec(prefix + "mlp.down_proj.weight", (width, ffn), "residual")


def parameter_count(model: ModelConfig) -> int:
    """Number of trained scalars."""
    return sum(int(np.prod(spec.shape)) for spec in parameter_table(model))


def init_params(recipe: Recipe) -> dict[str, F32]:
    """Initial parameters from the seed alone: ones for norms, else normal with the recipe's std (float32 arrays by
    name).
    """
    return {spec.name: _init_param(spec, recipe) for spec in parameter_table(recipe.model)}


def init_slice(spec: ParamSpec, recipe: Recipe, start: int, stop: int) -> F32:
    """Elements start to stop - 1, in C order, of the initial values of a parameter."""
    if spec.kind == "norm":
        return np.ones(stop - start, np.float32)
    std = recipe.init.residual_std if spec.kind == "residual" else recipe.init.std
    return normal_slice(recipe.init.seed, spec.name, start, stop, np.float32(std))


def _init_param(spec: ParamSpec, recipe: Recipe) -> F32:
    if spec.kind == "norm":
        return np.ones(spec.shape, np.float32)
    std = recipe.init.residual_std if spec.kind == "residual" else recipe.init.std
    return normal(recipe.init.seed, spec.name, spec.shape, np.float32(std))
