"""Stop at a step's end when asked: SIGTERM and the first Ctrl-C save a state first, a second Ctrl-C stops at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from auditkit.cli import console


class StopRequest:
    """Which signal asked for the end; None while nobody did."""

    def __init__(self, *, tells: bool = True) -> None:
        self.signal: signal.Signals | None = None
        self._tells = tells

    def __bool__(self) -> bool:
        return self.signal is not None

    def handle(self, number: int, frame: FrameType | None) -> None:
        """The signal handler: note the request; interrupted twice, give up at once (nothing complete is lost)."""
        del frame
        if self.signal is signal.SIGINT and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = signal.Signals(number)
        if self._tells:
            console.tell(f"{self.signal.name.lower()}: finishing this step, then saving")


@contextlib.contextmanager
def watch_signals(*, tells: bool = True) -> Iterator[StopRequest]:
    """Catch SIGINT and SIGTERM inside the block; in a thread other than the main one nothing is caught.

    tells: whether a signal is answered with a line on stderr.
    """
    request = StopRequest(tells=tells)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    previous = {number: signal.signal(number, request.handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
