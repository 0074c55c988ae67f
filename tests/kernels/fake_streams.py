"""Streams, events and graphs of the stand-in for CuPy (tests/kernels/fake_cupy.py): all is done at once.

Or as late as may be: a stream that was made while `cuda.late` does its work only when somebody waits for it.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from tests.kernels.fake_cuda import Cuda


class FakeStream:
    """A stream; what is launched on it runs at once, or is kept while it is captured."""

    def __init__(self, cuda: Cuda, *, non_blocking: bool = False) -> None:
        cuda.call("stream create")
        self.cuda, self.index, self.ptr = cuda, cuda.current, id(self)
        self.non_blocking = non_blocking
        self.captured: list[Callable[[], None]] | None = None
        self.late = cuda.late
        self.begun = self.ended = 0  # pieces of work
        self._left: deque[Callable[[], None]] = deque()
        self._lock = threading.RLock()  # two streams may wait for each other in turn

    def __enter__(self) -> None:
        self.cuda.check_device("a stream", self.index)

    def __exit__(self, *_: object) -> None:
        pass

    def do(self, work: Callable[[], None]) -> None:
        """Work in the stream's order."""
        self.cuda.check_device("a stream", self.index)
        if self.captured is not None:
            self.captured.append(work)
        elif self.late:
            self.begun += 1
            self._left.append(work)
        else:
            work()

    def do_until(self, number: int) -> None:
        """Do the work up to a number of pieces."""
        with self._lock:
            while self.ended < number:
                self._left.popleft()()
                self.ended += 1

    def synchronize(self) -> None:
        """Wait: all is done."""
        self.cuda.call("synchronize")
        self.do_until(self.begun)

    def record(self) -> FakeEvent:
        """As cupy.cuda.Stream.record."""
        self.cuda.check_device("a stream", self.index)
        self.cuda.call("record")
        return FakeEvent(self.cuda, self)

    def wait_event(self, event: FakeEvent) -> None:
        """As cupy.cuda.Stream.wait_event."""
        self.cuda.check_device("a stream", self.index)
        self.cuda.call("wait")
        if self.late:
            self.do(event.happen)
        else:
            event.happen()

    def begin_capture(self) -> None:
        """As cupy.cuda.Stream.begin_capture."""
        self.cuda.call("begin capture")
        self.captured = []

    def end_capture(self) -> FakeGraph:
        """As cupy.cuda.Stream.end_capture."""
        work, self.captured = self.captured, None
        self.cuda.call("end capture")
        assert work is not None
        return FakeGraph(self.cuda, work)


class FakeGraph:
    """Captured work."""

    def __init__(self, cuda: Cuda, work: list[Callable[[], None]]) -> None:
        self.cuda, self.work = cuda, work

    def launch(self, stream: FakeStream) -> None:
        """As cupy.cuda.Graph.launch."""
        self.cuda.call("graph launch")
        for work in self.work:
            stream.do(work)


class FakeEvent:
    """cupy.cuda.Event: it tells the host's time."""

    def __init__(self, cuda: Cuda, stream: FakeStream | None = None) -> None:
        self.cuda, self.at = cuda, 0.0
        self._stream, self._number = stream, 0 if stream is None else stream.begun

    @property
    def done(self) -> bool:
        """As cupy.cuda.Event.done."""
        return self._stream is None or self._stream.ended >= self._number

    def happen(self) -> None:
        """Have all done that lies before it."""
        if self._stream is not None:
            self._stream.do_until(self._number)

    def record(self, stream: FakeStream) -> None:
        """As cupy.cuda.Event.record."""
        assert stream.captured is None, "an event of a captured stream tells no time"
        self.cuda.call("event record")
        self._stream, self._number = stream, stream.begun
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """As cupy.cuda.Event.synchronize."""
        self.cuda.call("synchronize event")
        self.happen()
