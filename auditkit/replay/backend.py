"""What replays a step: the ops of one device, a number of threads, and the self-test that both must pass first."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from auditkit.errors import AuditkitError, MachineFault, Unsupported, UsageError
from auditkit.formats.recipe import Recipe
from auditkit.kernels import wide_check
from auditkit.kernels.backend import CudaOps
from auditkit.kernels.device import Device
from auditkit.kernels.driver import versions
from auditkit.kernels.host_shelf import HostShelf
from auditkit.model.pieces_step import Room
from auditkit.model.shelf import Shelf
from auditkit.model.state import State
from auditkit.model.step import StepResult, step
from auditkit.native.ops import NativeOps, load
from auditkit.numerics import reference, self_test
from auditkit.numerics.arrays import F32, IntArray
from auditkit.replay import machine
from auditkit.replay.once import Once
from auditkit.replay.processor_backend import Backend, NativeBackend
from auditkit.replay.recorded import Recorder
from auditkit.store.cache import default_dir
from auditkit.store.progress import Progress, Silent

__all__ = ["Backend", "CudaBackend", "NativeBackend", "choose", "kernel_cache"]

T = TypeVar("T")

MAX_THREADS = 1024
PROCESSOR = ("cpu", "native", "numpy")  # devices that are this processor
_CUDA = re.compile(r"cuda(?::([0-9]{1,3}))?")


@dataclass(frozen=True)
class CudaBackend(Backend):
    """The kernels of one CUDA device, driven from one thread."""

    ops: CudaOps
    recorder: Recorder = field(default_factory=Recorder)

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
        """As Backend.step; small steps that are repeated are recorded, if there is room for that."""
        told = None if on_micro_batch is None else Once(on_micro_batch)

        def one() -> tuple[State, StepResult]:
            pieces = room is not None and room.plan.pieces
            gradients = None if pieces else self.recorder.gradients(self.ops, state, recipe)
            self.ops.reset()
            return step(
                state, tokens, recipe, self.ops, on_micro_batch=told, gradients=gradients, work_key=work_key, room=room
            )

        try:
            return self.on_device(one)
        except Unsupported:
            if not self.recorder.give_up():
                raise
        return self.on_device(one)  # it has fitted without the recording

    def reset(self) -> None:
        """As Backend.reset; called inside `on_device`."""
        self.ops.reset()

    def on_device(self, work: Callable[[], T]) -> T:
        """As Backend.on_device. After an error all that it allocated is given back."""
        try:
            with self.ops.device.use():
                return work()
        except AuditkitError as error:
            # Tracebacks hold frames, and they arrays: a second replay would not find room while the error is kept.
            kept = error.with_traceback(None)
            kept.__cause__ = kept.__context__ = None
        self.ops.device.release()
        try:
            raise kept
        finally:
            del kept  # it now holds this frame

    def prepare(self, progress: Progress) -> None:
        """As Backend.prepare: compile what is not kept yet."""
        self.ops.device.prepare(machine.processors(), progress)

    def self_test(self) -> None:
        """As Backend.self_test: this thread's arithmetic, and the known and wide answers of the device."""

        def one() -> None:
            self.ops.reset()
            self_test.run(self.ops, self.ops.place)
            wide_check.check(self.ops)

        self.prepare(Silent())
        self.on_device(one)

    @property
    def answers_in_between(self) -> bool:
        """As Backend: yes, for memory and kernels are not this process's own."""
        return True

    def known_answer(self, name: str) -> None:
        """As Backend.known_answer; what the step has left in the status word is there again afterwards."""

        def one() -> None:
            left = self.ops.place(self.ops.host(self.ops.status))
            self.ops.reset()
            try:
                self_test.check_known_answer(name, self.ops, self.ops.place)
            finally:
                self.ops.device.copy(self.ops.status, left)

        self.on_device(one)

    def forget(self) -> None:
        """As Backend.forget; recordings and tables on the device, too. Page-locked memory is held until `release`."""
        super().forget()
        self.on_device(self.ops.forget)
        self.recorder.forget()
        self.on_device(lambda: self.ops.device.set_aside(machine.free_memory))

    def release(self) -> None:
        """As Backend.release. Nothing happens on a device that is lost."""
        self.ops.device.release_aside()

    def describe(self) -> dict[str, str]:
        """Architecture, driver and CuPy."""
        return versions(self.ops.device)

    def place(self, state: State) -> State:
        """The state on the device."""
        return self.on_device(lambda: _moved(state, self.ops.place))

    def waiting(self, array: F32) -> F32:
        """As Backend: a copy in page-locked memory."""
        held = self.ops.device.transfers.host_array(array.shape, array.dtype)
        held[...] = array
        return held

    def host_shelf(self, most: int) -> Shelf:
        """As Backend."""
        return HostShelf(self.ops.device, most)

    def host(self, state: State) -> State:
        """The state as NumPy arrays."""
        return self.on_device(lambda: _moved(state, self.ops.host))

    def let_go(self, state: State) -> None:
        """As Backend: the state is empty afterwards, whoever holds it."""
        for role in (state.params, state.adam_m, state.adam_v):
            if isinstance(role, dict):
                role.clear()
        self.on_device(self.ops.device.transfers.tidy)  # which has what it copied last


def _moved(state: State, move: Callable[[Any], Any]) -> State:
    roles = (state.params, state.adam_m, state.adam_v)
    return State(state.step, *({name: move(array) for name, array in role.items()} for role in roles))


def choose(device: str = "auto", threads: int | None = None, *, cache: Path | None = None) -> Backend:
    """The back end for `device` with `threads` workers on a CPU, by default one for each processor.

    device: "cpu", in C once that is compiled (auditkit/native), else in NumPy; "native", which compiles it and never
    falls back (but a second replay before a mismatch is always NumPy's); "numpy", the reference alone; "cuda" or
    "cuda:N", which never falls back; "auto" for the first CUDA device that works, else the CPU. cache: where compiled
    kernels are kept, None for the folder of the user.
    Unsupported: a device that cannot be used, with the remedy. UsageError: a device or number of threads that is none.
    """
    if threads is None:
        threads = min(machine.processors(), MAX_THREADS)
    if not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"threads {threads} is outside 1..{MAX_THREADS}")
    if device in PROCESSOR:
        return _cpu(device, threads, cache, "asked for")
    if device == "auto":
        try:
            return _cuda(0, cache, "chosen by auto")
        except (Unsupported, MachineFault) as error:  # it does not open: nothing was computed yet
            return _cpu("cpu", threads, cache, f"chosen by auto: {error.message}")
    found = _CUDA.fullmatch(device)
    if found is None:
        raise UsageError(f"there is no device {device!r}", hint="auto, cpu, native, numpy, cuda or cuda:N")
    return _cuda(int(found[1] or 0), cache, "asked for")


def _cpu(device: str, threads: int, cache: Path | None, chosen: str) -> Backend:
    native: NativeOps | None = None
    if device != "numpy":
        try:
            native = load(cache or kernel_cache(), compile_it=device == "native")
        except Unsupported:
            if device == "native":
                raise
    if native is None:
        return Backend(reference, threads, "cpu", chosen)
    return NativeBackend(native, threads, "cpu", chosen, strict=device == "native")  # type: ignore[arg-type]


def _cuda(index: int, cache: Path | None, chosen: str) -> Backend:
    device = Device(index, cache=cache or kernel_cache())
    return CudaBackend(CudaOps(device), 1, f"cuda:{index} ({device.name})", chosen)


def kernel_cache() -> Path:
    """Where compiled kernels are kept by default."""
    return default_dir() / "kernels"
