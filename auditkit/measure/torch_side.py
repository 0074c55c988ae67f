"""A training step of the same model by PyTorch, timed in a process of its own: `python -m auditkit.measure.torch_side`.

The verifier never imports this module: it runs it, and reads one JSON object. Nothing here is compared bit for bit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own usage

from auditkit.formats.recipe import Recipe
from auditkit.measure import torch_model
from auditkit.measure.models import recipe_of
from auditkit.model.params import EMBED, FINAL_NORM, HEAD, parameter_table

# What a kind computes in: weights of the products, and whether autocast chooses per operation.
KINDS = {
    "float32": (torch.float32, False),
    "bfloat16": (torch.bfloat16, False),
    "autocast": (torch.float32, True),
}
SAID = {
    "float32": "float32 throughout, no TF32",
    "bfloat16": "bfloat16 weights, gradient sums and AdamW in float32",
    "autocast": "bfloat16 autocast over float32 weights",
}
COMPILED = ("whole", "layer", "off")
IN_A_ROW = 4  # calls


@dataclass
class Side:
    """A model in training. `sums` and `masters` are float32; where the weights are too, they are these themselves."""

    recipe: Recipe
    weights: torch_model.Params
    masters: torch_model.Params
    adamw: Any
    loss: Callable[..., Any]
    autocast: bool
    device: torch.device

    def micro_batch(self, tokens: Any, share: float) -> None:
        """Forward and backward of tokens (s, T + 1); the gradient is added to that of the step."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            found = self.loss(self.weights, tokens) * share
        found.backward()
        if self.weights is not self.masters:
            self._add()

    def _add(self) -> None:
        """The gradients of bfloat16 weights into float32 sums."""
        names = list(self.weights)
        for name in names:
            if self.masters[name].grad is None:
                self.masters[name].grad = torch.zeros_like(self.masters[name])
        found = [self.weights[name].grad for name in names]
        torch._foreach_add_([self.masters[name].grad for name in names], found)
        for name in names:
            self.weights[name].grad = None

    def update(self) -> None:
        """Clip, take the AdamW step, round the weights again."""
        if self.recipe.optimizer.clip_norm:
            torch.nn.utils.clip_grad_norm_(list(self.masters.values()), self.recipe.optimizer.clip_norm)
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        if self.weights is not self.masters:
            with torch.no_grad():
                torch._foreach_copy_(list(self.weights.values()), list(self.masters.values()))


def make(recipe: Recipe, kind: str, compiled: str, device: torch.device) -> Side:
    """A side with random weights of the recipe's size."""
    dtype, autocast = KINDS[kind]
    masters = {}
    for spec in parameter_table(recipe.model):
        values = torch.ones(spec.shape, device=device)
        if spec.kind != "norm":
            values.normal_(std=recipe.init.residual_std if spec.kind == "residual" else recipe.init.std)
        masters[spec.name] = values.requires_grad_()
    weights = masters
    if dtype != torch.float32:
        weights = {name: p.detach().to(dtype).requires_grad_() for name, p in masters.items()}
    adamw = torch_model.optimizer(masters, recipe, fused=True if device.type == "cuda" else None)
    return Side(recipe, weights, masters, adamw, loss_of(recipe, compiled, device), autocast, device)


def loss_of(recipe: Recipe, compiled: str, device: torch.device) -> Callable[..., Any]:
    """The mean loss of tokens (s, T + 1) under weights, compiled as a whole, layer by layer, or not."""
    model = recipe.model
    cos, sin = (table.to(device, torch.float32) for table in torch_model.rope_table(model.context_length, model))

    def whole(weights: torch_model.Params, tokens: Any) -> Any:
        return torch_model.loss(weights, tokens, recipe, (cos, sin))

    if compiled != "layer":
        return torch.compile(whole) if compiled == "whole" else whole
    block, head = torch.compile(torch_model.block), torch.compile(_head)

    def loss(weights: torch_model.Params, tokens: Any) -> Any:
        x = F.embedding(tokens[:, :-1], weights[EMBED])
        turns = cos.to(x.dtype), sin.to(x.dtype)
        for layer in torch_model.layers(weights, model):
            x = block(layer, x, model, *turns)
        return head(x, weights[FINAL_NORM], weights[EMBED if model.tied_head else HEAD], tokens[:, 1:], recipe)

    return loss


def _head(x: Any, norm: Any, head: Any, targets: Any, recipe: Recipe) -> Any:
    """The mean loss of hidden states (s, T, C)."""
    logits = F.linear(torch_model.norm(x, norm, recipe.model), head).flatten(0, 1)
    return torch_model.mean_loss(logits, targets.flatten(), recipe)


def seconds(call: Callable[[], None], device: torch.device, repeats: int) -> float:
    """Median seconds of a call; on a card of a few in a row, so that their launches hide behind what runs."""
    found, row = [], IN_A_ROW if device.type == "cuda" else 1
    for _ in range(repeats):
        _wait(device)
        began = time.perf_counter()
        for _ in range(row):
            call()
        _wait(device)
        found.append((time.perf_counter() - began) / row)
    return statistics.median(found)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(recipe: Recipe, kind: str, compiled: str, device: torch.device, repeats: int) -> dict[str, object]:
    """Seconds of a micro-batch and of an update, after two of each that are not counted."""
    torch.manual_seed(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    side, batch = make(recipe, kind, compiled, device), recipe.batch
    shape = (batch.micro_batch_sequences, recipe.model.context_length + 1)
    tokens = torch.randint(recipe.model.vocab_size, shape, device=device)
    step = partial(side.micro_batch, tokens, shape[0] / batch.sequences)
    began = time.perf_counter()
    for _ in range(2):
        step()
        side.update()
    _wait(device)
    warm = time.perf_counter() - began
    micro = seconds(step, device, repeats)
    return {
        "kind": kind,
        "said": f"{SAID[kind]}, torch.compile {compiled}",
        "torch": torch.__version__,
        "micro_batch": micro,
        "update": seconds(partial(_update, side, step), device, 3) - micro,
        "warm_up": warm,
        "peak_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }


def _update(side: Side, step: Callable[[], None]) -> None:
    step()
    side.update()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print one JSON object; errors go to stderr as Python tells them."""
    parser = argparse.ArgumentParser(prog="python -m auditkit.measure.torch_side", description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--kind", choices=list(KINDS), required=True)
    parser.add_argument("--compile", choices=COMPILED, default="whole", dest="compiled")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args(arguments)
    if asked.threads:
        torch.set_num_threads(asked.threads)
    recipe = recipe_of(asked.model, asked.micro_batch)
    found = measure(recipe, asked.kind, asked.compiled, torch.device(asked.device), asked.repeats)
    sys.stdout.write(json.dumps(found) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
