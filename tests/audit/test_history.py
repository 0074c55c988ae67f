"""The history of nights: read back as written, refused as a whole when damaged, and loud when it cannot vouch."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.audit import history
from auditkit.audit.history import History, Night
from auditkit.errors import BadArtifact
from auditkit.formats.times import seconds, time_text
from auditkit.verdict import Verdict

DAY = 86400
NOW = seconds("2026-03-01T02:00:00Z")


def nights(*verdicts: Verdict) -> History:
    """One night a day, the last one a day ago."""
    return History(tuple(Night(time_text(NOW - DAY * back), v) for back, v in enumerate(reversed(verdicts), 1))[::-1])


@given(st.lists(st.tuples(st.integers(0, 2**33), st.sampled_from(Verdict)), max_size=20))
def test_a_history_is_read_back(items: list[tuple[int, Verdict]]) -> None:
    made = History(tuple(Night(time_text(at), verdict) for at, verdict in items))
    assert History.parse(made.encode()) == made


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"format":"auditkit/nights/v1"}',
        b'{"format":"auditkit/nights/v1","nights":[{"finished":"2026-01-02T03:04:05Z","verdict":"FINE"}]}',
        b'{"format":"auditkit/nights/v1","nights":[{"finished":"2026-01-02","verdict":"MATCH"}]}',
        b'{"format":"auditkit/nights/v1","nights":[{"finished":"2026-01-02T03:04:05Z","verdict":"MATCH","x":1}]}',
        b'{"format":"auditkit/nights/v1","nights":[],"x":1}',
        b'{"format":"auditkit/nights/v1", "nights":[]}',
        b" " * (history.DOCUMENT_BYTES + 1),
    ],
)
def test_anything_else_is_refused_and_reading_it_gives_no_history_and_a_reason(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(BadArtifact):
        History.parse(data)
    path = tmp_path / "history.json"
    path.write_bytes(data)
    found, problem = history.read(path)
    assert found == History()
    assert "cannot be used" in problem


def test_the_first_night_has_no_history_and_no_problem(tmp_path: Path) -> None:
    assert history.read(tmp_path / "history.json") == (History(), "")


def test_a_folder_in_its_place_is_a_problem_and_not_an_exception(tmp_path: Path) -> None:
    assert history.read(tmp_path)[1]


def test_writing_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new" / "history.json"
    for made in (nights(Verdict.MATCH), nights(Verdict.MATCH, Verdict.UNAVAILABLE)):
        history.write(path, made)
        assert history.read(path) == (made, "")
    assert [p.name for p in path.parent.iterdir()] == ["history.json"]


def test_what_is_no_history_is_kept_beside_it(tmp_path: Path) -> None:
    path, night = tmp_path / "history.json", History((Night("2026-01-01T00:00:00Z", Verdict.MATCH),))
    path.write_bytes(b"somebody's notes")
    history.write(path, night)
    history.write(path, night)
    assert history.read(path) == (night, "")
    assert [kept.read_bytes() for kept in tmp_path.glob("history.json.*.kept")] == [b"somebody's notes"]


def test_only_the_latest_nights_are_kept_and_the_file_stays_below_its_limit() -> None:
    made = History()
    for number in range(history.KEPT_NIGHTS + 7):
        made = made.add(Night(time_text(NOW + DAY * number), Verdict.UNAVAILABLE))
    assert len(made.nights) == history.KEPT_NIGHTS
    assert made.nights[-1].finished == time_text(NOW + DAY * (history.KEPT_NIGHTS + 6))
    assert len(made.encode()) < history.DOCUMENT_BYTES
    assert History.parse(made.encode()) == made


@pytest.mark.parametrize(
    ("verdicts", "since", "overdue"),
    [
        ((), 0, True),
        ((Verdict.UNAVAILABLE,), 1, True),
        ((Verdict.MATCH,), 0, False),
        ((Verdict.MATCH, Verdict.UNAVAILABLE, Verdict.UNAVAILABLE), 2, False),
        ((Verdict.MATCH, Verdict.UNAVAILABLE, Verdict.MISMATCH, Verdict.UNAVAILABLE), 3, True),
        ((Verdict.MATCH, *[Verdict.UNAVAILABLE] * 9, Verdict.MATCH, Verdict.UNAVAILABLE), 1, False),
    ],
)
def test_the_date_of_the_last_full_match_decides(verdicts: tuple[Verdict, ...], since: int, overdue: bool) -> None:
    made = nights(*verdicts)
    assert made.without_match == since
    assert made.is_overdue(NOW, 3.5) is overdue


def test_nights_that_were_left_out_count_as_well_as_bad_ones() -> None:
    made = nights(Verdict.MATCH)
    assert not made.is_overdue(NOW + 2 * DAY, 3.5)
    assert made.is_overdue(NOW + 4 * DAY, 3.5)


def test_a_full_match_in_the_future_vouches_for_nothing() -> None:
    assert nights(Verdict.MATCH).is_overdue(NOW - 30 * DAY, 3.5)
