"""What a rank does in tests of the group itself: real processes, real sockets."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from auditkit.formats.recipe import Recipe
from auditkit.replay.backend import Backend
from tests.trainer.parallel.states import Record, steps_of
from trainer.parallel.launch import joined, open_backend
from trainer.parallel.memory import Memory, memory_of
from trainer.parallel.place import launched
from trainer.parallel.torch_group import CudaBridge, TorchGroup, polled
from trainer.parallel.watch import Times
from trainer.run import Machine


def texts(records: list[Record]) -> list[Any]:
    """Records as JSON: the state root, and all that the step's record says."""
    return [
        [root, result.gradient, [leaf.encode().hex() for leaf in result.leaves]]
        + [np.float32(number).tobytes().hex() for number in (result.loss, result.norm, result.lr)]
        for root, result in records
    ]


def train_in_parts(folder: str) -> int:
    """Train every recipe of the folder's jobs.json on the first ranks alone, as many as the job says."""
    place = launched()
    assert place is not None
    jobs = json.loads((Path(folder) / "jobs.json").read_text(encoding="ascii"))
    with joined(place, Times()) as group:
        groups = {size: part(group, size) for size in sorted({job["size"] for job in jobs})}
        for number, job in enumerate(jobs):
            if group.rank < job["size"]:
                recipe = Recipe.parse(job["recipe"].encode("utf-8"))
                records, _ = steps_of(groups[job["size"]], recipe, job["steps"], bucket=job["bucket"])
                file = Path(folder) / f"job-{number}-rank-{group.rank}.json"
                file.write_text(json.dumps(texts(records)), encoding="ascii")
        group.barrier()
    return 0


def part(group: TorchGroup, size: int) -> TorchGroup:
    """The group of the first ranks; all ranks must call this."""
    made = dist.new_group(list(range(size)), backend="gloo")
    return TorchGroup(made, group.rank, size, group.watch)


def train_on_cards(folder: str, device: str, backend: str) -> int:
    """Train every recipe of the folder's jobs.json on this rank's device."""
    with on_device(device, backend) as (group, made):
        _train(group, made, Path(folder))
    return 0


def add_and_train(folder: str, device: str, backend: str) -> int:
    """As `train_on_cards`, once integers were added in every way that a network has."""
    with on_device(device, backend) as (group, made):
        made.on_device(lambda: _add(group, memory_of(made.ops)))
        _train(group, made, Path(folder))
    return 0


def _train(group: TorchGroup, made: Backend, folder: Path) -> None:
    for number, job in enumerate(json.loads((folder / "jobs.json").read_text(encoding="ascii"))):
        recipe = Recipe.parse(job["recipe"].encode("utf-8"))
        print("began", number, flush=True)
        records, _ = made.on_device(
            lambda recipe=recipe, job=job: steps_of(group, recipe, job["steps"], ops=made.ops, bucket=job["bucket"])
        )
        file = folder / f"job-{number}-rank-{group.rank}.json"
        file.write_text(json.dumps(texts(records)), encoding="ascii")


def _add(group: TorchGroup, memory: Memory) -> None:
    """Integers of the whole range of int64, by the group and by collectives that it does without: as NumPy adds."""
    each, bridge = 1 << 20, group._bridge
    given = [
        np.random.default_rng(rank).integers(-(1 << 63), (1 << 63) - 1, each * group.size, np.int64, endpoint=True)
        for rank in range(group.size)
    ]
    want = np.add.reduce(given)  # modulo 2^64
    own = slice(each * group.rank, each * (group.rank + 1))
    line = memory.place(given[group.rank].copy())
    group.reduce_scatter([line[each * rank : each * (rank + 1)] for rank in range(group.size)]).wait()
    assert np.array_equal(memory.host(line[own]), want[own])
    with bridge.stream():
        tensor = bridge.tensor(memory.place(given[group.rank].copy()))
        part = torch.empty_like(tensor[own])
        options: dict[str, Any] = {"group": bridge.carrier, "async_op": True}
        group.finish(dist.reduce_scatter_tensor(part, tensor, **options), bridge.ended)
        group.finish(dist.all_reduce(tensor, **options), bridge.ended)
        assert np.array_equal(part.cpu().numpy(), want[own])
        assert np.array_equal(tensor.cpu().numpy(), want)


@contextlib.contextmanager
def on_device(device: str, backend: str) -> Iterator[tuple[TorchGroup, Backend]]:
    """The group, and this rank's device with what carries its arrays."""
    place = launched()
    assert place is not None
    with joined(place, Times(suspicion=1.0)) as group:
        yield group, open_backend(place, Machine(1, device, backend), group)


def call_everything(device: str = "cpu", backend: str = "") -> int:
    """Call every method of the group, and look at what it gives."""
    with on_device(device, backend) as (group, made):
        for length in (0, 1, 4087, 4088, 4089, 100_000):
            data = bytes([group.rank]) * (length * (group.rank + 1))
            assert group.gather_bytes(data) == [bytes([q]) * (length * (q + 1)) for q in range(group.size)]
        assert group.largest((-1) ** group.rank * (group.rank + 1) << 70) in (group.size << 70, group.size - 1 << 70)
        made.on_device(lambda: _carry(group, memory_of(made.ops)))
        group.barrier()
    return 0


def _carry(group: TorchGroup, memory: Memory) -> None:
    rank, size, place = group.rank, group.size, memory.place

    def values(arrays: list[Any]) -> list[list[Any]]:
        return [memory.host(array).tolist() for array in arrays]

    lengths = [3, 0, 5, 1, 2, 7, 4, 6][:size]
    parts = [place(np.arange(n, dtype=np.int64) + (1 << 62) + rank) for n in lengths]
    group.reduce_scatter(parts).wait()
    wrapped = (sum((1 << 62) + q for q in range(size)) + (1 << 63)) % (1 << 64) - (1 << 63)
    assert values(parts)[rank] == [wrapped + size * i for i in range(lengths[rank])]
    ranges = [place(np.full(n, rank if q == rank else -1, np.float32)) for q, n in enumerate(lengths)]
    group.all_gather_ranges(ranges).wait()
    assert values(ranges) == [[q] * n for q, n in enumerate(lengths)]
    for dtype in (np.int64, np.float32):
        into = [memory.zeros(q + rank, dtype) for q in range(size)]
        group.all_to_all([place(np.full(rank + q, 10 * rank + q, dtype)) for q in range(size)], into).wait()
        assert values(into) == [[10 * q + rank] * (q + rank) for q in range(size)]
    line = place(np.ones(1000 * size, np.int64))
    begun = [group.reduce_scatter([line[1000 * q : 1000 * q + 1000] for q in range(size)]) for _ in range(1)]
    begun += [group.reduce_scatter([place(np.ones(100, np.int64)) for _ in range(size)]) for _ in range(5)]
    for pending in begun:
        pending.wait()
    assert set(values([line[1000 * rank : 1000 * rank + 1000]])[0]) == {size}


def part_slowly(slow: str, what: str) -> int:
    """Part; one rank takes longer over its connections, or over what carries arrays, than it may be missing."""
    place = launched()
    assert place is not None
    with joined(place, Times(beat=0.1, silence=1.0, suspicion=0.5, leave=0.5)) as group:
        late = lambda end: lambda *of: (print("late", time.sleep(4), flush=True), end(*of))  # noqa: E731
        if what == "carrier":
            group._bridge = bridge = CudaBridge.__new__(CudaBridge)
            bridge.carrier = dist.new_group(backend="gloo")  # in place of NCCL's
            bridge.stream = contextlib.nullcontext  # type: ignore[method-assign]
            bridge.close = late(bridge.close) if group.rank == int(slow) else bridge.close  # type: ignore[method-assign]
        elif group.rank == int(slow):
            dist.destroy_process_group = late(dist.destroy_process_group)
    return 0


def poll() -> int:
    """Wait for works of Gloo as those of NCCL are waited for: one that ends, late, and one that fails."""
    place = launched()
    assert place is not None
    with joined(place, Times(beat=0.1, silence=4.0, suspicion=1.0, leave=2.0)) as group:
        other, ones = dist.new_group(backend="gloo"), torch.ones(3, dtype=torch.int64)
        if group.rank:
            group.barrier()
        work = dist.all_reduce(ones, group=other, async_op=True)
        if group.rank == 0:
            assert not polled(work, 0.05)  # nobody else has begun it
            group.barrier()
        group.finish(work, polled)
        assert ones.tolist() == [group.size] * 3
        group.barrier()
        if group.rank == 1:
            os._exit(0)
        group._bridge.stop = lambda: print("stopped", flush=True)  # type: ignore[method-assign]
        group.finish(dist.all_reduce(ones, group=other, async_op=True), polled)
    return 0
