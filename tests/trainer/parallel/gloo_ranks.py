"""What a rank does in tests of the group itself: real processes, real sockets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch.distributed as dist

from auditkit.formats.recipe import Recipe
from tests.trainer.parallel.states import Record, steps_of
from trainer.parallel.launch import joined
from trainer.parallel.place import launched
from trainer.parallel.torch_group import TorchGroup
from trainer.parallel.watch import Times


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


def call_everything() -> int:
    """Call every method of the group, and look at what it gives."""
    place = launched()
    assert place is not None
    with joined(place, Times()) as group:
        rank, size = group.rank, group.size
        for length in (0, 1, 4087, 4088, 4089, 100_000):
            data = bytes([rank]) * (length * (rank + 1))
            assert group.gather_bytes(data) == [bytes([q]) * (length * (q + 1)) for q in range(size)]
        assert group.largest((-1) ** rank * (rank + 1) << 70) == size << 70
        lengths = [3, 0, 5][:size]
        parts = [np.arange(n, dtype=np.int64) + (1 << 62) + rank for n in lengths]
        group.reduce_scatter(parts).wait()
        wrapped = (sum((1 << 62) + q for q in range(size)) + (1 << 63)) % (1 << 64) - (1 << 63)
        assert parts[rank].tolist() == [wrapped + size * i for i in range(lengths[rank])]
        ranges = [np.full(n, rank if q == rank else -1, np.float32) for q, n in enumerate(lengths)]
        group.all_gather_ranges(ranges).wait()
        assert [part.tolist() for part in ranges] == [[q] * n for q, n in enumerate(lengths)]
        into = [np.zeros(q + rank, np.int64) for q in range(size)]
        group.all_to_all([np.full(rank + q, 10 * rank + q) for q in range(size)], into).wait()
        assert [part.tolist() for part in into] == [[10 * q + rank] * (q + rank) for q in range(size)]
        begun = [group.reduce_scatter([np.ones(1000, np.int64)] * size) for _ in range(5)]
        for pending in begun:
            pending.wait()
        group.barrier()
    return 0
