"""The publication of one call of the trainer: opened before the first step, waited for behind the last one."""

from __future__ import annotations

import signal
from pathlib import Path
from types import TracebackType

from auditkit.cli import console
from auditkit.errors import UsageError
from auditkit.verdict import Verdict
from trainer.live import settings
from trainer.live.settings import LiveOptions, Publication
from trainer.live.worker import Live
from trainer.segments import Course
from trainer.states import complete_steps
from trainer.stop import watch_signals


class Session:
    """Of a run that is not published, nothing. A context in which an error ends the publication too."""

    def __init__(self, options: LiveOptions) -> None:
        self._options = options
        self._publication: Publication | None = None
        self._live: Live | None = None
        self._stopped = False

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._live is not None:
            self._live.abandon()

    def begin(self, course: Course) -> None:
        """Open the folder of a new run, and remember it. Raises `UsageError` if something is there."""
        publication = settings.begin(self._options)
        if publication is None:
            (course.work.folder / settings.FILE).unlink(missing_ok=True)  # of a start that was killed
            return
        _require_new(publication.out)
        self._live = Live(course, publication)
        settings.save(course.work.folder, publication)

    def remember(self, course: Course) -> tuple[int, ...]:
        """Read how a run that goes on is published; the states that this makes it keep, however far it goes.

        Raises `UsageError` for options that contradict what is published.
        """
        before = settings.load(course.work.folder)
        self._publication = settings.go_on(self._options, before)
        done = complete_steps(course.work.states)
        return (course.steps,) if before is not None and course.steps in done else ()

    def go_on(self, course: Course) -> None:
        """Open the folder of a run that goes on. Raises as `Live`."""
        if self._publication is not None:
            self._live = Live(course, self._publication)
            settings.save(course.work.folder, self._publication)

    def start(self) -> None:
        """Begin to publish."""
        if self._live is not None:
            self._live.start()

    def completed(self, step: int) -> None:
        """A state is complete."""
        if self._live is not None:
            self._live.completed(step)

    def trained(self, *, stopped: bool) -> None:
        """The training has come to its end, or was stopped."""
        self._stopped = stopped

    def ended(self, ended: tuple[int, str]) -> tuple[int, str]:
        """How the call ends: wait for the last publication and its upload, while nobody waits for this process.

        The training itself is done, whatever fails here.
        """
        code, summary = ended
        if self._live is None:
            return ended
        with watch_signals(tells=False) as stop:
            failed = self._live.finish(lambda: self._stopped or bool(stop))
        if failed is not None:
            console.tell(f"error: {failed.message}")
            if failed.hint:
                console.tell(f"hint: {failed.hint}")
            code = code or failed.verdict.code
        interrupted = Verdict.INTERRUPTED.code if stop.signal is signal.SIGINT else 0
        return code or interrupted, f"{summary}\npublished {self._live.steps} steps in {self._live.out}"


def _require_new(out: Path) -> None:
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise UsageError(f"{out}: exists already", hint="a published run is never changed; choose another folder")
