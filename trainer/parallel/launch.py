"""A training under torchrun: rank 0 leads, writes and talks; the others follow. All end together, with one message."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from auditkit.errors import AuditkitError, Unsupported, UsageError
from auditkit.formats.recipe import Recipe
from auditkit.formats.timeline import Segment
from auditkit.kernels.backend import CudaOps
from auditkit.kernels.device import device_count
from auditkit.replay.backend import Backend, choose
from auditkit.verdict import Verdict
from trainer.disk import explain
from trainer.log import read_rows
from trainer.loop import Training
from trainer.parallel.group import AlreadyTold, Group
from trainer.parallel.place import Place
from trainer.parallel.runner import NoLog, Ranks
from trainer.parallel.torch_group import TorchGroup, open_group, open_watch
from trainer.parallel.watch import Times, Watch, leave, tell
from trainer.segments import Course
from trainer.skips import Skips
from trainer.states import StoredState
from trainer.stop import StopRequest, watch_signals
from trainer.work import Settings, Work

if TYPE_CHECKING:
    from trainer.run import Ended, Machine, Open

_END = b"end"  # what rank 0 says when there is no segment left to train
_PATIENCE = 3  # signs of life that another rank has time to tell the same error before it is told as this rank's own


def on_ranks(place: Place, machine: Machine, folder: Path, lead: Callable[[Open], Ended]) -> Ended:
    """Run `lead` on rank 0, and on the others what follows it; the exit code, and on rank 0 the summary."""
    with joined(place, Times(wait=machine.wait)) as group:
        backend = open_backend(place, machine, group)
        if group.rank == 0:
            ended = lead(lambda course, segment: _leading(group, backend, course, segment, machine.check))
            group.gather_bytes(_END)
            return ended
        return _following(group, backend, Work(folder), Skips(machine.max_skips))


def _leading(group: Group, backend: Backend, course: Course, segment: Segment, check: int) -> Ranks:
    runner = Ranks(group, backend, segment.recipe, segment.cursor, check_every=check)
    declared = (course.stages[0].recipe.encode(), course.own.encode(), course.encode_later())
    group.gather_bytes(b"\n".join((b"%d" % segment.number, b"%d" % check, *declared)))
    return runner


def _following(group: Group, backend: Backend, work: Work, skips: Skips) -> Ended:
    """What a rank does while rank 0 runs `trainer.run`: one segment after the other."""
    from trainer.run import exit_code

    with watch_signals(tells=False) as stop:
        while (said := group.gather_bytes(b"")[0]) != _END:
            number, check, recipe, own, later = said.split(b"\n")
            course = Course.parse(work, Recipe.parse(recipe), Settings.parse(own), later)
            segment = course.timeline.segments[int(number)]
            _follow(group, backend, course, segment, int(check), stop, skips)
        return exit_code(stop), ""


def _follow(
    group: Group, backend: Backend, course: Course, segment: Segment, check: int, stop: StopRequest, skips: Skips
) -> None:
    from trainer.run import first_state

    def stored(step: int) -> StoredState:
        found = StoredState.open(course.work.state(step))
        course.check_state(found, step)
        return found

    runner = Ranks(group, backend, segment.recipe, segment.cursor, check_every=check)
    training = Training(course.work, course.settings_of(segment), course.batches(segment), runner, skips=skips)
    runner.self_test()
    state, is_new = runner.follow(lambda: first_state(segment.recipe), stored)
    skips.recall(segment.recipe, [] if is_new else read_rows(course.work.folder, state.step)[segment.start :])
    if is_new:
        training.save(state, NoLog())
        runner.settle()
    training.train(state, NoLog(), stop)


def open_backend(place: Place, machine: Machine, group: TorchGroup) -> Backend:
    """This rank's device, and what carries its arrays. Raises UsageError or Unsupported."""
    cards, device = _cards(machine.device), machine.device
    kinds = set(group.gather_bytes(b"gpu" if cards else b"cpu"))
    by_nccl = machine.backend == "nccl" or (machine.backend == "" and kinds == {b"gpu"})
    if by_nccl and kinds != {b"gpu"}:
        raise UsageError("NCCL carries arrays of GPUs only", hint="--device cuda, or --backend gloo")
    if machine.backend == "" and len(kinds) > 1:
        raise UsageError("some ranks have a GPU and some have none", hint="--backend gloo, or --device cpu")
    if by_nccl and place.local_size > (1 if ":" in device else cards):
        raise UsageError(
            f"{place.local_size} ranks on {1 if ':' in device else cards} GPUs: NCCL needs one for each",
            hint="--backend gloo lets ranks share a GPU",
        )
    if device in ("auto", "cuda"):
        device = f"cuda:{place.local_rank % cards}" if cards else "cpu"
    backend = choose(device, machine.threads or max(1, (os.cpu_count() or 1) // place.local_size))
    if by_nccl and isinstance(backend.ops, CudaOps):
        group.carry_by_nccl(backend.ops)
    else:
        group.carry_by_host(backend.ops)
    return backend


def _cards(device: str) -> int:
    """CUDA devices that this process can use, if `device` asks for one. Raises Unsupported where it insists on one."""
    if device == "auto":
        with contextlib.suppress(Unsupported):
            return device_count()
        return 0
    cards = device_count() if device.startswith("cuda") else 0
    if device == "cuda" and not cards:
        raise Unsupported("no CUDA device is visible", hint="check nvidia-smi and the driver, or use --device cpu")
    return cards


@contextlib.contextmanager
def joined(place: Place, times: Times) -> Iterator[TorchGroup]:
    """The group of all ranks. An error ends all of them, is told by one, and does not return."""
    try:
        watch, store = open_watch(place, times)
    except AuditkitError as error:
        tell(f"rank {place.rank}: {error.message}", error.hint)
        leave(error.verdict.code)
    try:
        group = open_group(place, watch, store)
        yield group
        group.close()
    except AlreadyTold:
        watch.leave()
    except KeyboardInterrupt:
        _end(watch, place.rank, "interrupted", "", Verdict.INTERRUPTED.code)
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks must not wait for this one
        found = _known(error)
        if found is None:
            traceback.print_exc()
            _end(watch, place.rank, "internal error, please report the lines above", "", Verdict.INTERNAL.code)
        _end(watch, place.rank, found.message, found.hint, found.verdict.code)


def _known(error: Exception) -> AuditkitError | None:
    if isinstance(error, OSError):
        return explain(error)
    if isinstance(error, MemoryError):
        return Unsupported("out of memory")
    return error if isinstance(error, AuditkitError) else None


def _end(watch: Watch, rank: int, message: str, hint: str, code: int) -> NoReturn:
    """End all ranks. Rank 0 speaks for all; another one only if it alone has something to say."""
    if rank:
        watch.pause(_PATIENCE * watch.times.beat)
    about = f"rank {rank}: " if rank and not message.startswith("rank") else ""
    if watch.end(about + message, hint, code):
        tell(about + message, hint)
    watch.leave()
