"""Progress on stderr: a live bar with the time left on a terminal, now and then a plain line anywhere else."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from auditkit.cli import console

if TYPE_CHECKING:
    import rich.progress

    from auditkit.store.progress import Progress

LINE_SECONDS = 10.0  # between two plain lines of one task: a log file stays short

Clock = Callable[[], float]


class Board:
    """The progress of one command on stderr; `handle` gives one reporter to whoever has its own tasks."""

    def __init__(self) -> None:
        self._live = _LiveBoard() if console.is_live(sys.stderr) else None

    def handle(self) -> Progress:
        """A reporter of one task at a time; reporters of the same board may be busy side by side."""
        return self._live.handle() if self._live else LineProgress()

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        """Take every bar away, so that what is printed next starts on a clean line."""
        if self._live:
            self._live.close()


class LineProgress:
    """A plain line when a task has taken LINE_SECONDS, and every LINE_SECONDS after."""

    def __init__(self, *, clock: Clock = time.monotonic, tell: Callable[[str], None] = console.tell) -> None:
        self._clock = clock
        self._tell = tell
        self._lock = threading.Lock()
        self._label = self._unit = ""
        self._total = self._done = 0
        self._began = self._told = 0.0

    def start(self, label: str, total: int, unit: str = "bytes") -> None:
        """A task of `total` units begins; `unit` is "bytes" or the name of what is counted."""
        with self._lock:
            self._label, self._unit, self._total, self._done = label, unit, total, 0
            self._began = self._told = self._clock()

    def advance(self, n: int) -> None:
        """Count, and say so when a line is due; called from any thread."""
        with self._lock:
            self._done += n
            now = self._clock()
            if now - self._told < LINE_SECONDS:
                return
            self._told = now
            line = self._line(now - self._began)
        self._tell(line)

    def finish(self) -> None:
        """The task is over; lines tell of tasks that run, so there is nothing to say."""

    def note(self, text: str) -> None:
        """A line of its own."""
        self._tell(console.printable(text))

    def _line(self, seconds: float) -> str:
        done = share(self._done, self._total, self._unit)
        left = (self._total - self._done) * seconds / self._done if self._done else 0.0
        return f"{console.printable(self._label)}: {done}, {duration(max(left, 0.0))} left"


class _LiveBoard:
    """All bars of a command in one display, since two displays would overwrite each other's lines."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bars

        coloured = console.is_coloured(sys.stderr)
        screen = Console(stderr=True, force_terminal=True, no_color=not coloured, highlight=False, markup=False)
        label = TextColumn("{task.description}", markup=False)
        amount = TextColumn("{task.fields[amount]}", markup=False)
        self._bars = Bars(label, BarColumn(), amount, TimeRemainingColumn(), console=screen, transient=True)
        self._open = False

    def handle(self) -> Progress:
        if not self._open:
            self._bars.start()
            self._open = True
        return _LiveProgress(self._bars)

    def close(self) -> None:
        if self._open:
            self._bars.stop()
        self._open = False


class _LiveProgress:
    """One bar of a board; it vanishes when its task is over."""

    def __init__(self, bars: rich.progress.Progress) -> None:
        self._bars = bars
        self._task: rich.progress.TaskID | None = None
        self._done = self._total = 0
        self._unit = ""

    def start(self, label: str, total: int, unit: str = "bytes") -> None:
        self.finish()
        self._done, self._total, self._unit = 0, total, unit
        self._task = self._bars.add_task(console.printable(label), total=total, amount=self._amount())

    def advance(self, n: int) -> None:
        if self._task is not None:
            self._done += n
            self._bars.update(self._task, advance=n, amount=self._amount())

    def note(self, text: str) -> None:
        self._bars.console.print(console.printable(text), soft_wrap=True)

    def finish(self) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
        self._task = None

    def _amount(self) -> str:
        return share(self._done, self._total, self._unit)


def share(done: int, total: int, unit: str) -> str:
    """How much of a whole is done, for people: bytes in decimal units, anything else counted."""
    return f"{size(done)} of {size(total)}" if unit == "bytes" else f"{done} of {total} {unit}"


def size(amount: int) -> str:
    """Bytes in decimal units, three digits: `1.23 MB`."""
    value, unit = float(amount), "bytes"
    for larger in ("kB", "MB", "GB", "TB", "PB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{amount} bytes" if unit == "bytes" else f"{value:.3g} {unit}"


def duration(seconds: float) -> str:
    """Seconds for people: `0.4 s`, `12 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"
