"""The publication of a run beside its training: one after the other, each followed by its upload.

Neither can stop the training. What fails is told, tried again with the next state, and told again at the end.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from auditkit.cli import console
from auditkit.errors import AuditkitError, Unavailable
from auditkit.store.lock import only_writer
from trainer import signed_log
from trainer.disk import explain
from trainer.live.publisher import Publisher
from trainer.live.settings import Publication
from trainer.live.upload import Uploads
from trainer.publish import MANIFEST
from trainer.segments import Course
from trainer.states import complete_steps

_LOOK = 0.1  # seconds
PAUSES = 1.0, 300.0  # seconds between two tries of an upload: the first, doubled up to the last


def pause(failed: int) -> float:
    """Seconds to wait after so many tries of an upload, at least one, have failed."""
    return float(min(PAUSES[0] * 2 ** (failed - 1), PAUSES[1]))


class Live:
    """What is due, and the thread that does it."""

    def __init__(
        self, course: Course, publication: Publication, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Raises `UsageError`, `Unavailable` or `BadArtifact` where this run cannot be published there."""
        self._course, self._publication, self._clock = course, publication, clock
        self._key = signed_log.load_key(publication.log_key, publication.origin)
        self._held, self._is_held = contextlib.ExitStack(), False
        try:
            self._publisher: Publisher | None = self._open()
        except BaseException:
            self._held.close()
            raise
        self._due = self._tried = self._published = self._publisher.steps
        self._failure: AuditkitError | None = None
        self._uploads = _Tries(course, publication, clock) if publication.upload else None
        self._changed, self._closing, self._stop = threading.Condition(), False, threading.Event()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="publish")
        self._thread: Future[None] | None = None

    @property
    def out(self) -> Path:
        """The run folder."""
        return self._publication.out

    @property
    def steps(self) -> int:
        """How many steps are published, as far as is known."""
        return self._published

    def start(self) -> None:
        """Begin, with what a training before this one has left to do."""
        self._thread = self._pool.submit(self._work)
        begun = {stage.step for stage in self._course.stages[1:]}
        done = complete_steps(self._course.work.states)
        for step in done:
            if step not in begun or step < done[-1]:  # a change of which no step is complete may be taken back
                self.completed(step)

    def completed(self, step: int) -> None:
        """A state is complete; it is published if it is one of those that are kept, and far enough behind the last."""
        with self._changed:
            far = step - self._due >= max(1, self._publication.every)
            if self._course.settings.keeps(step) and (far or self._due < step == self._course.steps):
                self._due = step
                self._changed.notify_all()

    def finish(self, asked: Callable[[], bool]) -> AuditkitError | None:
        """Wait for the last publication and its upload; returns what has failed for good.

        asked: whether to stop. Then an upload is broken off; what is due is still published.
        """
        self._close()
        while self._thread is not None and not self._thread.done():
            if asked():
                self._stop.set()
            self._close()
            wait([self._thread], _LOOK)
        self._end()
        return self._failure or (self._uploads.failure(self._stop.is_set()) if self._uploads is not None else None)

    def abandon(self) -> None:
        """The training has failed: finish the publication in hand, and break off an upload."""
        self._stop.set()
        self._close()
        with contextlib.suppress(Exception):  # another error is told
            self._end()

    def _end(self) -> None:
        self._pool.shutdown(wait=True)
        self._held.close()
        if self._thread is not None:
            self._thread.result()

    def _close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _work(self) -> None:
        uploads = self._uploads
        while True:
            with self._changed:
                if self._due <= self._tried and not (uploads and uploads.due and not self._stop.is_set()):
                    if self._closing and (self._stop.is_set() or not (uploads and uploads.left)):
                        return
                    self._changed.wait(_LOOK if self._closing or (uploads and uploads.left) else None)
                    continue
                due = self._due
            if due > self._tried:
                self._publish(due)
            elif uploads is not None:
                uploads.once(self._stop)

    def _publish(self, step: int) -> None:
        try:
            self._publisher = self._publisher or self._open()
            if step > self._publisher.steps:
                self._publisher.extend(step)
                self._hold()
            self._published = self._publisher.steps
        except (AuditkitError, OSError) as error:
            self._publisher = None  # what it knows of the folder may not be so
            self._failed(error if isinstance(error, AuditkitError) else explain(error))
        else:
            if self._failure is not None:
                console.tell(f"publication goes on: {step} steps are published")
            self._failure = None
            if self._uploads is not None:
                self._uploads.renew()
        with self._changed:
            self._tried = step
            self._changed.notify_all()

    def _failed(self, error: AuditkitError) -> None:
        if self._failure is None or self._failure.message != error.message:
            console.tell(f"not published, the training goes on: {error.message}")
        self._failure = error

    def _open(self) -> Publisher:
        self._hold()
        return Publisher(self._course, self._publication, self._key)

    def _hold(self) -> None:
        """Keep every other publisher out of the folder, once there is a run in it: an empty one is replaced."""
        out = self._publication.out
        if not self._is_held and (out / MANIFEST).is_file():
            self._held.enter_context(only_writer(out))
            self._is_held = True


class _Tries:
    """Uploads with their tries: a number of them for each publication, with growing pauses."""

    def __init__(self, course: Course, publication: Publication, clock: Callable[[], float]) -> None:
        folder, self._clock, self._most = course.work.folder, clock, publication.tries
        self._uploads = Uploads(folder, publication.out, publication.upload, publication.seconds)
        self._hint = f"python -m trainer upload {folder} repeats it"
        self._failed, self._next, self._why = 0, 0.0, ""
        self.left = self._uploads.pending() is not None

    @property
    def due(self) -> bool:
        """Whether there is something to upload, and the pause after the last try is over."""
        return self.left and self._clock() >= self._next

    def renew(self) -> None:
        """There is another publication: all tries are left again, and the first one now."""
        self._failed, self._next, self.left = 0, 0.0, True

    def once(self, stop: threading.Event) -> None:
        """Try once; `left` tells whether to try again."""
        try:
            manifest = self._uploads.pending()
            why = self._uploads.run(manifest, stop) if manifest is not None else ""
        except (AuditkitError, OSError) as error:
            why = (error if isinstance(error, AuditkitError) else explain(error)).message
        if not why:
            if self._why:
                console.tell("upload: done")
            self._failed, self._why, self.left = 0, "", False
            return
        if not self._why and not stop.is_set():
            console.tell(f"upload failed, the training goes on: {why}")
        self._failed, self._why = self._failed + 1, why
        self._next = self._clock() + pause(self._failed)
        self.left = self._failed < self._most

    def failure(self, stopped: bool) -> AuditkitError | None:
        """What the last upload has failed with, unless it was asked to stop."""
        try:
            if self._uploads.pending() is None:
                return None
        except AuditkitError as error:
            return error
        if stopped:
            console.tell(f"the last upload is not complete; {self._hint}")
            return None
        return Unavailable(f"the last upload has not succeeded: {self._why}", hint=self._hint)
