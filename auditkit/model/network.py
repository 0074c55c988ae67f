"""The decoder, forward and backward by hand (SPEC.md section 15): pre-norm, grouped attention, SwiGLU, residual stream.

Forward hands back its caches, backward takes them: no autograd and no hidden state. Gradients are exact int64 sums in
units 2^-56; those of matrices, products that are rounded to that unit once, may leave as the float32 that they are made
of. Every matrix product is an exact dot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from auditkit.formats.recipe import Recipe
from auditkit.model.kept_results import ATTENTION, GATE, HEADS, MID, UP, KeptResults
from auditkit.model.ops import Ops
from auditkit.model.params import EMBED, FINAL_NORM, HEAD, layer_prefix, parameter_table
from auditkit.numerics.arrays import F32, I64, IntArray
from auditkit.numerics.exact_sum import GRADIENT_UNIT

Grads = dict[str, Any]  # I64, or F32 where the terms of a sum are not made yet: one element, one term
OnGradient = Callable[[str, Any], None]  # told the name and the sums of each weight once they are final


@dataclass(frozen=True)
class Prepared:
    """Parameters and their fixed-point rows in both directions: made once a step, read by all its micro-batches; with a
    plan for little memory, made when they are asked for.
    """

    params: Mapping[str, F32]
    rows: Mapping[str, Any]  # weight (out, in): rows over `in`, for forward
    rows_t: Mapping[str, Any]  # transpose (in, out): rows over `out`, for the gradient of the input
    rope: Any


def weight_bits(recipe: Recipe) -> dict[str, int]:
    """The bits that every weight of a product is rounded to, by name."""
    model, numerics = recipe.model, recipe.numerics
    head = EMBED if model.tied_head else HEAD
    matrices = [s.name for s in parameter_table(model) if s.kind in ("matrix", "residual") or s.name == head]
    return {name: numerics.head_bits if name == head else numerics.body_bits for name in matrices}


def prepare(params: Mapping[str, F32], recipe: Recipe, ops: Ops) -> Prepared:
    """Round every weight matrix to fixed point, by rows and by columns. params: float32 arrays by name."""
    model, rows, rows_t = recipe.model, {}, {}
    for name, bits in weight_bits(recipe).items():
        rows[name], kept = ops.quantise_keep(params[name], bits)
        rows_t[name] = ops.kept_columns(kept, bits)
    return Prepared(params, rows, rows_t, ops.rope_table(model.context_length, model.head_dim, model.rope_theta))


class Network:
    """One micro-batch through the decoder: B sequences of T tokens, N = B * T rows of C features."""

    def __init__(
        self,
        prepared: Prepared,
        recipe: Recipe,
        ops: Ops,
        on_gradient: OnGradient = lambda name, sums: None,
        key_heads: int = 0,
        kept: KeptResults | None = None,
        exact: bool = True,
        runs_again: bool = False,
    ) -> None:
        """key_heads: how many of them an attention works on at a time, 0 for all; changes no bit.
        kept: takes results of the layer that is run, or has those of an earlier run, which are not made again.
        exact: all gradients are to be int64; else those of matrices stay float32, for `ops.add_terms`.
        runs_again: the cache of a layer is of no use, since the layer will be run again: it lacks columns of operands.
        """
        self.exact, self.runs_again = exact, runs_again
        self.key_heads, self.results = key_heads, kept or KeptResults()
        self.prepared, self.recipe, self.ops, self.on_gradient = prepared, recipe, ops, on_gradient
        self.model, self.bits = recipe.model, recipe.numerics.body_bits
        self.eps = np.float32(recipe.model.norm_eps)
        self.grads: Grads = {}

    def gradient(self, inputs: IntArray, targets: IntArray, total_targets: int) -> tuple[Grads, I64]:
        """Exact gradient sums and loss sum (units 2^-32) of inputs and targets (B, T). Raises NonFinite."""
        params, ops = self.prepared.params, self.ops
        batch = inputs.shape[0]
        x = ops.embedding_forward(inputs.reshape(-1), params[EMBED])  # (N, C)
        caches = []
        for layer in range(self.model.num_layers):
            x, cache = self.layer_forward(x, layer_prefix(layer), batch)
            caches.append(cache)
        loss_sum, dx = self._head(x, targets.reshape(-1), total_targets)
        for layer in reversed(range(self.model.num_layers)):
            dx = self.layer_backward(dx, layer_prefix(layer), caches.pop())
        head = self.grads.get(EMBED)  # of a tied table
        self.grads[EMBED] = ops.embedding_backward(dx, inputs.reshape(-1), self.model.vocab_size, head)
        self.on_gradient(EMBED, self.grads[EMBED])
        return self.grads, loss_sum

    def _head(self, x: F32, targets: IntArray, total_targets: int) -> tuple[I64, F32]:
        """Final norm, logits, loss, and back to the gradient of x (N, C)."""
        ops, bits = self.ops, self.recipe.numerics.head_bits
        weight = EMBED if self.model.tied_head else HEAD
        rows, kept, norm_cache = self.norm_keep(x, FINAL_NORM, bits)
        logits = ops.dot(rows, self.prepared.rows[weight])  # (N, V)
        del rows
        z_loss = np.float32(self.recipe.loss.z_loss)
        loss_sum, dlogits = ops.cross_entropy(logits, targets, z_loss, total_targets)
        rows, columns = ops.quantise_both(dlogits, bits)
        dy = ops.dot(rows, self.prepared.rows_t[weight])  # (N, C)
        self._weight_gradient(weight, columns, ops.kept_columns(kept, bits))
        return loss_sum, self.norm_backward(dy, FINAL_NORM, norm_cache)

    def layer_forward(self, x: F32, prefix: str, batch: int) -> tuple[F32, Any]:
        """x (N, C) -> (N, C): x + attention(norm(x)), then x + mlp(norm(x)); and the cache for `layer_backward`."""
        x, gate, up, kept, caches = self._until_swiglu(x, prefix, batch)
        rows, mlp = self._mlp_inner(gate, up, kept, prefix + "mlp.")
        del gate, up, kept  # before the product needs memory
        return self.ops.add(x, self.ops.dot(rows, self.prepared.rows[prefix + "mlp.down_proj.weight"])), (*caches, mlp)

    def layer_cache(self, x: F32, prefix: str, batch: int) -> Any:
        """The cache of `layer_forward`, without its last product and the rows that enter it."""
        _, gate, up, kept, caches = self._until_swiglu(x, prefix, batch)
        return (*caches, (kept, *self.ops.swiglu_columns(gate, up, self.bits)))

    def _until_swiglu(self, x: F32, prefix: str, batch: int) -> tuple[F32, F32, F32, Any, tuple[Any, ...]]:
        """x after the attention; gate and up (N, F), and what is kept of the rows that gave them; the caches so far."""
        rows, kept, norm1 = self.norm_keep(x, prefix + "input_layernorm.weight", self.bits)
        attended, attention = self._attention_forward(rows, kept, prefix + "self_attn.", batch)
        (mid,) = self.results.made(MID, lambda: [self._projected(x, attended, prefix)])
        rows, kept, norm2 = self.norm_keep(mid, prefix + "post_attention_layernorm.weight", self.bits)
        gate, up = self._gate_and_up(rows, prefix + "mlp.")
        return mid, gate, up, kept, (norm1, attention, norm2)

    def _projected(self, x: F32, attended: Any, prefix: str) -> F32:
        """x (N, C) and the output projection of the rows of an attention's output (N, H * D)."""
        return self.ops.add(x, self.ops.dot(attended, self.prepared.rows[prefix + "self_attn.o_proj.weight"]))

    def layer_backward(self, dx: F32, prefix: str, cache: Any) -> F32:
        """The gradient of a layer's input (N, C) from that of its output, and those of its weights."""
        norm1, attention, norm2, mlp = cache
        dhs = self._mlp_backward(dx, prefix + "mlp.", mlp)
        dx = self.norm_backward_add(dhs, prefix + "post_attention_layernorm.weight", norm2, dx)
        del dhs  # before the attention needs memory
        dhs = self._attention_backward(dx, prefix + "self_attn.", attention)
        return self.norm_backward_add(dhs, prefix + "input_layernorm.weight", norm1, dx)

    def _attention_forward(self, rows: Any, kept: Any, prefix: str, batch: int) -> tuple[F32, Any]:
        """Rows of the normed input (N, C), and what is kept of it -> rows of the attention's output (N, H * D)."""
        ops, heads, keys = self.ops, self.model.num_heads, self.model.num_kv_heads
        if self.results.get(ATTENTION) is not None and self.results.get(HEADS) is not None:
            q_norm, k_norm = (self._normed(rows, prefix + name)[1] for name in "qk")
            out, cache = self._attended(batch)
        else:
            q, q_norm = self._heads(rows, prefix + "q", batch, heads)
            k, k_norm = self._heads(rows, prefix + "k", batch, keys)
            out, cache = self._attend(q, k, ops.split_heads(self._projection(rows, prefix + "v"), batch, keys))
        if self.runs_again:
            return ops.merge_heads_rows(out, self.bits), None
        merged_rows, merged = ops.merge_heads_keep(out, self.bits)  # (N, H * D)
        return merged_rows, (kept, q_norm, k_norm, cache, merged, batch)

    def _projection(self, rows: Any, prefix: str) -> F32:
        """To queries, keys or values, (N, heads * D)."""
        return self.ops.dot(rows, self.prepared.rows[prefix + "_proj.weight"])

    def _heads(self, rows: Any, prefix: str, batch: int, heads: int) -> tuple[F32, Any]:
        """Projection, optional QK-norm over each head, rotation: -> (B, heads, T, D); the norm's cache."""
        x, cache = self._normed(rows, prefix)
        if x is None:
            x = self._projection(rows, prefix)
        return self.ops.rope_heads(x, batch, heads, self.prepared.rope), cache

    def _normed(self, rows: Any, prefix: str) -> tuple[F32 | None, Any]:
        """Projection and QK-norm over each head, (N, heads * D), and its cache; None for a model without."""
        if not self.model.qk_norm:
            return None, None
        x = self._projection(rows, prefix)
        flat, cache = self.norm(x.reshape(-1, self.model.head_dim), prefix + "_norm.weight")
        return flat.reshape(x.shape), cache

    def _heads_backward(self, dx: F32, prefix: str, cache: Any) -> tuple[Any, Any]:
        """Gradient of a rotated head (B, heads, T, D) -> rows and columns of the projection's (N, heads * D)."""
        dx = self.ops.rope_backward(dx, self.prepared.rope)
        if not self.model.qk_norm:
            return self.ops.merge_heads_both(dx, self.bits)
        dx = self.ops.merge_heads(dx)
        shape = dx.shape
        dx = self.norm_backward(dx.reshape(-1, self.model.head_dim), prefix + "_norm.weight", cache).reshape(shape)
        return self.ops.quantise_both(dx, self.bits)

    def _attention_backward(self, dy: F32, prefix: str, cache: Any) -> list[F32]:
        """Gradient of the attention's output -> gradients of its input (N, C), to be added in this order."""
        kept, q_norm, k_norm, attention, merged, batch = cache
        ops = self.ops
        dmerged = self._linear_backward(dy, prefix + "o_proj.weight", ops.kept_columns(merged, self.bits))
        dq, dk, dv = self._attend_backward(ops.split_heads(dmerged, batch, self.model.num_heads), attention)
        columns = ops.kept_columns(kept, self.bits)
        dh_q = self._product_backward(self._heads_backward(dq, prefix + "q", q_norm), prefix + "q_proj.weight", columns)
        dh_k = self._product_backward(self._heads_backward(dk, prefix + "k", k_norm), prefix + "k_proj.weight", columns)
        dh_v = self._product_backward(ops.merge_heads_both(dv, self.bits), prefix + "v_proj.weight", columns)
        return [dh_q, dh_k, dh_v]

    def _parts(self, batch: int) -> list[tuple[slice, slice, slice]]:
        """Cuts of (B, heads, ..) into sequences and key heads with their query heads: (sequences, queries, keys)."""
        groups, share = self.model.num_kv_heads, self.model.num_heads // self.model.num_kv_heads
        if not self.key_heads:
            return [(slice(None), slice(None), slice(None))]
        starts = range(0, groups, self.key_heads)
        cuts = [(start, min(groups, start + self.key_heads)) for start in starts]
        return [(slice(b, b + 1), slice(s * share, e * share), slice(s, e)) for b in range(batch) for s, e in cuts]

    def _attend(self, q: F32, k: F32, v: F32) -> tuple[F32, Any]:
        """Attention of q (B, H, T, D), k and v (B, G, T, D): key heads do not meet, so it may be cut between them."""
        window, bits = self.model.sliding_window, self.bits
        held, found, heads = self.results.get(ATTENTION), [], list[Any]()
        for number, (at, queries, keys) in enumerate(self._parts(q.shape[0])):
            part = q[at, queries], k[at, keys], v[at, keys]
            if held is None:
                found.append(self.ops.attention_forward(*part, window=window, bits=bits))
            else:
                kept = held[3 * number : 3 * number + 3]
                found.append(self.ops.attention_again(*part, kept, window=window, bits=bits))
            heads += self.ops.attention_heads(*part, found[-1][1])
        noted = [array for _, cache in found for array in (cache.out, cache.row_max, cache.row_sum)]
        self.results.note(ATTENTION, noted)
        self.results.note(HEADS, heads)
        return self._joined([out for out, _ in found], q.shape), [cache for _, cache in found]

    def _attended(self, batch: int) -> tuple[F32, Any]:
        """What `_attend` gave, from what was kept of it."""
        model, held, heads = self.model, self.results.get(ATTENTION) or [], self.results.get(HEADS) or []
        parts, found, tokens = self._parts(batch), list[Any](), 0
        each = len(heads) // len(parts)
        for number, cuts in enumerate(parts):
            of_part, kept = heads[each * number : each * (number + 1)], held[3 * number : 3 * number + 3]
            whole = batch, model.num_heads, model.num_kv_heads
            sequences, queries, keys = (len(range(size)[cut]) for size, cut in zip(whole, cuts, strict=True))
            tokens = int(kept[1].size) // (sequences * queries)
            shape = sequences, queries, tokens, model.head_dim
            options = {"window": model.sliding_window, "bits": self.bits}
            found.append(self.ops.attention_restored(of_part, kept, shape, keys, **options))
        shape = batch, model.num_heads, tokens, model.head_dim
        return self._joined([out for out, _ in found], shape), [cache for _, cache in found]

    def _attend_backward(self, dout: F32, caches: list[Any]) -> tuple[F32, F32, F32]:
        found = []
        for at, queries, _ in self._parts(dout.shape[0]):
            found.append(self.ops.attention_backward(dout[at, queries], caches.pop(0)))
        batch, _, tokens, dim = dout.shape
        keys = (batch, self.model.num_kv_heads, tokens, dim)
        dq, dk, dv = zip(*found, strict=True)
        return self._joined(dq, dout.shape), self._joined(dk, keys), self._joined(dv, keys)

    def _joined(self, parts: Sequence[F32], shape: tuple[int, ...]) -> F32:
        """Parts (b, heads, T, D) in the order of `_parts` -> an array of `shape`."""
        if len(parts) == 1:
            return parts[0]
        joined: F32 = self.ops.join_rows([part.reshape(-1, shape[-1]) for part in parts]).reshape(shape)
        return joined

    def _gate_and_up(self, rows: Any, prefix: str) -> tuple[F32, F32]:
        """Rows of the normed input (N, C) -> what enters the SwiGLU, (N, F) each."""
        made, ops, weights = self.results.made, self.ops, self.prepared.rows
        (gate,) = made(GATE, lambda: [ops.dot(rows, weights[prefix + "gate_proj.weight"])])
        (up,) = made(UP, lambda: [ops.dot(rows, weights[prefix + "up_proj.weight"])])
        return gate, up

    def _mlp_inner(self, gate: F32, up: F32, kept: Any, prefix: str) -> tuple[Any, Any]:
        """The rows of the last product's operand (N, F), and the cache."""
        if self.runs_again:
            return self.ops.swiglu_rows(gate, up, self.bits), None
        rows, y, cache = self.ops.swiglu_keep(gate, up, self.bits)
        return rows, (kept, y, cache)

    def _mlp_backward(self, dout: F32, prefix: str, cache: Any) -> list[F32]:
        """As `_attention_backward`."""
        kept, y, swiglu = cache
        dy = self._linear_backward(dout, prefix + "down_proj.weight", self.ops.kept_columns(y, self.bits))
        dgate, dup = self.ops.swiglu_backward_both(dy, swiglu, self.bits)
        del dy
        columns = self.ops.kept_columns(kept, self.bits)
        dh_gate = self._product_backward(dgate, prefix + "gate_proj.weight", columns)
        return [dh_gate, self._product_backward(dup, prefix + "up_proj.weight", columns)]

    def _linear_backward(self, dy: F32, weight: str, x_columns: Any) -> F32:
        """dy (N, O) -> dx (N, I); adds the weight's gradient. x_columns: fixed-point columns of the input (N, I)."""
        return self._product_backward(self.ops.quantise_both(dy, self.bits), weight, x_columns)

    def _product_backward(self, dy: tuple[Any, Any], weight: str, x_columns: Any) -> F32:
        """`_linear_backward` of the rows and columns of dy."""
        rows, columns = dy
        self._weight_gradient(weight, columns, x_columns)
        return self.ops.dot(rows, self.prepared.rows_t[weight])

    def _weight_gradient(self, weight: str, dy_columns: Any, x_columns: Any) -> None:
        product = self.ops.dot(dy_columns, x_columns)
        exact = self.exact or weight == EMBED  # a tied table has a second gradient, which is added to the first
        self._add(weight, self.ops.to_fixed(product, GRADIENT_UNIT) if exact else product)

    def norm(self, x: F32, weight: str) -> tuple[F32, Any]:
        """RMSNorm of rows by a named weight, and its cache."""
        return self.ops.rms_norm_forward(x, self.prepared.params[weight], self.eps)

    def norm_keep(self, x: F32, weight: str, bits: int) -> tuple[Any, Any, Any]:
        """`norm` for products of so many bits: rows of the result, what is kept for its columns, and the cache."""
        if self.runs_again:
            return self.ops.rms_norm_rows(x, self.prepared.params[weight], self.eps, bits), None, None
        return self.ops.rms_norm_keep(x, self.prepared.params[weight], self.eps, bits)

    def norm_backward(self, dy: F32, weight: str, cache: Any) -> F32:
        """The gradient of the rows; adds the weight's gradient."""
        dx, dweight = self.ops.rms_norm_backward(dy, self.prepared.params[weight], cache)
        self._add(weight, dweight)
        return dx

    def norm_backward_add(self, dys: Sequence[F32], weight: str, cache: Any, residual: F32) -> F32:
        """`residual` and the gradient of the rows, of the sum of `dys`; adds the weight's gradient."""
        dx, dweight = self.ops.rms_norm_backward_add(dys, self.prepared.params[weight], cache, residual)
        self._add(weight, dweight)
        return dx

    def _add(self, name: str, terms: F32 | I64) -> None:
        self.grads[name] = terms
        if name != EMBED:  # a tied table is final after its second gradient; every other weight has one
            self.on_gradient(name, self.grads[name])
