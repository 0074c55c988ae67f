"""When a long step keeps what it has found: not before it pays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from auditkit.formats.digest import content_digest
from auditkit.model.shelf import Moved
from auditkit.numerics import reference
from auditkit.replay.keeper import FIRST_SECONDS, SHARE, Keeper
from auditkit.replay.predict import PROCESSOR
from auditkit.store.progress import Silent, SystemClock
from auditkit.store.spill import Spill


class Hand(SystemClock):
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.at = 1000.0

    def now(self) -> float:
        return self.at


@pytest.mark.parametrize(
    ("size", "seconds"),
    [(0, FIRST_SECONDS), (1_000_000, FIRST_SECONDS), (13_000_000_000, SHARE * 13_000_000_000 / PROCESSOR.disk)],
)
def test_the_first_time_is_as_rare_as_its_size_asks_for(tmp_path: Path, size: int, seconds: float) -> None:
    clock: Any = Hand()
    spill = Spill.open(tmp_path, content_digest(b"step"), resume=False)
    keeper = Keeper(spill, Moved(spill, reference), Silent(), clock, in_place=False, size=size)
    clock.at += seconds - 1
    assert not keeper.due()
    clock.at += 1
    assert keeper.due()


def test_what_lies_on_the_disk_anyway_is_kept_at_once(tmp_path: Path) -> None:
    spill = Spill.open(tmp_path, content_digest(b"step"), resume=False)
    assert Keeper(spill, Moved(spill, reference), Silent(), Hand(), in_place=True, size=1 << 40).due()
