"""What replays a step: the ops of one device, a number of threads, and the self-test that both must pass first."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from auditkit.errors import Unsupported, UsageError
from auditkit.formats.recipe import Recipe
from auditkit.model.ops import Ops
from auditkit.model.state import State
from auditkit.model.step import StepResult, step
from auditkit.numerics import reference, self_test
from auditkit.numerics.arrays import IntArray
from auditkit.replay import machine

DEVICES = ("auto", "cpu")
MAX_THREADS = 1024


@dataclass(frozen=True)
class Backend:
    """Ops and threads; `device` is the ops' name for users, `chosen` says who chose it."""

    ops: Ops
    threads: int
    device: str
    chosen: str = "asked for"

    def self_test(self) -> None:
        """Run the arithmetic's self-test here and in every worker at the same time. MachineFault: one of them failed.

        Rounding mode and flush-to-zero are settings of a thread. Most systems hand them down to the threads that it
        starts, Windows does not: so the thread that calls, which computes too, and workers like those of the step.
        """
        self_test.run(self.ops)
        barrier = threading.Barrier(self.threads)

        def one(_worker: int) -> None:
            barrier.wait()  # or a single quick worker would do all the tests
            self_test.run(self.ops)

        with ThreadPoolExecutor(self.threads) as pool:
            try:
                results = [pool.submit(one, worker) for worker in range(self.threads)]
            except RuntimeError as error:
                barrier.abort()
                raise Unsupported(
                    f"{self.threads} threads cannot be started here: {error}", hint="--threads 1"
                ) from error
            for result in results:
                result.result()

    def step(
        self, state: State, tokens: IntArray, recipe: Recipe, *, on_micro_batch: Callable[[int], None] | None = None
    ) -> tuple[State, StepResult]:
        """The one training step (auditkit/model/step.py) on this back end."""
        return step(state, tokens, recipe, self.ops, threads=self.threads, on_micro_batch=on_micro_batch)


def choose(device: str = "auto", threads: int | None = None) -> Backend:
    """The back end for `device` ("auto" or "cpu") with `threads` workers, by default one for each processor.

    Unsupported: another device. UsageError: a number of threads outside 1..1024.
    """
    if device not in DEVICES:
        raise Unsupported(
            f"device {device!r} is not supported by this version",
            hint="--device cpu replays on any machine and gives the same bits",
        )
    if threads is None:
        threads = min(machine.processors(), MAX_THREADS)
    if not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"threads {threads} is outside 1..{MAX_THREADS}")
    return Backend(reference, threads, "cpu", "chosen by auto" if device == "auto" else "asked for")
