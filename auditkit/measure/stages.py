"""Where the time of micro-batches goes under a plan: by part, and how long the device's work waited for copies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from auditkit.measure.clock import Clock
from auditkit.measure.profile import Line, added


class Stages:
    """Marks where parts of a micro-batch begin, and around waits within them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun: list[tuple[str, Any]] = []
        self._waits: list[tuple[str, Any, Any]] = []
        self._stopped = False

    def begin(self, stage: str) -> None:
        """A part begins; the one before it ends."""
        if not self._stopped:
            self._begun.append((stage, self._clock.mark()))

    def wait(self, what: str, wait: Callable[[], None]) -> None:
        """As auditkit.kernels.transfers.Watch."""
        if self._stopped:
            wait()
            return
        begin, stage = self._clock.mark(), self._begun[-1][0] if self._begun else ""
        wait()
        self._waits.append((f"{stage}: {what}", begin, self._clock.mark()))

    def restart(self) -> None:
        """Forget what was marked so far."""
        self._begun, self._waits = [], []

    def stop(self) -> None:
        """Note nothing from here on: what comes is none of the micro-batches'."""
        self._stopped = True

    def lines(self, end: Any) -> tuple[list[Line], list[Line]]:
        """The parts up to a mark, and the waits within them, the longest first; of all groups that were marked."""
        ends = [mark for _, mark in self._begun[1:]] + [end]
        spans = zip(self._begun, ends, strict=True) if self._begun else ()
        parts = added((stage, self._clock.seconds(begin, stop)) for (stage, begin), stop in spans)
        return parts, added((what, self._clock.seconds(begin, stop)) for what, begin, stop in self._waits)
