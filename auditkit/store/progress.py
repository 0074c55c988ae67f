"""What the store tells the outside while it works, and the clock it works by; both are passed in."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol

from auditkit.errors import Unsupported

FIRST, LAST = 0, 253_370_764_800  # seconds since 1970: the years 1970 to 9998, so that what begins in them can end


class Progress(Protocol):
    """Receiver of progress; every call must be cheap, and may come from another thread than the one before."""

    def start(self, label: str, total: int, unit: str = "bytes") -> None:
        """A piece of work begins: `total` is known beforehand; `unit` is "bytes" or "steps"."""

    def advance(self, n: int) -> None:
        """`n` units were done; negative when a download starts again from 0, so the sum never passes the total."""

    def finish(self) -> None:
        """The piece of work ended, done or not."""

    def note(self, text: str) -> None:
        """A line for the reader: a wait, a mirror that is skipped, a cache entry that was corrupt."""


class Silent:
    """Progress that shows nothing."""

    def start(self, label: str, total: int, unit: str = "bytes") -> None:
        """Nothing."""

    def advance(self, n: int) -> None:
        """Nothing."""

    def finish(self) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """Nothing."""


class Clock(Protocol):
    """Time in seconds, and waiting."""

    def now(self) -> float:
        """Seconds since any fixed moment; never goes back."""

    def wall(self) -> float:
        """Seconds since 1970-01-01 UTC, for dates that servers and file systems name."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class SystemClock:
    """The clock of this machine."""

    def now(self) -> float:
        """Monotonic seconds."""
        return time.monotonic()

    def wall(self) -> float:
        """Unix time in seconds."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)


def moment(clock: Clock) -> datetime:
    """The date and time of a clock, UTC. Unsupported where reports and attestations could not say it: it is set wrongly
    beyond what any date is, which is this machine's fault and no artifact's.
    """
    wall = clock.wall()
    if not FIRST <= wall < LAST:
        message = f"the clock of this machine is set to {wall:.0f} seconds after 1970, which is before it or after 9998"
        raise Unsupported(message, hint="set the clock, then run the same command again")
    return datetime.fromtimestamp(wall, UTC)
