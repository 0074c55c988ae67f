"""The text of some micro-batches has one form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact
from auditkit.formats.micro_batches import MicroBatches

NUMBERS = st.sets(st.integers(0, 40), min_size=1)


@given(NUMBERS)
def test_every_set_has_a_text_that_is_read_back(numbers: set[int]) -> None:
    found = MicroBatches.of(numbers, 41)
    assert set(found) == numbers and len(found) == len(numbers)
    assert MicroBatches.parse(found.text, 41, "x") == found
    assert set(found.others) == set(range(41)) - numbers
    assert found.all is (numbers == set(range(41)))


@pytest.mark.parametrize(
    "text",
    [
        "", ",", "0,", "1,0", "0,0", "0-0", "1-0", "0-1,2", "0,1", "00", "01", "0-01", "+1", "-1", "1 ", "1,\u0663",
        "8", "7-8", "12345678", "0-2-3", 3, None, "0," * 10_000 + "1",
    ],
)  # fmt: skip
def test_anything_else_is_refused(text: object) -> None:
    with pytest.raises(BadArtifact, match="^predicate.part"):
        MicroBatches.parse(text, 8, "predicate.part")


def test_in_words() -> None:
    assert MicroBatches.of([3], 8).describe() == "micro-batch 3 of 8"
    assert MicroBatches.of([0, 1, 2, 7], 8).describe() == "micro-batches 0-2,7 of 8"
