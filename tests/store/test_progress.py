"""The clock of this machine, where it says what no date is."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from auditkit.errors import Unsupported
from auditkit.replay.verify import verify
from auditkit.store.progress import FIRST, LAST, moment
from auditkit.verdict import Verdict
from tests.replay.conftest import honest, parts
from tests.store.tools import FakeClock

__all__ = ["honest", "parts"]


def at(wall: float) -> FakeClock:
    """A clock that is set to `wall`."""
    clock = FakeClock()
    clock.start = wall
    return clock


def test_a_clock_that_is_set_to_a_date() -> None:
    assert moment(at(FIRST)) == datetime(1970, 1, 1, tzinfo=UTC)
    assert moment(at(LAST - 1)) == datetime(9998, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize("wall", [-1.0, float(LAST), 1e15, 1e300, float("inf"), float("nan"), -1e12])
def test_a_clock_that_says_no_date_is_this_machines_fault(honest: Path, wall: float) -> None:
    """An internal error before, or, with an attestation, BAD_ARTIFACT."""
    with pytest.raises(Unsupported, match="the clock of this machine is set to") as error:
        moment(at(wall))
    assert error.value.hint == "set the clock, then run the same command again"
    report = verify(str(honest), step=0, clock=at(wall))
    assert (report.verdict, report.steps) == (Verdict.UNSUPPORTED, ())
