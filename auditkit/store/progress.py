"""What the store tells the outside while it works, and the clock it works by; both are passed in."""

from __future__ import annotations

import time
from typing import Protocol


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
