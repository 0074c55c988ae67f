"""Several ranks over Gloo on this machine: how a training scales, and what an exact sum costs beside an ordinary one.

    python -m bench.ranks --most 4 --size small --elements 83000000

1. A step of four micro-batches on 1 to N ranks, one thread each, all in turns.
2. The exact reduction of a gradient as the trainer does it (int64 to the owner of each range, binary32 parameters back)
   beside torch's float32 all-reduce of as many elements, in the same processes, in turns.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

import numpy as np

from auditkit.formats.recipe import BatchConfig, Recipe
from auditkit.model.params import parameter_count
from auditkit.replay.backend import choose
from bench import replay, state
from bench.process import ROOT
from bench.rows import Row

MICRO_BATCHES = 4
SIZES = {
    "bundled": lambda: replay.recipes()["bundled model"],
    "small": lambda: replay.recipes()["10 M parameters"],
    "gigabyte": state.recipe,
}
Times = dict[str, float]


def rows() -> list[Row]:
    """Up to four ranks at sizes that take a minute."""
    return measure(4, "bundled", 4_000_000, 3)


def measure(most: int, size: str, elements: int, turns: int) -> list[Row]:
    """Scaling, and the two reductions on two ranks and on the most."""
    steps: dict[int, list[float]] = {ranks: [] for ranks in range(1, most + 1)}
    for _ in range(turns):
        for ranks, found in steps.items():
            found.append(on_ranks(ranks, "step", size, "3")["step"])
    alone = statistics.median(steps[1])
    count = parameter_count(SIZES[size]().model) / 1e6
    made = [
        Row("training step, 1 rank", alone, "s", f"{count:.3g} M parameters, {MICRO_BATCHES} micro-batches, 1 thread")
    ]
    for ranks in range(2, most + 1):
        found = statistics.median(steps[ranks])
        made.append(Row(f"training step, {ranks} ranks", found, "s", f"{alone / found:.2f}x one rank"))
    for ranks in sorted({2, most}):
        times = on_ranks(ranks, "sum", str(elements), str(2 * turns))
        factor = times["exact"] / times["float"]
        shape = f"{elements / 1e6:.3g} M elements over Gloo"
        made.append(Row(f"float32 all-reduce, {ranks} ranks", times["float"], "s", shape))
        made.append(Row(f"exact reduction, {ranks} ranks", times["exact"], "s", f"{factor:.2f}x"))
    return made


def on_ranks(size: int, *words: str) -> Times:
    """What rank 0 of so many processes has measured."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    places = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
    }
    processes = []
    for rank in range(size):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "bench.ranks", "worker", *words]
        out = subprocess.PIPE if rank == 0 else subprocess.DEVNULL
        processes.append(
            subprocess.Popen(command, cwd=ROOT, env=os.environ | places | own, stdout=out, encoding="utf-8")
        )
    text, _ = processes[0].communicate()
    codes = [process.wait() for process in processes]
    if any(codes):
        raise RuntimeError(f"ranks ended with codes {codes}")
    times: Times = json.loads(text)
    return times


def worker(words: Sequence[str]) -> None:
    """One rank: measure, and print if it is rank 0."""
    from trainer.parallel.launch import joined
    from trainer.parallel.place import launched
    from trainer.parallel.watch import Times as Limits

    place = launched()
    if place is None:
        raise RuntimeError("a worker is started with a place")
    with joined(place, Limits()) as group:
        kind, *rest = words
        found = steps_of(group, *rest) if kind == "step" else sums_of(group, *rest)
        if group.rank == 0:
            print(json.dumps(found))


def steps_of(group: object, size: str, count: str) -> Times:
    """Median seconds of a step after one that is not counted."""
    from trainer.parallel.runner import Ranks
    from trainer.run import first_state

    recipe: Recipe = SIZES[size]()
    each = max(1, recipe.batch.sequences // MICRO_BATCHES)
    recipe = dataclasses.replace(recipe, batch=BatchConfig(MICRO_BATCHES * each, each))
    runner = Ranks(group, choose("cpu", 1), recipe)  # type: ignore[arg-type]
    if runner.leads:
        held = runner.first(lambda: first_state(recipe))
    else:
        held, _ = runner.follow(lambda: first_state(recipe), _none)
    shape = (recipe.batch.sequences, recipe.model.context_length + 1)
    tokens = np.random.default_rng(0).integers(0, recipe.model.vocab_size, shape)
    found = []
    for _ in range(int(count) + 1):
        start = time.perf_counter()
        held, _, _ = runner.step(held, tokens, False)
        found.append(time.perf_counter() - start)
    return {"step": statistics.median(found[1:])}


def _none(step: int) -> NoReturn:
    raise RuntimeError(f"state {step} is not on the disk")


def sums_of(group: object, elements: str, turns: str) -> Times:
    """Median seconds of both reductions."""
    import torch
    import torch.distributed as dist

    from trainer.parallel.group import Group

    ranks: Group = group  # type: ignore[assignment]
    count = int(elements)
    sums, params, floats = np.ones(count, np.int64), np.ones(count, np.float32), torch.ones(count)
    cuts = [count * rank // ranks.size for rank in range(ranks.size + 1)]
    own = [slice(a, b) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]

    def exact() -> None:
        ranks.reduce_scatter([sums[part] for part in own]).wait()
        ranks.all_gather_ranges([params[part] for part in own]).wait()

    calls: dict[str, Callable[[], object]] = {"exact": exact, "float": lambda: dist.all_reduce(floats)}
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(int(turns) + 1):
        for name, call in calls.items():
            ranks.barrier()
            start = time.perf_counter()
            call()
            ranks.barrier()
            if turn:
                found[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in found.items()}


def main(words: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.ranks", description=__doc__)
    parser.add_argument("--most", type=int, default=4, help="ranks")
    parser.add_argument("--size", choices=SIZES, default="small", help="of the model whose steps are measured")
    parser.add_argument("--elements", type=int, default=83_000_000, help="of the gradient that is reduced")
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args(words)
    for row in measure(arguments.most, arguments.size, arguments.elements, arguments.turns):
        print(f"{row.name}: {row.value:.4g} {row.unit} ({row.note})")


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2:])
    else:
        main(sys.argv[1:])
