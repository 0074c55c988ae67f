"""What a micro-batch is predicted to take: what is kept is not computed, and a card copies beside its work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from auditkit.model.kept_results import RESULTS
from auditkit.model.plan import Cuts, Plan
from auditkit.replay.memory import kept_bytes
from auditkit.replay.predict import CARD, PROCESSOR, STEADY, Profile, predict, profile_of
from auditkit.replay.sizes import sizes_of
from tests.replay.test_layout import LARGE

SIZES = sizes_of(LARGE, True)
PLAN = Plan(True, group=8, recompute=True, params="host", sums="host", inputs="host", cuts=Cuts(1024, 16_384))
NO_COPIES = replace(CARD, to_host=1e30, to_device=1e30)


def test_a_profile_is_declared_for_each_kind_of_back_end() -> None:
    assert profile_of(True) is CARD and CARD.overlaps
    assert profile_of(False) is PROCESSOR and not PROCESSOR.overlaps


@pytest.mark.parametrize("profile", [CARD, PROCESSOR])
def test_every_result_that_is_kept_spares_computing(profile: Profile) -> None:
    plans = [replace(PLAN, keep=RESULTS[:count]) for count in range(len(RESULTS) + 1)]
    found = [predict(SIZES, plan, profile).compute for plan in plans]
    assert found == sorted(found, reverse=True) and len(set(found)) == len(found)
    assert predict(SIZES, replace(PLAN, recompute=False), profile).compute < found[-1]
    assert predict(SIZES, replace(PLAN, logits_once=True), profile).compute < found[0]
    assert predict(SIZES, Plan(), profile).compute < found[-1]


def test_a_part_takes_as_long_as_the_longest_of_work_and_copies() -> None:
    assert predict(SIZES, PLAN, CARD).seconds >= predict(SIZES, PLAN, NO_COPIES).seconds
    free = predict(SIZES, PLAN, NO_COPIES)
    assert free.seconds == pytest.approx(free.compute + free.once)
    slow = predict(SIZES, PLAN, replace(CARD, to_host=1e9))
    forward = {part.name: part for part in slow.parts}["forward"]
    kept = SIZES.recipe.model.num_layers * (SIZES.stream + SIZES.results(PLAN.keep))
    assert forward.to_host == pytest.approx(kept / 1e9) == pytest.approx(STEADY * forward.seconds(True))


def test_beside_each_other_forward_and_backward_pass_share_the_time_of_the_copies() -> None:
    after, beside = (predict(SIZES, replace(PLAN, beside=value, keep=RESULTS), CARD) for value in (False, True))
    assert beside.compute == pytest.approx(after.compute)
    assert len(beside.parts) == len(after.parts) - 1
    assert sum(part.to_host for part in beside.parts) == pytest.approx(sum(part.to_host for part in after.parts))
    assert beside.seconds < after.seconds


def test_more_of_some_layers_lies_between_none_and_all() -> None:
    layers = LARGE.model.num_layers
    some = [replace(PLAN, keep=RESULTS[:1], more=RESULTS[1:2], more_layers=count) for count in (0, layers // 2, layers)]
    found = [predict(SIZES, plan, CARD) for plan in some]
    computing = [one.compute for one in found]
    assert computing == sorted(computing, reverse=True)
    assert computing[1] == pytest.approx((computing[0] + computing[2]) / 2)
    whole = predict(SIZES, replace(PLAN, keep=RESULTS[:2]), CARD)
    assert found[2] == whole and kept_bytes(SIZES, some[2]) == kept_bytes(SIZES, replace(PLAN, keep=RESULTS[:2]))


def test_what_is_kept_is_counted_where_it_lies() -> None:
    layers = LARGE.model.num_layers
    for near in (0, 1, 5, layers):
        for count in (0, 1, 3, layers, layers + 7):
            plan = replace(PLAN, near=near, keep=RESULTS[:1], more=RESULTS[1:3], more_layers=count)
            each = [SIZES.stream + SIZES.results(plan.keep_of(layer, layers)) for layer in range(layers)]
            assert kept_bytes(SIZES, plan) == (sum(each[layers - near :]), sum(each[: layers - near]))


def test_what_lies_in_memory_is_not_copied() -> None:
    all_near = replace(PLAN, near=LARGE.model.num_layers, sums="memory", params="memory")
    parts = {part.name: part for part in predict(SIZES, all_near, CARD).parts}
    assert parts["forward"].to_host == parts["forward"].to_device == 0
    fewer = [predict(SIZES, replace(PLAN, keep=RESULTS[:2], near=near), CARD).parts[0].to_host for near in (0, 6, 12)]
    assert fewer == sorted(fewer, reverse=True) and fewer[0] > fewer[-1]


@pytest.mark.parametrize("once", [False, True])
def test_what_enters_the_tables_gradients_comes_once_beside_their_sums(once: bool) -> None:
    """Else for each piece, with its sums. What enters from elsewhere: y of the head, where that is made."""
    arrays, pieces = (0 if once else 1), -(-LARGE.model.vocab_size // PLAN.cuts.rows)
    slow = replace(CARD, to_device=1e9)
    found = {}
    for tables in ("memory", "host"):
        plan = replace(PLAN, tables=tables, params="memory", logits_once=once)
        found[tables] = {part.name: part for part in predict(SIZES, plan, slow).parts}["tables"].to_device
    sums = SIZES.sum_bytes * SIZES.table / PLAN.group * (1 if once else SIZES.tables)
    assert pieces > 1 and found["memory"] == pytest.approx(arrays * SIZES.stream / 1e9)
    assert found["host"] == pytest.approx((arrays * pieces * SIZES.stream + sums) / 1e9)


def test_a_larger_group_shares_its_sums_and_parameters() -> None:
    found = [sum(part.to_device for part in predict(SIZES, replace(PLAN, group=group), CARD).parts) for group in (1, 8)]
    assert found[0] > 2 * found[1]


def test_files_come_before_or_after_the_work() -> None:
    on_disk = replace(PLAN, params="disk", sums="disk", inputs="disk")
    found = predict(SIZES, on_disk, PROCESSOR)
    assert found.seconds == pytest.approx(found.compute + sum(part.disk for part in found.parts))
    assert sum(part.disk for part in found.parts) > 1
