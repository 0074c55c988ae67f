"""What the micro-batches of a step hold on a card under a plan, against what the planner says that they need."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from auditkit.kernels.backend import CudaOps
from auditkit.kernels.host_shelf import HostShelf
from auditkit.kernels.slab import Slab
from auditkit.measure.models import recipe_of
from auditkit.model.kept_results import RESULTS
from auditkit.model.params import parameter_table
from auditkit.model.pieces_step import Room, Told, walk_all
from auditkit.model.plan import Cuts, Place, Plan
from auditkit.model.shelf import Divided, InMemory, Shelf
from auditkit.model.state import State
from auditkit.model.step import step
from auditkit.replay.layout import Limits, choose_layout
from auditkit.replay.memory import DEVICE_BASE, piece_bytes, plain_bytes, waiting_inputs, waiting_sums
from auditkit.replay.planned import _is_of_table
from tests.kernels.pools import cupy
from tests.kernels.virtual_device import VirtualDevice
from tests.replay.test_layout import LARGE

# As wide as a model of 350 million parameters, of a few layers: wide enough that arrays count and not their number.
RECIPE = replace(
    LARGE,
    model=replace(
        LARGE.model, vocab_size=32_768, hidden_size=1024, num_layers=4, num_heads=16, num_kv_heads=4, head_dim=64,
        ffn_size=2816, context_length=2048,
    ),
)  # fmt: skip
WIDE = replace(
    RECIPE,
    model=replace(
        RECIPE.model, vocab_size=131_072, hidden_size=2048, num_layers=2, num_heads=32, num_kv_heads=8, head_dim=64,
        ffn_size=8192, context_length=512,
    ),
)  # fmt: skip
HOST = Plan(True, group=3, recompute=True, params="host", sums="host", inputs="host", cuts=Cuts(512, 4096))
PLANS = {
    "inputs": HOST,
    "attention": replace(HOST, keep=RESULTS[:1], logits_once=True, tables="memory"),
    "the last layers near": replace(HOST, keep=RESULTS[:1], logits_once=True, tables="memory", near=3),
    "beside the group before": replace(HOST, keep=("attention", "up", "gate"), beside=True, logits_once=True),
    "projections": replace(HOST, keep=RESULTS[:3], logits_once=True),
    "all products, on the card": replace(HOST, keep=RESULTS, inputs="memory", sums="memory"),
    "whole tables": replace(HOST, cuts=Cuts(512, 0), logits_once=True),
    "caches": replace(HOST, recompute=False, sums="memory"),
}


def peaks(recipe: Any, plan: Plan, pool: Any = None) -> dict[str, int]:
    """Bytes held by part of the micro-batches of two groups, of three where two are under way at once; pool: what they
    are taken from, if it may run out.
    """
    device: Any = VirtualDevice(pool)

    def shelf(place: Place, most: int) -> Shelf:
        return HostShelf(device, most) if place == "host" else InMemory()

    def stage(part: str) -> None:
        device.part = part

    params = {spec.name: np.empty(spec.shape, np.float32) for spec in parameter_table(recipe.model)}
    sums = shelf(plan.sums, waiting_sums(recipe))
    if plan.table_sums != plan.sums:
        sums = Divided(shelf(plan.table_sums, waiting_sums(recipe)), sums, _is_of_table)
    room = Room(plan, shelf(plan.inputs, waiting_inputs(recipe, plan)), sums, None, stage)
    shape = recipe.batch.micro_batch_sequences, recipe.model.context_length + 1
    tokens = [np.zeros(shape, np.int64)] * ((3 if plan.beside else 2) * plan.group)
    ops: Any = CudaOps(device)
    walk_all(State(0, params, {}, {}), tokens, 1, recipe, ops, room, Told(None))
    found: dict[str, int] = device.peaks
    return found


@pytest.mark.parametrize("name", PLANS)
def test_the_planner_knows_what_a_plan_holds(name: str) -> None:
    plan = PLANS[name]
    found, need = peaks(RECIPE, plan), piece_bytes(RECIPE, plan, True)
    most = max(found.values())
    counted = sum(size for _, size in need.parts) + DEVICE_BASE
    assert most <= 1.05 * counted <= need.memory, f"{name}: {most:,} of {counted:,}: {found}"
    assert most >= 0.6 * (need.memory - DEVICE_BASE), f"{name}: {most:,} of {need.memory:,}: {found}"


@pytest.mark.parametrize("once", [False, True])
def test_the_planner_knows_what_a_large_vocabulary_holds(once: bool) -> None:
    """Of several chunks of logits, and pieces of the tables, one is there at a time."""
    recipe = replace(RECIPE, model=replace(RECIPE.model, vocab_size=131_072, num_layers=2))
    plan = replace(HOST, keep=RESULTS[:1], logits_once=once, tables="memory", cuts=Cuts(1024, 16_384))
    found, need = peaks(recipe, plan), piece_bytes(recipe, plan, True)
    counted = sum(size for _, size in need.parts) + DEVICE_BASE
    assert found["head"] == max(found.values()) <= 1.05 * counted, f"{counted:,}: {found}"
    assert found["head"] >= 0.7 * counted


RECIPES = {
    "usual": RECIPE,
    "wide tables": WIDE,
    "1.6b": recipe_of("1.6b", 2),
    "1.6b by sequences": recipe_of("1.6b", 1),
}
CHOSEN = [
    *(("usual", size) for size in (2.0, 2.4, 2.5, 3.0, 5.0)),
    *(("wide tables", size) for size in (3.75, 3.9, 4.5)),
    *(("1.6b", size) for size in (8.0, 12.0, 16.0)),
    *(("1.6b by sequences", size) for size in (8.0, 12.0, 13.5, 16.0)),
]


@pytest.mark.parametrize(("name", "gibibytes"), CHOSEN)
def test_what_is_chosen_fits(name: str, gibibytes: float) -> None:
    """Also into one block, where what is free lies in pieces."""
    recipe = RECIPES[name]
    limit = int(gibibytes * (1 << 30))
    layout = choose_layout([recipe], Limits(limit, 100 << 30, 0), cuda=True, threads=1)
    assert layout.plan.pieces
    module = cupy(limit)
    pool = Slab(module, module.cuda.MemoryPool(), limit, at_once=True)
    assert max(peaks(recipe, layout.plan, pool).values()) <= layout.need.memory <= limit
    assert pool.total_bytes() <= limit


def test_what_the_head_holds_of_sums_that_come_and_go_is_counted() -> None:
    plan = Plan(
        True, group=2, recompute=True, keep=("attention", "mid", "heads"), near=1, cuts=Cuts(128, 512, 1),
        params="host", sums="host", inputs="host",
    )  # fmt: skip
    found, need = peaks(WIDE, plan), piece_bytes(WIDE, plan, True)
    counted = sum(size for _, size in need.parts) + DEVICE_BASE
    assert found["head"] == max(found.values()) <= counted


def test_what_leaves_the_last_layer_is_counted_where_it_lies() -> None:
    """Its key is that of one layer more, none of those that are near."""
    recipe = replace(RECIPE, model=replace(RECIPE.model, context_length=8192, num_layers=2))
    plan = Plan(True, recompute=True, near=1, params="host", inputs="host", cuts=Cuts(128, 4096, 1))
    few, many = replace(plan, group=2), replace(plan, group=18)
    held = peaks(recipe, many)["head"] - peaks(recipe, few)["head"]
    counted = [sum(size for _, size in piece_bytes(recipe, one, True).parts) for one in (few, many)]
    assert held <= 1.05 * (counted[1] - counted[0])


@pytest.mark.parametrize("fold", [(), (2,)])
@pytest.mark.parametrize("recipe", [RECIPE, WIDE], ids=["usual", "wide"])
def test_the_planner_knows_what_the_plain_way_holds(recipe: Any, fold: tuple[int, ...]) -> None:
    batch = replace(recipe.batch, sequences=4, micro_batch_sequences=1)
    recipe = replace(recipe, numerics=replace(recipe.numerics, fold=fold), batch=batch)
    device: Any = VirtualDevice()
    specs = parameter_table(recipe.model)
    roles = [{spec.name: device.empty(spec.shape, np.float32) for spec in specs} for _ in range(3)]
    tokens = np.zeros((4, recipe.model.context_length + 1), np.int64)
    step(State(0, *roles), tokens, recipe, CudaOps(device))
    need = plain_bytes(recipe, 1, True)
    counted = sum(size for _, size in need.parts) + DEVICE_BASE
    assert device.peak <= counted <= need.memory and counted < 1.5 * device.peak
