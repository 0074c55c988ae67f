"""Work in several processes, with the results in the order of the jobs: the same bytes for any number of processes.

Jobs and results are bytes, written to pipes as they are. One thread here waits for each process, so that a process has
its next job at once, and no more than a few jobs a process are in memory.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from auditkit import errors
from auditkit.errors import AuditkitError, MachineFault, Unsupported
from auditkit.formats import canonical
from auditkit.store.children import shielded_from_interrupts

Tag = TypeVar("Tag")
Setup = TypeVar("Setup")
Work = Callable[[bytes], bytes]

_AHEAD = 2  # jobs a process that are taken from the source before the first result is
_LEAVE_SECONDS = 5.0
_DONE, _REFUSED = b"+", b"-"
_MOST_TEXT = 1 << 20


def ordered(
    make: Callable[[Setup], Work], setup: Setup, jobs: Iterable[tuple[bytes, Tag]], processes: int
) -> Generator[tuple[bytes, Tag], None, None]:
    """`make(setup)` applied to each job, in order, each result with the tag of its job.

    `make` is a function of a module and `setup` a plain value, since each process starts by importing them. With one
    process it is this one. Close the iterator to stop the processes. Raises what the work raises of AuditkitError,
    MachineFault where a process dies.
    """
    if processes == 1:
        work = make(setup)
        for job, tag in jobs:
            yield work(job), tag
        return
    team = _Team(make, setup, processes)
    try:
        yield from team.run(jobs)
        team.leave()
    finally:
        team.stop()


class _Team:
    def __init__(self, make: Callable[[Setup], Work], setup: Setup, processes: int) -> None:
        self._free: SimpleQueue[tuple[BaseProcess, Connection]] = SimpleQueue()
        self._members: list[tuple[BaseProcess, Connection]] = []
        self._threads = ThreadPoolExecutor(processes, thread_name_prefix="pool")
        self._ahead = _AHEAD * processes
        context = get_context("spawn")  # a fork of a process with threads may hang, and Windows has none
        try:
            for number in range(processes):
                here, there = context.Pipe()
                process = context.Process(
                    target=_serve, args=(there, make, setup), name=f"worker {number}", daemon=True
                )
                with shielded_from_interrupts():
                    process.start()
                there.close()  # or the end of that process would not close the pipe
                self._members.append((process, here))
                self._free.put((process, here))
        except BaseException:
            self.stop()
            raise

    def run(self, jobs: Iterable[tuple[bytes, Tag]]) -> Iterator[tuple[bytes, Tag]]:
        waiting: deque[tuple[Future[bytes], Tag]] = deque()
        for job, tag in jobs:
            waiting.append((self._threads.submit(self._ask, job), tag))
            if len(waiting) > self._ahead:
                yield self._first(waiting)
        while waiting:
            yield self._first(waiting)

    def leave(self) -> None:
        """Let the processes end by themselves: they see that there is nothing more to read."""
        for process, connection in self._members:
            connection.close()
            process.join(_LEAVE_SECONDS)

    def stop(self) -> None:
        """End what has not ended, so that no thread waits for it and none of it is left."""
        for process, _ in self._members:
            process.kill()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for process, connection in self._members:
            process.join(_LEAVE_SECONDS)
            connection.close()

    @staticmethod
    def _first(waiting: deque[tuple[Future[bytes], Tag]]) -> tuple[bytes, Tag]:
        future, tag = waiting.popleft()
        return future.result(), tag

    def _ask(self, job: bytes) -> bytes:
        process, connection = self._free.get()
        try:
            connection.send_bytes(job)
            answer = connection.recv_bytes()
        except (EOFError, OSError) as error:
            process.join(_LEAVE_SECONDS)
            raise _lost(process) from error
        finally:
            self._free.put((process, connection))  # a lost one as well: whoever asks it next must not wait
        if answer[:1] == _DONE:
            return answer[1:]
        raise _refusal(answer[1:])


def _lost(process: BaseProcess) -> MachineFault:
    code = process.exitcode
    how = f"by signal {-code}" if code is not None and code < 0 else f"with exit code {code}"
    return MachineFault(
        f"{process.name} ended {how} before its work was done",
        hint="out of memory? fewer --processes or a smaller --max-document need less; nothing was written",
    )


def _serve(connection: Connection, make: Callable[[Setup], Work], setup: Setup) -> None:
    """What a process does until there is nothing more to read."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # where it could not be blocked; the first process ends the others
    Thread(target=_end_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = (
        "false"  # as many threads as processes are asked for; no result depends on it
    )
    work: Work | None = None
    while True:
        try:
            job = connection.recv_bytes()
        except (EOFError, OSError):
            return
        try:
            work = work or make(setup)
            answer = _DONE + work(job)
        except AuditkitError as error:
            answer = _REFUSED + _told(type(error).__name__, error.message, error.hint)
        except MemoryError:
            answer = _REFUSED + _told(Unsupported.__name__, "out of memory", "fewer --processes need less")
        except BaseException:
            traceback.print_exc()
            raise
        connection.send_bytes(answer)


def _end_with_parent() -> None:
    """Do not go on with a job when the process that asked for it is gone, however it went."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _told(kind: str, message: str, hint: str) -> bytes:
    return canonical.dumps({"hint": hint, "kind": kind, "message": message}, what="error")


def _refusal(data: bytes) -> AuditkitError:
    value: Any = canonical.loads(data, what="error", limit=_MOST_TEXT)
    kind: type[AuditkitError] = getattr(errors, value["kind"], AuditkitError)
    return kind(value["message"], hint=value["hint"])
