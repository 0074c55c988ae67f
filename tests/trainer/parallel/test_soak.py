"""A short part of the long proof (`soak.py`), so that it keeps running and what it proves keeps holding."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.trainer.parallel import soak
from tests.trainer.parallel.conftest import FORKS, Zygote

pytestmark = FORKS

STEPS = 32


@pytest.fixture
def bench(zygote: Zygote, tmp_path: Path) -> soak.Bench:
    """A folder of its own."""
    return soak.Bench(zygote, tmp_path, lambda line: None)


def test_killed_and_changed_three_times_a_run_has_the_same_bits(bench: soak.Bench) -> None:
    truth = soak.undisturbed(bench, "truth", soak.recipe(7), STEPS)
    assert "to its end on" in soak.whole_round(bench, truth, 0, random.Random("short"), STEPS)


def test_a_case_of_the_matrix(bench: soak.Bench) -> None:
    truth = soak.undisturbed(bench, "truth", soak.recipe(7, (2, 2)), STEPS)
    soak.case(bench, truth, 3, "case", random.Random(1), STEPS)


def test_the_matrix_has_every_number_of_ranks_on_both_counts_and_folds() -> None:
    assert [sizes for _, _, sizes in soak.cases()] == [list(soak.SIZES)] * 4
    assert all(soak.COUNTS[0] % size == 0 for size in soak.SIZES)
    assert all(soak.COUNTS[1] % size for size in soak.SIZES[1:])
