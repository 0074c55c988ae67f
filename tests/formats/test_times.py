"""Moments: one spelling each, in the calendar, in the order of their texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact
from auditkit.formats.times import check_time, seconds, time_text

LAST = 253402300799  # 9999-12-31T23:59:59Z


@given(st.integers(0, LAST), st.integers(0, LAST))
def test_texts_come_back_and_sort_as_times_do(one: int, other: int) -> None:
    assert seconds(time_text(one)) == one
    assert check_time(time_text(one), "time") == time_text(one)
    assert (time_text(one) < time_text(other)) == (one < other)


def test_known_moments() -> None:
    assert time_text(0.9) == "1970-01-01T00:00:00Z"
    assert seconds("2000-02-29T12:00:00Z") == 951825600
    assert seconds("9999-12-31T23:59:59Z") == LAST


@pytest.mark.parametrize(
    "value",
    [
        "2026-01-02T03:04:05", "2026-01-02T03:04:05+00:00", "2026-01-02t03:04:05z", "2026-01-02 03:04:05Z",
        "2026-01-02T03:04:05.5Z", "2026-1-02T03:04:05Z", "2026-01-02T03:04:05Z\n", "\u0662026-01-02T03:04:05Z", "", 0,
    ],
)  # fmt: skip
def test_another_spelling_is_refused(value: object) -> None:
    with pytest.raises(BadArtifact, match='at: .* is not a time such as "2026-01-02T03:04:05Z"'):
        check_time(value, "at")


@pytest.mark.parametrize("text", ["2026-02-29T00:00:00Z", "2026-13-01T00:00:00Z", "2026-01-01T24:00:00Z",
                                  "2026-01-01T23:59:60Z", "0000-01-01T00:00:00Z"])  # fmt: skip
def test_what_is_not_in_the_calendar_is_refused(text: str) -> None:
    with pytest.raises(BadArtifact, match="at: .* is not in the calendar"):
        check_time(text, "at")


def test_a_time_before_1970_is_refused() -> None:
    with pytest.raises(BadArtifact, match="is before 1970"):
        check_time("1969-12-31T23:59:59Z", "at")


@pytest.mark.parametrize("at", [-1, LAST + 1, 1e300])
def test_seconds_outside_the_calendar_have_no_text(at: float) -> None:
    with pytest.raises(BadArtifact):
        time_text(at)
