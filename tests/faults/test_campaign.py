"""A short campaign of faults, and the judge that a long one relies on."""

from __future__ import annotations

import collections
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from auditkit.model.state import initial_state
from auditkit.verdict import Verdict
from tests.faults import memory
from tests.faults.campaign import SHARES, Campaign, Plan, judge, run_all, table
from tests.faults.world import World
from tests.replay.make_run import RECIPE

RUNS = 40


@pytest.fixture(scope="module")
def campaign(tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return Campaign(tmp_path_factory.mktemp("faults"), seed=2)


def test_no_fault_ends_in_a_wrong_verdict(campaign: Campaign) -> None:
    results = run_all(campaign, range(RUNS))
    assert [f"{result.plan.number}: {result.wrong}" for result in results if result.wrong] == []
    assert {result.plan.kind for result in results} == set(SHARES)
    assert f"0 wrong verdicts in {RUNS} runs" in table(results, 2)


def test_each_lie_is_found_where_nothing_breaks(campaign: Campaign) -> None:
    """Or the campaign would prove nothing: what it calls a lie must be one, and the rest must be honest."""
    found: dict[tuple[str, str | None], str] = {}
    for world in campaign.truths:
        for micro_batches in (None, "0", "all"):
            plan = Plan(0, "artifact", "lie", world, micro_batches, 1, None)
            outcome = campaign._artifact(plan, random.Random(0), campaign.folder)
            found[world.name, micro_batches] = outcome
            assert (outcome == Verdict.MATCH.name) is not plan.lie, (world.name, micro_batches, outcome)
    assert collections.Counter(found.values())[Verdict.MISMATCH.name] > 6


def plan(kind: str, world: str, lie: bool) -> Plan:
    return Plan(0, kind, "", World(world, Path(), whole=lie), None, 1, None)


def test_the_judge_knows_what_is_wrong() -> None:
    assert judge(plan("memory", "honest", False), "MISMATCH").wrong
    assert judge(plan("memory", "end state", True), "MATCH").wrong
    assert judge(plan("network", "honest", False), "MACHINE_FAULT").wrong
    assert judge(plan("kill", "honest", False), "UNAVAILABLE").wrong
    assert judge(plan("disk", "honest", False), "IndexError: 3").wrong
    assert not judge(plan("memory", "honest", False), "MACHINE_FAULT").wrong
    assert not judge(plan("memory", "end state", True), "MISMATCH").wrong


def test_a_plan_is_a_function_of_seed_and_number(campaign: Campaign) -> None:
    assert campaign.plan(5)[0] == campaign.plan(5)[0]
    assert campaign.plan(5)[0] != replace(campaign.plan(6)[0], number=5)


def test_one_bit_is_flipped_and_no_more() -> None:
    state, chance = initial_state(RECIPE), random.Random(3)
    before = {name: array.copy() for name, array in state.params.items()}
    memory.flip(state.params["model.embed_tokens.weight"], chance)
    changed = [
        int(np.bitwise_count(before[name].view(np.uint32) ^ array.view(np.uint32)).sum())
        for name, array in state.params.items()
    ]
    assert sum(changed) == 1


def test_a_bit_in_a_strided_array_is_its_own() -> None:
    base = np.zeros((4, 6), np.int64)
    view = base.T[1:3, ::2]
    for number in range(50):
        memory.flip(view, random.Random(number))
    assert np.count_nonzero(base[::2, 1:3]) > 0
    base[::2, 1:3] = 0
    assert not base.any()
