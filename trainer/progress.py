"""Progress on stderr: a live bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from auditkit.cli import console

Report = Callable[[int, str], None]
"""`report(done, detail)`: how many of the total are done, and a few words about the latest."""

BAR_SECONDS = 0.1  # between two updates of the bar: a step may take less than an update
LINE_SECONDS = 15.0  # between two lines where there is no terminal: readable logs of runs of hours


@contextlib.contextmanager
def progress(label: str, total: int, done: int = 0, *, clock: Callable[[], float] = time.monotonic) -> Iterator[Report]:
    """Show the progress of `total` units of work, `done` of them there at the start; `clock` gives seconds."""
    console = Console(stderr=True)
    with _bar(console, label, total, done, clock) if console.is_terminal else _lines(label, total, clock) as report:
        yield report


@contextlib.contextmanager
def _bar(console: Console, label: str, total: int, done: int, clock: Callable[[], float]) -> Iterator[Report]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[detail]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=False) as bar:
        task = bar.add_task(label, total=total, completed=done, detail="")

        last = -BAR_SECONDS

        def report(completed: int, detail: str) -> None:
            nonlocal last
            now = clock()
            if completed == total or now - last >= BAR_SECONDS:
                last = now
                bar.update(task, completed=completed, detail=detail)

        yield report


@contextlib.contextmanager
def _lines(label: str, total: int, clock: Callable[[], float]) -> Iterator[Report]:
    last = clock()

    def report(completed: int, detail: str) -> None:
        nonlocal last
        now = clock()
        if completed == total or now - last >= LINE_SECONDS:
            last = now
            console.tell(f"{label} {completed}/{total} {detail}".rstrip())

    yield report
