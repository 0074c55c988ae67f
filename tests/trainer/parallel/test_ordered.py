"""Which ranks can share a fold, and that whole groups are what they share."""

from __future__ import annotations

import pytest

from auditkit.errors import UsageError
from auditkit.numerics.fold import Fold
from trainer.parallel.ordered import MOST_TERMS, plan


@pytest.mark.parametrize(
    ("count", "radices", "size", "inner", "terms"),
    [
        (64, (8, 8), 8, (8,), (1,) * 8),  # a group a rank
        (64, (8, 8), 4, (8,), (2,) * 4),
        (64, (8, 8), 3, (8,), (3, 3, 2)),
        (64, (8, 8), 16, (), (4,) * 16),
        (64, (8, 8), 1, (8, 8), (1,)),
        (64, (2, 4), 8, (2, 4), (1,) * 8),
        (64, (2, 4), 32, (2,), (1,) * 32),
        (64, (2, 4), 64, (), (1,) * 64),
        (12, (4,), 3, (4,), (1, 1, 1)),
        (13, (4,), 4, (4,), (1, 1, 1, 1)),
        (5, (8,), 2, (), (3, 2)),
        (3, (2,), 5, (), (1, 1, 1, 0, 0)),
        (1, (2,), 3, (), (1, 0, 0)),
    ],
)
def test_ranks_get_the_largest_groups_that_share_the_work(
    count: int, radices: tuple[int, ...], size: int, inner: tuple[int, ...], terms: tuple[int, ...]
) -> None:
    found = plan(count, radices, size)
    assert (found.inner, found.terms) == (inner, terms)


@pytest.mark.parametrize("radices", [(2,), (3,), (2, 2), (4, 2), (2, 3, 2), (16,)])
@pytest.mark.parametrize("count", [1, 2, 5, 8, 12, 13, 27, 30])
def test_every_plan_plays_the_fold(count: int, radices: tuple[int, ...]) -> None:
    """Brackets written out: those of the ranks' sums, folded on, are those of one device."""

    def fold(texts: list[str], by: tuple[int, ...]) -> str:
        made: Fold[str] = Fold(by, lambda x, y: f"({x}+{y})")
        for text in texts:
            made.push(text)
        return made.total()

    names = [str(number) for number in range(count)]
    for size in range(1, count + 3):
        try:
            found = plan(count, radices, size)
        except UsageError:
            continue
        sums = []
        for span in found.spans:
            for first in range(span.start, span.stop, found.unit):
                sums.append(fold(names[first : min(first + found.unit, span.stop)], found.inner))
        assert len(sums) == sum(found.terms) and max(found.terms) == found.most <= MOST_TERMS
        assert max(map(len, found.spans)) == found.load
        assert fold(sums, found.outer) == fold(names, radices)


def test_what_does_not_fit_is_refused_with_what_does() -> None:
    with pytest.raises(UsageError, match=r"^4 ranks cannot share the fold \[64\] of 64 micro-batches") as found:
        plan(64, (64,), 4)
    assert found.value.hint == "numbers of ranks that can: 1, 8 to 64"
    for size in (1, 8, 13, 64, 100):
        plan(64, (64,), size)
    with pytest.raises(UsageError, match="its groups are too large, or their sums too many"):
        plan(1 << 20, (1 << 10, 1 << 10), 5)
