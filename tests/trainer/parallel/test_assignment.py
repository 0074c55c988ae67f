"""Which rank computes what: every micro-batch once, in order, evenly."""

from __future__ import annotations

import pytest

from trainer.parallel.assignment import holder, spans


@pytest.mark.parametrize("unit", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8, 17])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 12, 64])
def test_every_micro_batch_has_one_rank(count: int, size: int, unit: int) -> None:
    found = spans(count, size, unit)
    assert len(found) == size
    assert [number for span in found for number in span] == list(range(count))
    units = [-(-len(span) // unit) for span in found]
    assert max(units) - min(units) <= 1 and units == sorted(units, reverse=True)
    assert all(span.start % unit == 0 for span in found if span)
    assert [holder(number, found) for number in range(count)] == [rank for rank, span in enumerate(found) for _ in span]


def test_some_ranks_may_have_none() -> None:
    assert spans(3, 5) == (range(0, 1), range(1, 2), range(2, 3), range(3, 3), range(3, 3))
    assert spans(8, 3) == (range(0, 3), range(3, 6), range(6, 8))
    assert spans(7, 2, 4) == (range(0, 4), range(4, 7))
    assert spans(7, 3, 4) == (range(0, 4), range(4, 7), range(7, 7))
