"""Streams, events and graphs of the stand-in for CuPy (tests/kernels/fake_cupy.py): all is done at once."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.kernels.fake_cuda import Cuda


class FakeStream:
    """A stream; what is launched on it runs at once, or is kept while it is captured."""

    def __init__(self, cuda: Cuda, *, non_blocking: bool = False) -> None:
        cuda.call("stream create")
        self.cuda, self.index, self.ptr = cuda, cuda.current, id(self)
        self.non_blocking = non_blocking
        self.captured: list[Callable[[], None]] | None = None

    def __enter__(self) -> None:
        self.cuda.check_device("a stream", self.index)

    def __exit__(self, *_: object) -> None:
        pass

    def do(self, work: Callable[[], None]) -> None:
        """Work in the stream's order."""
        self.cuda.check_device("a stream", self.index)
        if self.captured is None:
            work()
        else:
            self.captured.append(work)

    def synchronize(self) -> None:
        """Wait: all is done."""
        self.cuda.call("synchronize")

    def record(self) -> FakeEvent:
        """As cupy.cuda.Stream.record."""
        self.cuda.check_device("a stream", self.index)
        self.cuda.call("record")
        return FakeEvent(self.cuda)

    def wait_event(self, event: FakeEvent) -> None:
        """As cupy.cuda.Stream.wait_event."""
        self.cuda.check_device("a stream", self.index)
        self.cuda.call("wait")

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
    """cupy.cuda.Event: all is done at once, so it tells the host's time."""

    done = True

    def __init__(self, cuda: Cuda) -> None:
        self.cuda, self.at = cuda, 0.0

    def record(self, stream: FakeStream) -> None:
        """As cupy.cuda.Event.record."""
        assert stream.captured is None, "an event of a captured stream tells no time"
        self.cuda.call("event record")
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        """As cupy.cuda.Event.synchronize."""
        self.cuda.call("synchronize event")
