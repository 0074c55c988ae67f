"""Start processes that Ctrl-C does not reach: it interrupts the one that started them, which ends them in order."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from multiprocessing import resource_tracker


@contextlib.contextmanager
def shielded_from_interrupts() -> Iterator[None]:
    """Processes that are started in the block never see SIGINT, not even while they load their first module.

    A terminal sends it to all processes of the group, and a handler is of use only once a process has come so far. This
    process is interrupted as ever, by the end of the block at the latest. Nothing on Windows, which has no signals.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    resource_tracker.ensure_running()  # starting it would unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
