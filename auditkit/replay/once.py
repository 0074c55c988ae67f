"""Telling of micro-batches of a step that may begin anew."""

from __future__ import annotations

from collections.abc import Callable


class Once:
    """Tells of each finished micro-batch once, also where a step begins anew."""

    def __init__(self, tell: Callable[[int], None]) -> None:
        self._tell, self._done = tell, 0

    def __call__(self, done: int) -> None:
        if done > self._done:
            self._done = done
            self._tell(done)
