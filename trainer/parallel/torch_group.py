"""Ranks as processes that torchrun has started, over torch.distributed: the only file that imports it.

torch moves bytes and adds int64; it computes nothing else. Gloo carries everything that lies on hosts. NCCL carries
arrays of GPUs, where each rank has one of its own; with Gloo in its place they go through the host, so that several
ranks can share a card.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol

import numpy as np
import torch
import torch.distributed as dist

from auditkit.errors import AuditkitError, Unavailable, Unsupported
from auditkit.kernels.backend import CudaOps
from auditkit.model.ops import Ops
from trainer.parallel.group import AlreadyTold, Array, Gathering, Pending
from trainer.parallel.memory import HostMemory, Memory, memory_of
from trainer.parallel.place import Place
from trainer.parallel.watch import Times, Watch, first_line

CONNECT = 60.0  # seconds to reach the store; torch tries it twice
_FOREVER = timedelta(days=365)  # torch's own time limits: `Watch` is quicker, and says who is missing
_SLOT = 1 << 12  # bytes that the first round of a gathering carries
_FEW = 1 << 16  # elements of all ranks together that take one collective
_LENGTH = 8  # of them say how many there are
_PAUSES = 0.02, 0.2  # seconds between two looks at what else has happened, while a collective is under way
_POLLS = 2e-5  # seconds between the first two looks at whether a collective has ended
_PORT = "another program may use the port: torchrun --master-port chooses one, MASTER_ADDR the machine of rank 0"
_NETWORK = "GLOO_SOCKET_IFNAME (and NCCL_SOCKET_IFNAME) name the network interface between the machines"
_TELLS = 2, 6  # of torch: before, what goes wrong in NCCL is told to nobody who waits
_NO_NCCL = "--backend gloo moves arrays through the host, and lets ranks share a card"

Move = Callable[[], None]
Ended = Callable[[Any, float], bool]  # whether a collective ends within some seconds; raises where it failed


class Bridge(Protocol):
    """How arrays of a back end become torch's tensors, and what carries those."""

    carrier: Any

    def stream(self) -> AbstractContextManager[Any]: ...
    def tensor(self, array: Array) -> torch.Tensor: ...
    def back(self, tensor: torch.Tensor, array: Array) -> None: ...
    def exchange(self, into: list[torch.Tensor], parts: list[torch.Tensor]) -> tuple[Any, Move]: ...
    def ended(self, work: Any, seconds: float) -> bool: ...
    def stop(self) -> None: ...
    def close(self) -> None: ...


class HostBridge:
    """Arrays by way of the host over Gloo: NumPy's as they are, a device's as copies."""

    def __init__(self, control: Any, memory: Memory) -> None:
        self.carrier, self._memory = control, memory

    def stream(self) -> AbstractContextManager[Any]:
        """Nothing runs beside the host."""
        return contextlib.nullcontext()

    def tensor(self, array: Array) -> torch.Tensor:
        """The array's memory, or a copy of it on the host."""
        return torch.from_numpy(self._memory.host(array).reshape(-1))

    def back(self, tensor: torch.Tensor, array: Array) -> None:
        """Bring a copy on the host back."""
        values = tensor.numpy()
        if not (isinstance(array, np.ndarray) and np.shares_memory(array, values)):
            self._memory.copy(array, self._memory.place(values))

    def exchange(self, into: list[torch.Tensor], parts: list[torch.Tensor]) -> tuple[Any, Move]:
        """All to all, as one array each way."""
        given, found = torch.cat(parts), torch.empty(sum(map(len, into)), dtype=into[0].dtype)
        lengths = [[len(part) for part in side] for side in (into, parts)]
        work = dist.all_to_all_single(found, given, *lengths, group=self.carrier, async_op=True)

        def finish() -> None:
            for target, values in zip(into, found.split(lengths[0]), strict=True):
                target.copy_(values)

        return work, finish

    def ended(self, work: Any, seconds: float) -> bool:
        """Whether a collective ends within so many seconds."""
        return _gloo_ended(work, seconds)

    def stop(self) -> None:
        """Gloo's threads hold nothing up."""

    def close(self) -> None:
        """The carrier is the group's own."""


class CudaBridge:
    """Arrays of this rank's own CUDA device over NCCL, without a copy, in order with all else on its stream."""

    def __init__(self, ops: CudaOps, carrier: Any) -> None:
        self.carrier = carrier
        self._device = torch.device("cuda", ops.device.index)
        self._stream = torch.cuda.ExternalStream(ops.device.stream.ptr, device=self._device)

    def stream(self) -> AbstractContextManager[Any]:
        """The device's stream is torch's current one."""
        current: AbstractContextManager[Any] = torch.cuda.stream(self._stream)
        return current

    def tensor(self, array: Array) -> torch.Tensor:
        """The array's memory."""
        if not array.size:  # it has no address
            return torch.empty(0, dtype={"f": torch.float32, "i": torch.int64}[array.dtype.kind], device=self._device)
        return torch.from_dlpack(array.reshape(-1))

    def back(self, tensor: torch.Tensor, array: Array) -> None:
        """It is there."""

    def exchange(self, into: list[torch.Tensor], parts: list[torch.Tensor]) -> tuple[Any, Move]:
        """All to all, from and to the arrays themselves."""
        return dist.all_to_all(into, parts, group=self.carrier, async_op=True), _nothing

    def ended(self, work: Any, seconds: float) -> bool:
        """Whether a collective ends within so many seconds; what follows on the stream then follows it."""
        return polled(work, seconds)

    def stop(self) -> None:
        """End what is under way: NCCL's kernels would wait for a lost rank, and for them whoever gives memory back."""
        with contextlib.suppress(RuntimeError, AttributeError):  # not every version of torch has it
            self.carrier.abort()

    def close(self) -> None:
        """Give NCCL's connections back, which waits for the other ranks."""
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group(self.carrier)


class TorchGroup(Gathering):
    """This process's part in the group."""

    def __init__(self, control: Any, rank: int, size: int, watch: Watch) -> None:
        """control: a Gloo group of all ranks. Arrays are NumPy's until `carry_by_host` or `carry_by_nccl`."""
        self.rank, self.size, self.watch, self._control = rank, size, watch, control
        self._bridge: Bridge = HostBridge(control, HostMemory())

    def carry_by_host(self, ops: Ops) -> None:
        """Let Gloo carry the arrays of these ops, through the host if they lie on a device."""
        self._bridge = HostBridge(self._control, memory_of(ops))

    def carry_by_nccl(self, ops: CudaOps) -> None:
        """Let NCCL carry the arrays of this rank's device. Raises Unsupported where it cannot, on every rank."""
        if not tells_errors(torch.__version__):
            raise Unsupported(f"NCCL needs torch {_TELLS[0]}.{_TELLS[1]}, this is {torch.__version__}", hint=_NO_NCCL)
        for key in ("TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_ENABLE_MONITORING", "TORCH_NCCL_DUMP_ON_TIMEOUT"):
            os.environ.setdefault(key, "0")  # they would end the process with a trace of their own
        self.watch.waiting(True)
        try:
            torch.cuda.set_device(ops.device.index)
            bridge = CudaBridge(ops, dist.new_group(backend="nccl", timeout=_FOREVER))
            with ops.device.use(), bridge.stream():
                dist.broadcast(bridge.tensor(ops.device.zeros((1,), np.float32)), 0, group=bridge.carrier)
                ops.device.synchronize()  # the first one makes the connections
        except RuntimeError as error:
            self.watch.search()
            raise Unsupported(f"NCCL cannot be used: {first_line(error)}", hint=_NO_NCCL) from error
        finally:
            self.watch.waiting(False)
        self._bridge = bridge

    def reduce_scatter(self, parts: Sequence[Array]) -> Pending:
        """As Group.reduce_scatter: a reduction to each rank, since the parts have any lengths."""
        if self._are_few(parts):
            return self._reduce_few(parts)
        return self._each(parts, lambda tensor, rank: dist.reduce(tensor, rank, **self._options()), {self.rank})

    def all_gather_ranges(self, ranges: Sequence[Array]) -> Pending:
        """As Group.all_gather_ranges: a broadcast from each rank."""
        if self._are_few(ranges):
            return self._gather_few(ranges)
        others = set(range(self.size)) - {self.rank}
        return self._each(ranges, lambda tensor, rank: dist.broadcast(tensor, rank, **self._options()), others)

    def all_to_all(self, parts: Sequence[Array], into: Sequence[Array]) -> Pending:
        """As Group.all_to_all."""
        with self._bridge.stream(), self._explained():
            tensors = [self._bridge.tensor(array) for array in into]
            work, finish = self._bridge.exchange(tensors, [self._bridge.tensor(part) for part in parts])

        def bring() -> None:
            finish()
            for tensor, array in zip(tensors, into, strict=True):
                if array.size:
                    self._bridge.back(tensor, array)

        return _Moves(self, self._bridge.ended, [(work, bring)], (parts, into))

    def gather_bytes(self, data: bytes) -> list[bytes]:
        """As Group.gather_bytes: one round of a fixed size, and another one if anything is longer."""
        rest = _SLOT - _LENGTH
        first = self._gather(len(data).to_bytes(_LENGTH, "little") + data[:rest].ljust(rest, b"\0"))
        lengths = [int.from_bytes(text[:_LENGTH], "little") for text in first]
        longest = max(lengths) - rest
        second = self._gather(data[rest:].ljust(longest, b"\0")) if longest > 0 else [b""] * self.size
        return [(a[_LENGTH:] + b)[:length] for a, b, length in zip(first, second, lengths, strict=True)]

    def doing(self, what: str) -> None:
        """As Group.doing."""
        self.watch.doing(what)

    def close(self) -> None:
        """As Group.close."""
        self.barrier()
        self._bridge.close()
        self.barrier()  # the last wait for others: what a rank does from here on may take as long as it likes
        self.watch.close()
        with contextlib.suppress(RuntimeError):
            dist.destroy_process_group()

    def _are_few(self, arrays: Sequence[Array]) -> bool:
        """Whether one collective over all is quicker than one for each rank: over Gloo, each costs a millisecond."""
        return isinstance(self._bridge, HostBridge) and 0 < sum(array.size for array in arrays) <= _FEW

    def _reduce_few(self, parts: Sequence[Array]) -> Pending:
        """The sum of all parts goes to every rank, which takes its own."""
        with self._explained():
            line = torch.cat([self._bridge.tensor(part) for part in parts])
            work = dist.all_reduce(line, **self._options())

        def bring() -> None:
            own = line.split([part.size for part in parts])[self.rank]
            if len(own):
                self._bridge.back(own, parts[self.rank])

        return _Moves(self, self._bridge.ended, [(work, bring)], parts)

    def _gather_few(self, ranges: Sequence[Array]) -> Pending:
        """All ranges at the length of the longest."""
        own = self._bridge.tensor(ranges[self.rank])
        mine = torch.zeros(max(array.size for array in ranges), dtype=own.dtype)
        mine[: len(own)] = own
        found = [torch.empty_like(mine) for _ in ranges]
        with self._explained():
            work = dist.all_gather(found, mine, **self._options())

        def bring() -> None:
            for rank, (tensor, array) in enumerate(zip(found, ranges, strict=True)):
                if array.size and rank != self.rank:
                    self._bridge.back(tensor[: array.size], array)

        return _Moves(self, self._bridge.ended, [(work, bring)], ranges)

    def _options(self) -> dict[str, Any]:
        return {"group": self._bridge.carrier, "async_op": True}

    def _each(self, arrays: Sequence[Array], move: Callable[[torch.Tensor, int], Any], changed: set[int]) -> Pending:
        """Begin one collective for each array that is not empty, with its rank; those of `changed` come back."""
        moves: list[tuple[Any, Move]] = []
        with self._bridge.stream(), self._explained():
            for rank, array in enumerate(arrays):
                if array.size:
                    tensor = self._bridge.tensor(array)
                    moves.append((move(tensor, rank), self._bringing(tensor, array) if rank in changed else _nothing))
        return _Moves(self, self._bridge.ended, moves, arrays)

    def _bringing(self, tensor: torch.Tensor, array: Array) -> Move:
        return lambda: self._bridge.back(tensor, array)

    def _gather(self, data: bytes) -> list[bytes]:
        mine = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in range(self.size)]
        with self._explained():
            work = dist.all_gather(found, mine, group=self._control, async_op=True)
        self.finish(work)
        return [tensor.numpy().tobytes() for tensor in found]

    def finish(self, work: Any, ended: Ended | None = None) -> None:
        """Wait for one collective, with `ended` or as Gloo does. RankLost or AlreadyTold when it will not end."""
        self.watch.waiting(True)
        try:
            with self._bridge.stream(), self._explained():
                pause = _PAUSES[0]
                while not (ended or _gloo_ended)(work, pause):
                    self.watch.check()
                    pause = min(2 * pause, _PAUSES[1])
        except (AuditkitError, AlreadyTold):
            self._bridge.stop()
            raise
        finally:
            self.watch.waiting(False)

    @contextlib.contextmanager
    def _explained(self) -> Any:
        """Turn what a failed collective raises into what the ranks agree on."""
        try:
            yield
        except AuditkitError:
            raise
        except RuntimeError as error:
            self.watch.suspect(error)


class _Moves:
    """Collectives under way; `held` are the arrays that they read and write."""

    def __init__(self, group: TorchGroup, ended: Ended, moves: list[tuple[Any, Move]], held: Any) -> None:
        self._group, self._ended, self._moves, self._held = group, ended, moves, held

    def wait(self) -> None:
        """Return once all have ended and their results are in place."""
        for work, bring in self._moves:
            self._group.finish(work, self._ended)
            bring()
        self._moves, self._held = [], None


def _gloo_ended(work: Any, seconds: float) -> bool:
    """Whether a collective of Gloo ends within so many seconds. Raises RuntimeError where it failed."""
    try:
        work.wait(timedelta(seconds=seconds))
    except RuntimeError:
        if not work.is_completed():
            return False
        work.wait()
    return True


def polled(work: Any, seconds: float) -> bool:
    """The same for any backend, and with NCCL's works the only way: a wait that is too short would abort all of them.

    Raises RuntimeError where it failed: NCCL's works say so only to a wait that has a limit, and cannot be asked
    (`Work.exception` has no form in Python).
    """
    until, pause = time.monotonic() + seconds, _POLLS
    while not work.is_completed():
        if time.monotonic() > until:
            return False
        time.sleep(pause)
        pause *= 1.2
    work.wait(_FOREVER)  # it has ended, well or not; the current stream now waits for NCCL's
    return True


def tells_errors(version: str) -> bool:
    """Whether this version of torch raises what went wrong with NCCL where `polled` waits."""
    return tuple(map(int, version.split(".")[:2])) >= _TELLS


def _nothing() -> None:
    """What an array needs that does not change here."""


def open_watch(place: Place, times: Times) -> tuple[Watch, Any]:
    """The watch over the other ranks, and the store through which they meet.

    In bounded time, raises Unsupported where this rank cannot offer it, Unavailable where nobody does.
    """
    torch.set_num_threads(1)  # it has nothing to compute
    try:
        stores = [_store(place, is_host=place.holds_store), _store(place)]
    except RuntimeError as error:
        kind = Unsupported if place.holds_store else Unavailable
        where = f"{place.address}:{place.port}"
        raise kind(f"the ranks cannot meet at {where}: {first_line(error)}", hint=_PORT) from error
    prefixed = dist.PrefixStore(f"{place.prefix}/watch", stores[0])
    return Watch(prefixed, place.rank, place.size, times, holds_store=place.holds_store), stores[1]


def open_group(place: Place, watch: Watch, store: Any) -> TorchGroup:
    """Meet the other ranks. In bounded time, raises Unavailable where one is lost, or refuses as one does that has just
    ended, and Unsupported where there is no way to them.
    """
    watch.meet()
    own = dist.PrefixStore(f"{place.prefix}/gloo", store)
    try:
        dist.init_process_group("gloo", store=own, rank=place.rank, world_size=place.size, timeout=_FOREVER)
    except RuntimeError as error:
        watch.search()
        kind = Unavailable if "refused" in str(error) else Unsupported
        raise kind(f"the ranks do not reach each other: {first_line(error)}", hint=_NETWORK) from error
    return TorchGroup(dist.group.WORLD, place.rank, place.size, watch)


def _store(place: Place, *, is_host: bool = False) -> Any:
    return dist.TCPStore(
        place.address,
        place.port,
        place.size,
        is_master=is_host,
        timeout=timedelta(seconds=CONNECT),
        wait_for_workers=False,
    )
