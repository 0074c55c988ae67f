"""The decoder of `auditkit/model/network.py` as a PyTorch user would write it: eager, autograd, float32 by default.

Independent of auditkit's arithmetic: only names, shapes and the recipe are shared. Parameters are leaf tensors by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own usage
from torch import Tensor

from auditkit.formats.recipe import ModelConfig, Recipe
from auditkit.model.params import EMBED, FINAL_NORM, HEAD, layer_prefix, parameter_table

Params = dict[str, Tensor]
Tables = tuple[Tensor, Tensor]


def parameters(arrays: Mapping[str, np.ndarray], dtype: torch.dtype = torch.float32) -> Params:
    """Leaf tensors with gradients from arrays by name."""
    return {name: torch.tensor(array, dtype=dtype).requires_grad_() for name, array in arrays.items()}


def loss(params: Params, tokens: Tensor, recipe: Recipe, tables: Tables | None = None) -> Tensor:
    """Mean loss of windows (B, T + 1), z-loss included. tables: as `rope_table` made them before."""
    logits = decoder(params, tokens[:, :-1], recipe.model, tables)  # (B, T, V)
    return mean_loss(logits.flatten(0, 1), tokens[:, 1:].flatten(), recipe)


def mean_loss(logits: Tensor, targets: Tensor, recipe: Recipe) -> Tensor:
    """Mean loss of logits (N, V) against targets (N,), z-loss included."""
    if logits.dtype == torch.bfloat16:
        logits = logits.float()
    found = F.cross_entropy(logits, targets)
    if recipe.loss.z_loss:
        found = found + recipe.loss.z_loss * logits.logsumexp(-1).square().mean()
    return found


def decoder(params: Params, inputs: Tensor, model: ModelConfig, tables: Tables | None = None) -> Tensor:
    """Tokens (B, T) -> logits (B, T, V)."""
    x = F.embedding(inputs, params[EMBED])
    cos, sin = (table.to(x) for table in tables or rope_table(inputs.shape[1], model))
    mask = window_mask(inputs.shape[1], model.sliding_window)
    mask = None if mask is None else mask.to(x.device)
    for weights in layers(params, model):
        x = block(weights, x, model, cos, sin, mask)
    x = norm(x, params[FINAL_NORM], model)
    return F.linear(x, params[EMBED if model.tied_head else HEAD])


def layers(params: Params, model: ModelConfig) -> list[Params]:
    """The weights of each layer, by their names within it."""
    prefixes = [layer_prefix(layer) for layer in range(model.num_layers)]
    return [{n.removeprefix(at): p for n, p in params.items() if n.startswith(at)} for at in prefixes]


def block(
    weights: Params, x: Tensor, model: ModelConfig, cos: Tensor, sin: Tensor, mask: Tensor | None = None
) -> Tensor:
    """One layer: (B, T, C) -> (B, T, C)."""
    h = norm(x, weights["input_layernorm.weight"], model)
    x = x + attention(weights, "self_attn.", h, model, cos, sin, mask)
    h = norm(x, weights["post_attention_layernorm.weight"], model)
    gate = F.silu(F.linear(h, weights["mlp.gate_proj.weight"]))
    up = F.linear(h, weights["mlp.up_proj.weight"])
    return x + F.linear(gate * up, weights["mlp.down_proj.weight"])


def norm(x: Tensor, weight: Tensor, model: ModelConfig) -> Tensor:
    """RMSNorm over the last axis."""
    return F.rms_norm(x, (x.shape[-1],), weight, model.norm_eps)


def attention(
    params: Params, prefix: str, h: Tensor, model: ModelConfig, cos: Tensor, sin: Tensor, mask: Tensor | None
) -> Tensor:
    """Grouped causal attention with its projections: (B, T, C) -> (B, T, C)."""
    batch, length, _ = h.shape
    heads = {}
    for kind, count in (("q", model.num_heads), ("k", model.num_kv_heads), ("v", model.num_kv_heads)):
        x = F.linear(h, params[f"{prefix}{kind}_proj.weight"]).view(batch, length, count, model.head_dim)
        if kind != "v" and model.qk_norm:
            x = norm(x, params[f"{prefix}{kind}_norm.weight"], model)
        x = x.transpose(1, 2)  # (B, heads, T, D)
        heads[kind] = x if kind == "v" else rotate(x, cos, sin)
    grouped = model.num_heads != model.num_kv_heads
    if grouped and h.is_cuda and heads["q"].dtype == torch.float32:  # only without groups is there a fast kernel
        share, grouped = model.num_heads // model.num_kv_heads, False
        heads |= {kind: heads[kind].repeat_interleave(share, dim=1) for kind in ("k", "v")}
    out = F.scaled_dot_product_attention(
        heads["q"], heads["k"], heads["v"], attn_mask=mask, is_causal=mask is None, enable_gqa=grouped
    )
    return F.linear(out.transpose(1, 2).flatten(2), params[prefix + "o_proj.weight"])


def rope_table(length: int, model: ModelConfig) -> Tables:
    """cos and sin, each (T, D/2) float64, half-split layout."""
    pairs = model.head_dim // 2
    frequency = torch.exp(-torch.arange(pairs, dtype=torch.float64) * 2 / model.head_dim * math.log(model.rope_theta))
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (x[i], x[i + D/2]) of the last axis."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def window_mask(length: int, window: int) -> Tensor | None:
    """What each query sees, (T, T) booleans, with a sliding window; None for plain causal attention."""
    if not window:
        return None
    ahead = torch.arange(length)[:, None] - torch.arange(length)[None, :]
    return (ahead >= 0) & (ahead < window)


def optimizer(params: Params, recipe: Recipe, *, fused: bool | None = None) -> torch.optim.AdamW:
    """AdamW with the recipe's constants; norm weights are not decayed. fused: None for torch's default."""
    decayed = {spec.name for spec in parameter_table(recipe.model) if spec.decayed}
    groups = [
        {"params": [p for name, p in params.items() if name in decayed], "weight_decay": recipe.optimizer.weight_decay},
        {"params": [p for name, p in params.items() if name not in decayed], "weight_decay": 0.0},
    ]
    betas = (recipe.optimizer.beta1, recipe.optimizer.beta2)
    return torch.optim.AdamW(groups, lr=recipe.schedule.peak_lr, betas=betas, eps=recipe.optimizer.eps, fused=fused)


def train_step(params: Params, adamw: torch.optim.AdamW, tokens: Tensor, recipe: Recipe, lr: float) -> float:
    """One training step on windows (S, T + 1) in the recipe's micro-batches; returns the mean loss."""
    total = 0.0
    for part in tokens.split(recipe.batch.micro_batch_sequences):
        share = loss(params, part, recipe) * (part.shape[0] / tokens.shape[0])
        share.backward()
        total += float(share.detach())
    if recipe.optimizer.clip_norm:
        torch.nn.utils.clip_grad_norm_(list(params.values()), recipe.optimizer.clip_norm)
    for group in adamw.param_groups:
        group["lr"] = lr
    adamw.step()
    adamw.zero_grad(set_to_none=True)
    return total
