"""Steps under a plan on a device: the reference's bits, with states on the host and sums in files; on a card, within
the memory that was asked for.
"""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from auditkit.formats.recipe import Recipe
from auditkit.kernels.backend import CudaOps
from auditkit.model.kept_results import RESULTS
from auditkit.model.params import parameter_table
from auditkit.model.plan import Cuts, Plan
from auditkit.model.state import document, initial_state, seeded_state
from auditkit.model.step import step
from auditkit.numerics import reference
from auditkit.replay.backend import CudaBackend
from auditkit.replay.layout import Layout, Limits, choose_layout
from auditkit.replay.memory import piece_bytes
from auditkit.replay.planned import Planned
from tests.kernels.on_devices import real_device
from tests.replay.make_run import RECIPE

SMALL = replace(
    RECIPE,
    model=replace(
        RECIPE.model, vocab_size=60, num_layers=2, num_heads=4, num_kv_heads=2, context_length=9, tied_head=False
    ),
    batch=replace(RECIPE.batch, sequences=3, micro_batch_sequences=1),
)


def planned(device: Any, recipe: Recipe, layout: Layout, cache: Path) -> Planned:
    inner = CudaBackend(CudaOps(device), 1, "cuda")
    shapes = {spec.name: spec.shape for spec in parameter_table(recipe.model)}
    return Planned(inner.ops, 1, "cuda", inner=inner, layout=layout, shapes=shapes, cache=lambda: cache)


def tokens_of(recipe: Recipe) -> Any:
    shape = (recipe.batch.sequences, recipe.model.context_length + 1)
    return np.random.default_rng(3).integers(0, recipe.model.vocab_size, shape)


def check(backend: Planned, recipe: Recipe) -> None:
    """Two steps, the second from a state that was never in memory, give the reference's records and documents."""
    want_state, state = initial_state(recipe), backend.place(seeded_state(recipe))
    for _ in range(2):
        tokens = tokens_of(recipe)
        want_state, want = step(want_state, tokens, recipe, reference, work_key=bytes(32))
        state, got = backend.step(state, tokens, recipe, work_key=bytes(32))
        assert dataclasses.asdict(got) == dataclasses.asdict(want)
    assert document(backend.host(state), recipe) == document(want_state, recipe)


HOST = Plan(
    True, group=2, recompute=True, keep=RESULTS[:1], logits_once=True, cuts=Cuts(4, 20), params="host", sums="host",
    inputs="host",
)  # fmt: skip
PLANS = {
    "on the disk": Plan(True, group=2, recompute=True, cuts=Cuts(4, 0, 1), params="disk", sums="disk", inputs="host"),
    "on the device": Plan(True, cuts=Cuts(0, 20), params="host"),
    "attention in main memory": replace(HOST, tables="memory"),
    "heads, the last layer's on the device": replace(HOST, group=3, keep=RESULTS[:3], near=1, cuts=Cuts(4, 20, 1)),
    "beside": replace(
        HOST, group=1, keep=RESULTS[:3], more=RESULTS[3:4], more_layers=1, beside=True, tables="memory"
    ),
}  # fmt: skip


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_two_steps_equal_the_reference(device: Any, tmp_path: Path, plan: Plan) -> None:
    check(planned(device, SMALL, Layout(plan, piece_bytes(SMALL, plan, True)), tmp_path), SMALL)
    assert not [path for path in (tmp_path / "spill").rglob("*") if path.is_file()]


LARGER = replace(
    RECIPE,
    model=replace(
        RECIPE.model, vocab_size=16_384, hidden_size=512, num_layers=4, num_heads=8, num_kv_heads=2, head_dim=64,
        ffn_size=1408, context_length=512, tied_head=False,
    ),
    batch=replace(RECIPE.batch, sequences=4, micro_batch_sequences=1),
)  # fmt: skip


@pytest.mark.gpu
@pytest.mark.optional("CI has no GPU; the emulator runs the same source")
@pytest.mark.parametrize("mebibytes", [400, 700])
def test_a_card_stays_within_what_was_asked_for(tmp_path: Path, mebibytes: int) -> None:
    """The pool refuses more, so a plan that needs more than it says ends the step."""
    device, memory = real_device(), mebibytes << 20
    layout = choose_layout([LARGER], Limits(memory, None, None), cuda=True, threads=1)
    assert layout.plan.pieces
    device.limit(memory)
    check(planned(device, LARGER, layout, tmp_path), LARGER)
    assert device.pool.total_bytes() <= memory
