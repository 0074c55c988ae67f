"""Real processes over Gloo: the records of one device on every number of ranks; `soak.py` has 100 steps of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from auditkit.formats.recipe import Recipe
from tests.golden.make_training import RECIPES
from tests.trainer.parallel.conftest import FORKS, Zygote
from tests.trainer.parallel.gloo_ranks import texts
from tests.trainer.parallel.states import CUT, on_one_device, with_batch

pytestmark = FORKS

TINY = RECIPES["tied head, gradients folded in groups of two, twice"]
EXACT, FOLD = (), (2, 2)

# Ranks, micro-batches, fold, steps: counts that divide and that do not, fewer micro-batches than ranks.
TRAININGS = [
    (1, 2, EXACT, 20),
    (2, 3, FOLD, 100),
    (3, 4, EXACT, 100),
    (4, 4, FOLD, 20),
    (6, 4, EXACT, 10),
    (8, 3, FOLD, 10),
    (1, 5, FOLD, 3),
    (2, 6, EXACT, 3),
    (3, 8, FOLD, 3),
    (4, 6, EXACT, 3),
    (6, 7, FOLD, 3),
    (8, 5, EXACT, 3),
    (8, 16, EXACT, 3),
]


def recipe_of(micro_batches: int, fold: tuple[int, ...]) -> Recipe:
    """The tiny recipe with so many micro-batches."""
    return with_batch(TINY, micro_batches, 1, fold)


@pytest.fixture(scope="module")
def truth() -> dict[Recipe, Any]:
    """What one device records, the most steps of each recipe."""
    recipes = {recipe_of(count, fold) for _, count, fold, _ in TRAININGS}
    longest = {
        recipe: max(steps for _, count, fold, steps in TRAININGS if recipe_of(count, fold) == recipe)
        for recipe in recipes
    } | {CUT: 3, with_batch(CUT, 5, 1, (2,)): 3}
    return {recipe: texts(on_one_device(recipe, steps)) for recipe, steps in longest.items()}


@pytest.fixture(scope="module")
def trained(zygote: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what every rank recorded in every training: eight processes do them all."""
    folder = tmp_path_factory.mktemp("gloo")
    jobs = [
        {"size": size, "recipe": recipe_of(count, fold), "steps": steps, "bucket": 1}
        for size, count, fold, steps in TRAININGS
    ]
    jobs += [{"size": size, "recipe": CUT, "steps": 3, "bucket": 40_000} for size in (3, 8)]
    jobs += [{"size": 3, "recipe": with_batch(CUT, 5, 1, (2,)), "steps": 3, "bucket": 1 << 22}]
    for job in jobs:
        job["recipe"] = job["recipe"].encode().decode("ascii")
    (folder / "jobs.json").write_text(json.dumps(jobs), encoding="ascii")
    ranks = zygote.start(8, str(folder), call="tests.trainer.parallel.gloo_ranks:train_in_parts")
    assert ranks.wait(200) == [0] * 8, [ranks.said(rank) for rank in range(8)]
    return folder


def check(folder: Path, number: int, size: int, want: Any) -> None:
    """Every rank of a training has recorded this."""
    for rank in range(size):
        found = json.loads((folder / f"job-{number}-rank-{rank}.json").read_text(encoding="ascii"))
        assert found == want


@pytest.mark.parametrize("number", range(len(TRAININGS)))
def test_every_rank_records_what_one_device_does(trained: Path, truth: dict[Recipe, Any], number: int) -> None:
    size, count, fold, steps = TRAININGS[number]
    check(trained, number, size, truth[recipe_of(count, fold)][:steps])


def test_tensors_that_ranks_cut(trained: Path, truth: dict[Recipe, Any]) -> None:
    check(trained, len(TRAININGS), 3, truth[CUT])
    check(trained, len(TRAININGS) + 1, 8, truth[CUT])
    check(trained, len(TRAININGS) + 2, 3, truth[with_batch(CUT, 5, 1, (2,))])


def test_collectives(zygote: Zygote) -> None:
    """Every call of a group by itself, with lengths of 0 and of more than one round."""
    ranks = zygote.start(3, call="tests.trainer.parallel.gloo_ranks:call_everything")
    assert ranks.wait() == [0, 0, 0], [ranks.said(rank) for rank in range(3)]


@pytest.mark.parametrize("what", ["group", "carrier"])
@pytest.mark.parametrize("slow", [0, 2])
def test_a_rank_that_takes_long_to_part_is_not_missed(zygote: Zygote, slow: int, what: str) -> None:
    """All has been done by then: that one ends 4 s behind the others, or holds them up, changes no exit code."""
    ranks = zygote.start(3, str(slow), what, call="tests.trainer.parallel.gloo_ranks:part_slowly")
    assert ranks.wait() == [0, 0, 0], [ranks.said(rank) for rank in range(3)]
    assert all(ranks.said(rank) == "" for rank in range(3))
    assert [ranks.said(rank, "out")[:4] for rank in range(3)] == ["late" if rank == slow else "" for rank in range(3)]


def test_works_can_be_waited_for_without_a_limit_of_their_own(zygote: Zygote) -> None:
    """NCCL's must be; a failed one, because a rank is gone, ends the others with a message that names it."""
    ranks = zygote.start(3, call="tests.trainer.parallel.gloo_ranks:poll")
    assert ranks.wait() == [5, 0, 5], [ranks.said(rank) for rank in range(3)]
    told = ranks.said(0) + ranks.said(2)
    assert told.count("error: ") == 1 and "rank 1 gave no sign of life" in told
    assert [ranks.said(rank, "out") for rank in range(3)] == ["stopped\n", "", "stopped\n"]  # what is under way
