"""Ctrl-C and termination: the first signal unwinds the command, the second ends the process at once."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

TERMINATED = 128 + 15  # what a shell reports for SIGTERM
INTERRUPTED = 128 + 2


class Signals:
    """Handlers for SIGINT and SIGTERM; `code` is the exit code of the signal that came, 0 while none has.

    Files get their final names last and by one rename, so ending at once leaves nothing half-written behind.
    """

    def __init__(self) -> None:
        self.code = 0

    def install(self) -> None:
        """Take over both signals; outside the main thread Python cannot, and nothing is changed."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self._handle)
            signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.code:
            os._exit(self.code)
        self.code = TERMINATED if number == signal.SIGTERM else INTERRUPTED
        raise KeyboardInterrupt
