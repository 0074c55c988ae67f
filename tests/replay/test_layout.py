"""The choice of a plan: the quickest that fits, the same for the same numbers, and words where none fits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from auditkit.errors import Unsupported
from auditkit.formats.recipe import Recipe
from auditkit.model.piece_sums import BLOCK_ELEMENTS
from auditkit.model.plan import Plan
from auditkit.replay.layout import Limits, choose_layout, leanest, table_rows
from auditkit.replay.predict import CARD, PROCESSOR, predict
from auditkit.replay.sizes import sizes_of
from tests.replay.make_run import RECIPE

GIB = 1 << 30
# 1.6 billion parameters, sequences of 4,096 tokens, 4.72 million tokens a step.
LARGE = replace(
    RECIPE,
    model=replace(
        RECIPE.model,
        vocab_size=128_256,
        hidden_size=2048,
        num_layers=24,
        num_heads=16,
        num_kv_heads=4,
        head_dim=128,
        ffn_size=5632,
        context_length=4096,
        tied_head=False,
    ),
    batch=replace(RECIPE.batch, sequences=1152, micro_batch_sequences=1),
    numerics=replace(RECIPE.numerics, body_bits=14, head_bits=21),
)


def chosen(recipe: Recipe, memory: int, *, cuda: bool = False, host: int | None = None, disk: int = 1 << 40) -> Plan:
    layout = choose_layout([recipe], Limits(memory, host, disk), cuda=cuda, threads=8)
    assert layout.need.memory <= memory
    assert host is None or layout.need.host <= host
    assert layout.need.disk <= disk
    return layout.plan


@pytest.mark.parametrize("gibibytes", [8, 16, 64])
@pytest.mark.parametrize("cuda", [False, True])
def test_a_large_model_fits_a_small_machine(gibibytes: int, cuda: bool) -> None:
    plan = chosen(LARGE, gibibytes * GIB, cuda=cuda, host=64 * GIB if cuda else None)
    assert plan.pieces
    if gibibytes == 8:
        assert plan.recompute and plan.group > 1 and plan.cuts.rows
        assert plan.sums == ("host" if cuda else "disk")


@pytest.mark.parametrize("sequences", [1, 2])
def test_with_16_gibibytes_of_a_card_no_attention_and_no_logits_are_made_again(sequences: int) -> None:
    recipe = replace(LARGE, batch=replace(LARGE.batch, micro_batch_sequences=sequences))
    plan = chosen(recipe, 16 * GIB, cuda=True, host=100 * GIB)
    assert "attention" in plan.keep and plan.logits_once
    plain = predict(sizes_of(recipe, True), Plan(), CARD)  # docs/performance.md: measured 1.35, the goal is 1.1
    assert predict(sizes_of(recipe, True), plan, CARD).seconds < 1.25 * plain.seconds


def test_a_measured_profile_decides() -> None:
    """Over a slow bus it is quicker to make again what else would have to wait in main memory."""
    slow = replace(CARD, to_host=2e9, to_device=2e9)
    limits = Limits(16 * GIB, 100 * GIB, 0)
    found = [choose_layout([LARGE], limits, cuda=True, threads=1, profile=one).plan for one in (CARD, slow)]
    sizes = sizes_of(LARGE, True)
    assert found[0] != found[1]
    assert predict(sizes, found[1], slow).seconds < predict(sizes, found[0], slow).seconds
    assert predict(sizes, found[0], CARD).seconds < predict(sizes, found[1], CARD).seconds


def test_with_little_main_memory_a_card_spills_to_the_disk() -> None:
    plan = chosen(LARGE, 8 * GIB, cuda=True, host=16 * GIB)
    assert "disk" in (plan.params, plan.sums, plan.inputs)


def test_the_plain_way_where_there_is_room_with_as_many_side_by_side_as_fit() -> None:
    assert chosen(RECIPE, GIB) == Plan(workers=8)
    assert chosen(LARGE, 1000 * GIB).pieces is False
    workers = [chosen(LARGE, gib * GIB).workers for gib in (160, 240, 1000)]
    assert workers == sorted(workers) and workers[0] < workers[-1]
    assert choose_layout([RECIPE], Limits(None, None, None), cuda=True, threads=8).plan == Plan()


def test_more_memory_never_takes_longer() -> None:
    def seconds(gib: int) -> float:
        layout = choose_layout([LARGE], Limits(gib * GIB, None, 1 << 40), cuda=False, threads=8)
        return predict(sizes_of(LARGE, False), layout.plan, PROCESSOR).seconds

    assert seconds(4) >= seconds(16) >= seconds(64)


def test_where_nothing_fits_it_says_what_would() -> None:
    lean = leanest([LARGE], False).need
    with pytest.raises(Unsupported) as caught:
        chosen(LARGE, GIB)
    assert f"at least {lean.memory:,} bytes of memory and {lean.disk:,} of disk" in caught.value.message
    assert "it may use 1,073,741,824 of memory" in caught.value.message
    assert "--memory" in caught.value.hint
    with pytest.raises(Unsupported):
        chosen(LARGE, 8 * GIB, disk=GIB)
    with pytest.raises(Unsupported, match="of the device's memory"):
        chosen(LARGE, 8 * GIB, cuda=True, host=GIB, disk=GIB)


def test_the_most_demanding_recipe_of_a_run_decides() -> None:
    larger = replace(LARGE, batch=replace(LARGE.batch, micro_batch_sequences=2))
    both = choose_layout([LARGE, larger], Limits(12 * GIB, None, 1 << 40), cuda=False, threads=8)
    alone = choose_layout([larger], Limits(12 * GIB, None, 1 << 40), cuda=False, threads=8)
    assert both.need.memory >= alone.need.memory > 0 and both.need.memory <= 12 * GIB


def test_steps_that_follow_each_other_need_room_for_two_states() -> None:
    """Of parameters where they lie, and of moments on the disk; the plain way has counted them."""
    size, disk = 4 * sizes_of(LARGE, True).parameters, Limits(16 * GIB, 100 * GIB, 0)
    assert choose_layout([LARGE], disk, cuda=True, threads=1).need.disk == 0
    with pytest.raises(Unsupported, match="and 0 of disk"):
        choose_layout([LARGE], disk, cuda=True, threads=1, following=True)
    limits = Limits(16 * GIB, 100 * GIB, 4 * size)
    layout = choose_layout([LARGE], limits, cuda=True, threads=1, following=True)
    once = choose_layout([LARGE], limits, cuda=True, threads=1)
    assert (layout.plan, layout.need.host, layout.need.disk) == (once.plan, once.need.host + size, 4 * size)
    plain = Limits(None, None, 0)
    assert choose_layout([RECIPE], plain, cuda=True, threads=1, following=True).plan == Plan()


@pytest.mark.parametrize("width", [16, 48, 2048, 1600])
def test_pieces_of_a_table_are_whole_blocks(width: int) -> None:
    recipe = replace(LARGE, model=replace(LARGE.model, hidden_size=width))
    for rows in table_rows(sizes_of(recipe, True)):
        assert rows * width % BLOCK_ELEMENTS == 0
