"""Which tokens a step sees: every window once an epoch, in the declared order, nothing cut off at the seams."""

from __future__ import annotations

import numpy as np
import pytest

from auditkit.numerics.shuffle import window_order
from auditkit.replay.windows import Windows


def _batches(tokens: int, width: int, sequences: int) -> Windows:
    ids = np.arange(tokens, dtype=np.uint16)
    return Windows(ids, context_length=width, sequences=sequences, seed=3, windows=(tokens - 1) // width)


@pytest.mark.parametrize(("tokens", "windows"), [(5, 1), (8, 1), (9, 2), (10, 2), (12, 2), (13, 3), (17, 4)])
def test_each_window_comes_once_an_epoch_with_its_last_target(tokens: int, windows: int) -> None:
    batches = _batches(tokens, 4, 1)
    for epoch in range(3):
        seen = [batches.tokens(epoch * windows + place)[0].tolist() for place in range(windows)]
        assert sorted(seen) == [list(range(4 * w, 4 * w + 5)) for w in range(windows)]


def test_the_order_is_that_of_the_contract() -> None:
    batches = _batches(401, 4, 1)
    for epoch in (0, 1):
        order = window_order(3, epoch, 100)
        assert [int(batches.tokens(epoch * 100 + place)[0, 0]) // 4 for place in range(100)] == order.tolist()


def test_a_batch_may_span_two_epochs_and_none_is_short() -> None:
    batches = _batches(41, 4, 4)  # 10 windows, 4 sequences: the third batch takes two of the next epoch
    flat = [int(row[0]) // 4 for step in range(5) for row in batches.tokens(step)]
    assert flat == [*window_order(3, 0, 10).tolist(), *window_order(3, 1, 10).tolist()]


def test_a_batch_larger_than_the_text_repeats_it() -> None:
    assert _batches(9, 4, 5).tokens(0).shape == (5, 5)


def test_any_step_can_be_asked_for_in_any_order() -> None:
    forward, backward = _batches(41, 4, 3), _batches(41, 4, 3)
    steps = list(range(8))
    expected = [forward.tokens(step) for step in steps]
    found = [backward.tokens(step) for step in reversed(steps)]
    assert all(np.array_equal(a, b) for a, b in zip(expected, reversed(found), strict=True))
