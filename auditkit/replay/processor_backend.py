"""What every back end has, as a processor does it: in NumPy, or by the ops in C."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from auditkit.errors import MachineFault, Unsupported
from auditkit.formats.recipe import Recipe
from auditkit.model import kept
from auditkit.model.ops import Ops
from auditkit.model.part import PartResult, part
from auditkit.model.pieces_step import Room
from auditkit.model.shelf import InMemory, Shelf
from auditkit.model.state import State
from auditkit.model.step import StepResult, step
from auditkit.native.ops import NativeOps
from auditkit.numerics import self_test, wide_answers
from auditkit.numerics.arrays import F32, IntArray
from auditkit.store.progress import Progress

T = TypeVar("T")


@dataclass(frozen=True)
class Backend:
    """Ops and threads; `device` is the ops' name for users, `chosen` says who chose it."""

    ops: Ops
    threads: int
    device: str
    chosen: str = "asked for"
    wide: ClassVar[tuple[str, ...]] = tuple(wide_answers.DOTS)  # of the self-test: a BLAS has a way for each shape

    @property
    def holds(self) -> bool:
        """Whether states are in memory; else their tensors are read when they are asked for."""
        return True

    def prepare(self, progress: Progress) -> None:
        """Do what takes a while the first time only: nothing on a processor."""

    def self_test(self) -> None:
        """Run the arithmetic's self-test here and in every worker at the same time. MachineFault: one of them failed.

        Rounding mode and flush-to-zero are settings of a thread. Most systems hand them down to the threads that it
        starts, Windows does not: so the thread that calls, which computes too, and workers like those of the step.
        """
        self_test.run(self.ops)
        for name in self.wide:
            self_test.check_wide_answer(name, self.ops)
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

    @property
    def answers_in_between(self) -> bool:
        """Whether known answers are asked for between micro-batches by default."""
        return False

    def repeats(self, recipe: Recipe) -> bool:
        """Whether two replays of a step without a result look for it in the same places, one after the other."""
        return True

    def known_answer(self, name: str) -> None:
        """Ask for the known answers of one op, in the middle of a step. MachineFault: they are wrong."""
        self_test.check_known_answer(name, self.ops)

    def forget(self) -> None:
        """Make anew, when it is needed, all that is kept from one step to the next."""
        kept.forget()

    @contextmanager
    def anew(self) -> Iterator[Backend]:
        """The back end of a second replay inside: `forget`, and what is held until then is given back at the end."""
        self.forget()
        try:
            yield self.second()
        finally:
            self.release()

    def second(self) -> Backend:
        """What takes a second replay, with the main memory that the first has left; by default this back end."""
        return self

    def release(self) -> None:
        """Give back main memory that is kept for the next step."""

    def describe(self) -> dict[str, str]:
        """What a report says of the device besides its name; nothing for a processor, which every report names."""
        return {}

    def reset(self) -> None:
        """Forget what an earlier step left behind that ended before its time; to be called before ops are."""

    def on_device(self, work: Callable[[], T]) -> T:
        """What `work` returns; the device of this back end is the current one meanwhile."""
        return work()

    def place(self, state: State) -> State:
        """The state with its arrays where this back end computes."""
        return state

    def waiting(self, array: F32) -> F32:
        """A host array where it waits for `ops.bring`."""
        return array

    def host_shelf(self, most: int) -> Shelf:
        """A shelf in main memory, for which `most` bytes may wait where this back end computes."""
        return InMemory()

    def host(self, state: State) -> State:
        """The state with its arrays as NumPy arrays."""
        return state

    def let_go(self, state: State) -> None:
        """Give back the memory of a placed state that nobody uses any more, where there is little of it: not here."""

    def step(
        self,
        state: State,
        tokens: IntArray,
        recipe: Recipe,
        *,
        on_micro_batch: Callable[[int], None] | None = None,
        work_key: bytes | None = None,
        room: Room | None = None,
    ) -> tuple[State, StepResult]:
        """The one training step (auditkit/model/step.py) on this back end, by default with all in memory."""
        self.reset()
        return step(
            state, tokens, recipe, self.ops, threads=self.threads, on_micro_batch=on_micro_batch, work_key=work_key,
            room=room,
        )  # fmt: skip

    def part(
        self,
        state: State,
        tokens: IntArray,
        chosen: Sequence[int],
        recipe: Recipe,
        *,
        on_micro_batch: Callable[[int], None] | None = None,
        work_key: bytes | None = None,
    ) -> PartResult:
        """Some micro-batches of the step (auditkit/model/part.py) on this back end."""
        ops, threads = self.ops, self.threads

        def one() -> PartResult:
            self.reset()
            return part(
                state, tokens, chosen, recipe, ops, threads=threads, on_micro_batch=on_micro_batch, work_key=work_key
            )

        return self.on_device(one)


@dataclass(frozen=True)
class NativeBackend(Backend):
    """The ops in C of this processor; the reference takes their place where they are not to be believed.

    strict: the user has asked for them, so that the self-test does not fall back.
    """

    strict: bool = False
    wide: ClassVar[tuple[str, ...]] = tuple(wide_answers.PROBES)

    def self_test(self) -> None:
        """As Backend.self_test. C ops that fail it are done without, unless strict: the reference must pass."""
        try:
            super().self_test()
        except MachineFault:
            if self.strict:
                raise
            self._native.forget()
            super().self_test()

    def reset(self) -> None:
        """As Backend.reset; a replay begins."""
        self._native.begin()

    def forget(self) -> None:
        """As Backend.forget; from here on the reference computes, so that a second replay uses no line of C again."""
        super().forget()
        self._native.forget()

    def describe(self) -> dict[str, str]:
        """Which ops compute."""
        if self._native.name == "native":
            return {"ops": f"C, library {self._native.origin}"}
        if self._native.computed:
            return {"ops": f"NumPy; in the first replay C, library {self._native.origin}"}
        return {}

    @property
    def _native(self) -> NativeOps:
        assert isinstance(self.ops, NativeOps)
        return self.ops
