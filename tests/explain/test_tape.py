"""Recording: no bit changes, every op that gives arrays is noted where it belongs, and the tape has an end."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from auditkit.errors import Unsupported
from auditkit.explain import tape as tape_module
from auditkit.explain.tape import _ARRAYS, _LISTS, _SCALARS, Tape, traced, traced_gradients
from auditkit.model.ops import Ops
from auditkit.model.params import parameter_table
from auditkit.model.state import document, initial_state
from auditkit.model.step import step
from auditkit.numerics import reference
from tests.golden.make_training import RECIPES, tokens_of

# No array of the specification comes out of these; what they give shows in the op that takes it.
OPAQUE = {
    "quantise", "quantise_t", "quantise_both", "quantise_keep", "kept_columns", "weight_rows", "weight_rows_t",
    "rope_table", "digests", "block_nodes", "TensorDigest", "read_digests", "check_finite", "largest", "place", "bring",
    "host", "join_sums",
}  # fmt: skip
# Noted as the ops that they are made of.
COMPOSED = {
    "merge_heads_keep", "merge_heads_both", "rms_norm_keep", "rms_norm_backward_add", "swiglu_keep",
    "swiglu_backward_both", "add_terms", "rope_heads",
}  # fmt: skip
# Only a step that is taken a layer at a time calls these, and a trace is of one that is not.
IN_PIECES = {
    "attention_again", "attention_heads", "attention_restored",
    "columns", "join_rows", "cross_entropy_rows", "cross_entropy_columns", "add_pieces",
    "rms_norm_rows", "swiglu_rows", "swiglu_columns", "cross_entropy_operand", "quantise_columns",
    "merge_heads_rows",
}  # fmt: skip


def record(recipe: Any) -> tuple[Any, Any, Tape]:
    """State and result of a recorded step, and its tape."""
    tape = Tape([spec.name for spec in parameter_table(recipe.model)])
    ops, tokens, start = traced(reference, tape), tokens_of(recipe, 0), initial_state(recipe)  # type: ignore[arg-type]
    run = traced_gradients(start, tokens[:, 1:].size, recipe, ops, tape)
    new, result = step(start, tokens, recipe, ops, gradients=run)
    return new, result, tape


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_a_recorded_step_has_the_bits_of_a_plain_one(name: str) -> None:
    recipe = RECIPES[name]
    plain, expected = step(initial_state(recipe), tokens_of(recipe, 0), recipe, reference)
    new, result, tape = record(recipe)
    assert document(new, recipe) == document(plain, recipe)
    assert dataclasses.asdict(result) == dataclasses.asdict(expected)
    assert {op.stage for op in tape.ops} == {"forward", "backward", "weights", "sum", "update"}


def test_every_op_is_noted_or_gives_no_array() -> None:
    methods = {name for name in vars(Ops) if not name.startswith("_")}
    assert methods == {*_ARRAYS, *_LISTS, *_SCALARS, *OPAQUE, *COMPOSED, *IN_PIECES}


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_ops_are_noted_where_they_belong(name: str) -> None:
    recipe = RECIPES[name]
    _, _, tape = record(recipe)
    weights = {spec.name for spec in parameter_table(recipe.model)}
    assert {op.place for op in tape.ops if op.op == "adamw"} == weights
    inside = [op for op in tape.ops if op.micro_batch is not None]
    assert {op.micro_batch for op in inside} == set(range(recipe.batch.micro_batches))
    products = {op.place for op in inside if op.op == "dot"}
    assert products == {spec.name for spec in parameter_table(recipe.model) if len(spec.shape) == 2} - (
        set() if recipe.model.tied_head else {"model.embed_tokens.weight"}
    )
    first = [op for op in inside if op.micro_batch == 0]
    forward = max(i for i, op in enumerate(first) if op.stage == "forward")
    assert all(op.stage == "forward" for op in first[: forward + 1])
    assert first[forward].op == "cross_entropy"


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_the_terms_of_each_weight_and_the_additions_to_totals_are_noted(name: str) -> None:
    recipe = RECIPES[name]
    _, _, tape = record(recipe)
    specs, count = parameter_table(recipe.model), recipe.batch.micro_batches
    noted = [(op.micro_batch, op.place) for op in tape.ops if op.op == "to_fixed"]
    assert sorted(noted) == sorted(
        (number, spec.name)
        for number in range(count)
        for spec in specs
        if len(spec.shape) == 2 and (recipe.model.tied_head or spec.name != "model.embed_tokens.weight")
    )
    added = [op.place for op in tape.ops if op.op == "add_sums"]
    assert added == ([] if recipe.numerics.fold else [spec.name for spec in specs] * (count - 1))


@pytest.mark.parametrize("name", sorted(RECIPES))
def test_gradients_that_meet_are_added_where_they_come_from(name: str) -> None:
    """Also where a back end adds them while it differentiates a norm: traces stay comparable."""
    recipe = RECIPES[name]
    _, _, tape = record(recipe)
    noted = [op.place for op in tape.ops if op.micro_batch == 0 and op.stage == "backward" and op.op == "add"]
    layers = [f"model.layers.{layer}" for layer in reversed(range(recipe.model.num_layers))]
    parts = (".mlp", "", ".self_attn", ".self_attn", "")  # gate and up, residual; q, k and v, residual
    assert noted == [layer + part for layer in layers for part in parts]
    norms = [op.place for op in tape.ops if op.micro_batch == 0 and op.op == "rms_norm_backward"]
    assert {f"{layer}.{half}_layernorm.weight" for layer in layers for half in ("input", "post_attention")} < set(norms)


def test_the_outputs_of_one_op_can_be_kept() -> None:
    recipe = RECIPES[min(RECIPES)]
    tape = Tape([spec.name for spec in parameter_table(recipe.model)], keep=0)
    ops, tokens, start = traced(reference, tape), tokens_of(recipe, 0), initial_state(recipe)  # type: ignore[arg-type]
    traced_gradients(start, 1, recipe, ops, tape)(tokens[:1])
    assert np.array_equal(tape.kept[0], start.params["model.embed_tokens.weight"][tokens[0, :-1]])


def test_a_tape_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tape_module, "LIMITS", replace(tape_module.LIMITS, trace_ops=10))
    with pytest.raises(Unsupported, match="more than 10 ops"):
        record(RECIPES[min(RECIPES)])
