"""Work beside the training: a state is compressed and written while the next steps are computed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

T = TypeVar("T")


class Background(Generic[T]):
    """One piece of work at a time, in a thread of its own; `stop` asks it to break off."""

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._work: Future[T] | None = None
        self.stop = threading.Event()

    @property
    def busy(self) -> bool:
        """Whether something was begun whose result was not taken yet."""
        return self._work is not None

    @property
    def ended(self) -> bool:
        """Whether `result` would return, or raise, at once."""
        return self._work is not None and self._work.done()

    def begin(self, work: Callable[[], T]) -> None:
        """Begin a piece of work; the result of the one before must have been taken."""
        assert self._work is None
        self._work = self._pool.submit(work)

    def wait(self) -> None:
        """Wait for the work in hand, if there is one."""
        if self._work is not None:
            wait([self._work])

    def result(self) -> T:
        """What the work in hand has returned, once it has ended; raises what it has raised."""
        assert self._work is not None
        work, self._work = self._work, None
        return work.result()

    def drop(self, *, finish: bool) -> None:
        """Let the work in hand come to its end, or break it off, whatever it returns or raises; nothing can follow."""
        if not finish:
            self.stop.set()
        self._pool.shutdown(wait=True)
        if self._work is not None:
            with contextlib.suppress(Exception):  # something else has ended the training, and is told
                self.result()
