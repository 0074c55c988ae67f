"""Several ranks on this machine: how a training scales, and what an exact sum costs beside an ordinary one.

    python -m bench.ranks --most 4 --size small --elements 83000000                        processors, over Gloo
    python -m bench.ranks --most 2 --size large --sequences 64 --device cuda --backend nccl --elements 1000000,98000000

1. A step of four micro-batches in one process, and on 2 to N ranks, all in turns; one thread each on processors. Ranks
   take it in two ways in turns: buckets of the gradient travel beside the last backward pass, as in a training, and all
   of it travels behind that pass.
2. The exact reduction of a gradient as the trainer does it (int64 to the owner of each range, binary32 parameters back)
   beside torch's float32 all-reduce of as many elements, in the same processes, in turns. In NCCL's rings a link
   carries 12 bytes an element for the one, and 8 (N - 1) / N for the other: 3 times as much on two ranks, 1.5 times on
   many.
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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from auditkit.formats.recipe import BatchConfig, Recipe
from auditkit.kernels.backend import CudaOps
from auditkit.model.ops import Ops
from auditkit.model.params import parameter_count
from auditkit.replay.backend import Backend
from bench import replay, state
from bench.process import ROOT
from bench.rows import Row

if TYPE_CHECKING:
    from trainer.parallel.torch_group import TorchGroup
    from trainer.runner import Runner

MICRO_BATCHES = 4
PROFILED = 40  # functions that a profile names
Times = dict[str, float]


def large() -> Recipe:
    """A model of 98 million parameters: the one whose state is 1 GB, with two more layers."""
    base = state.recipe()
    return dataclasses.replace(base, model=dataclasses.replace(base.model, num_layers=12))


SIZES = {
    "bundled": lambda: replay.recipes()["bundled model"],
    "small": lambda: replay.recipes()["10 M parameters"],
    "gigabyte": state.recipe,
    "large": large,
}


@dataclass(frozen=True)
class Asked:
    """What to measure, and where; sequences 0: those of the recipe; steps: of each kind in a turn.

    profile: where the host spends its time in one more step, told on stderr
    """

    most: int = 4
    size: str = "bundled"
    sequences: int = 0
    elements: tuple[int, ...] = (4_000_000,)
    turns: int = 3
    steps: int = 3
    device: str = "cpu"
    backend: str = "gloo"
    profile: bool = False

    @property
    def recipe(self) -> Recipe:
        """The recipe of the steps."""
        found = SIZES[self.size]()
        each = max(1, (self.sequences or found.batch.sequences) // MICRO_BATCHES)
        return dataclasses.replace(found, batch=BatchConfig(MICRO_BATCHES * each, each))

    @classmethod
    def parse(cls, text: str) -> Asked:
        """What `json.dumps` made of it."""
        value = json.loads(text)
        return cls(**value | {"elements": tuple(value["elements"])})


def rows() -> list[Row]:
    """Up to four ranks at sizes that take a minute."""
    return measure(Asked())


def measure(asked: Asked) -> list[Row]:
    """Scaling, and the two reductions on two ranks and on the most."""
    steps: dict[int, list[Times]] = {ranks: [] for ranks in range(1, asked.most + 1)}
    for _ in range(asked.turns):
        for ranks, found in steps.items():
            found.append(on_ranks(ranks, "step", asked))
    made = step_rows(asked, {ranks: _medians(found) for ranks, found in steps.items()})
    for ranks in sorted({2, asked.most}):
        made += sum_rows(asked, ranks, on_ranks(ranks, "sum", asked))
    return made


def step_rows(asked: Asked, steps: dict[int, Times]) -> list[Row]:
    """The rows of steps, by number of ranks."""
    recipe, alone = asked.recipe, steps[1]["step"]
    count, tokens = parameter_count(recipe.model) / 1e6, recipe.batch.sequences * recipe.model.context_length
    about = f"{count:.3g} M parameters, {tokens:,} tokens, {MICRO_BATCHES} micro-batches, {asked.device}"
    made = [Row("training step, one process", alone, "s", about)]
    for ranks in range(2, asked.most + 1):
        step, late = steps[ranks]["step"], steps[ranks]["late"]
        made.append(Row(f"training step, {ranks} ranks", step, "s", f"{alone / step:.2f}x one process"))
        name = f"training step, {ranks} ranks, all sums travel behind the backward pass"
        made.append(Row(name, late, "s", f"{late / step:.3f} of the time"))
    return made


def sum_rows(asked: Asked, ranks: int, times: Times) -> list[Row]:
    """The rows of both reductions."""
    made = []
    for count in asked.elements:
        exact, plain = times[f"exact {count}"], times[f"float {count}"]
        shape = f"{count / 1e6:.3g} M elements over {asked.backend}"
        made.append(Row(f"float32 all-reduce, {ranks} ranks", plain, "s", shape))
        made.append(Row(f"exact reduction, {ranks} ranks", exact, "s", f"{shape}; {exact / plain:.2f}x"))
    return made


def on_ranks(size: int, kind: str, asked: Asked) -> Times:
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
        command = [sys.executable, "-m", "bench.ranks", "worker", kind, json.dumps(dataclasses.asdict(asked))]
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


def worker(kind: str, asked: Asked) -> None:
    """One rank: measure, and print if it is rank 0."""
    from trainer.parallel.launch import joined, open_backend
    from trainer.parallel.place import launched
    from trainer.parallel.watch import Times as Limits
    from trainer.run import Machine

    place = launched()
    if place is None:
        raise RuntimeError("a worker is started with a place")
    with joined(place, Limits()) as group:
        backend = open_backend(place, Machine(1, asked.device, asked.backend), group)
        found = steps_of(group, backend, asked) if kind == "step" else sums_of(group, backend, asked)
        if group.rank == 0:
            print(json.dumps(found))


def steps_of(group: TorchGroup, backend: Backend, asked: Asked) -> Times:
    """Median seconds of a step of each kind, after one that is not counted."""
    from trainer.parallel.layout import BUCKET, Layout
    from trainer.parallel.runner import Ranks
    from trainer.run import first_state
    from trainer.runner import OneProcess

    recipe = asked.recipe
    runners: dict[str, Runner[Any]] = {"step": OneProcess(backend, recipe)}
    if group.size > 1:
        whole = Layout(recipe.model, group.size).elements  # one bucket, of which the embedding is the last part
        runners = {
            name: Ranks(group, backend, recipe, bucket=most) for name, most in (("step", BUCKET), ("late", whole))
        }
    held = _first(runners["step"], lambda: first_state(recipe))
    shape = (recipe.batch.sequences, recipe.model.context_length + 1)
    tokens = np.random.default_rng(0).integers(0, recipe.model.vocab_size, shape)
    found: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(asked.steps + 1):
        for name, runner in runners.items():
            start = time.perf_counter()
            held, _, _ = runner.step(held, tokens, False)
            found[name].append(time.perf_counter() - start)
    if asked.profile:
        _profiled(group.rank == 0, lambda: runners["step"].step(held, tokens, False))
    return {name: statistics.median(times[1:]) for name, times in found.items()}


def _profiled(tells: bool, call: Callable[[], object]) -> None:
    """Call, and tell in which functions the time went by."""
    import cProfile
    import pstats

    profile = cProfile.Profile()
    profile.runcall(call)
    for order in ("tottime", "cumulative") if tells else ():
        pstats.Stats(profile, stream=sys.stderr).sort_stats(order).print_stats(PROFILED)


def _first(runner: Any, make: Callable[[], Any]) -> Any:
    """State 0, on the rank that leads and on those that follow."""
    return runner.first(make) if runner.leads else runner.follow(make, _none)[0]


def _none(step: int) -> NoReturn:
    raise RuntimeError(f"state {step} is not on the disk")


def sums_of(group: TorchGroup, backend: Backend, asked: Asked) -> Times:
    """Median seconds of both reductions, for each number of elements."""
    found: Times = {}
    for count in asked.elements:
        times = backend.on_device(lambda count=count: _both(group, backend, count, asked))  # type: ignore[misc]
        found |= {f"{name} {count}": seconds for name, seconds in times.items()}
    return found


def _both(group: TorchGroup, backend: Backend, count: int, asked: Asked) -> Times:
    import torch
    import torch.distributed as dist

    from trainer.parallel.memory import memory_of

    ops = backend.ops
    memory = memory_of(ops)
    sums, params = memory.zeros(count, np.int64), memory.zeros(count, np.float32)
    cuts = [count * rank // group.size for rank in range(group.size + 1)]
    own = [slice(a, b) for a, b in zip(cuts[:-1], cuts[1:], strict=True)]
    place = f"cuda:{ops.device.index}" if isinstance(ops, CudaOps) and asked.backend == "nccl" else "cpu"
    floats, carrier = torch.zeros(count, device=place), dist.new_group(backend=asked.backend)

    def exact() -> None:
        group.reduce_scatter([sums[part] for part in own]).wait()
        group.all_gather_ranges([params[part] for part in own]).wait()

    calls: dict[str, Callable[[], object]] = {
        "exact": exact,
        "float": lambda: dist.all_reduce(floats, group=carrier),
    }
    found: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(2 * asked.turns + 1):
        for name, call in calls.items():
            group.barrier()
            start = time.perf_counter()
            call()
            _settle(ops, place)
            group.barrier()
            if turn:
                found[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in found.items()}


def _settle(ops: Ops, place: str) -> None:
    """Wait for what a device still has to do: for its own stream, and for torch's where torch has any."""
    if isinstance(ops, CudaOps):
        ops.device.synchronize()
    if place != "cpu":
        import torch

        torch.cuda.synchronize(place)


def _medians(turns: Sequence[Times]) -> Times:
    return {name: statistics.median(times[name] for times in turns) for name in turns[0]}


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


def main(words: Sequence[str]) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.ranks", description=__doc__)
    parser.add_argument("--most", type=int, default=4, help="ranks")
    parser.add_argument("--size", choices=SIZES, default="small", help="of the model whose steps are measured")
    parser.add_argument("--sequences", type=int, default=0, help="a step (default: as many as the size has)")
    parser.add_argument("--elements", type=_counts, default=(83_000_000,), metavar="A,B,..", help="of the gradient")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="of each kind in a turn")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument("--profile", action="store_true", help="tell on stderr where the host spends its time")
    for row in measure(Asked(**vars(parser.parse_args(words)))):
        print(f"{row.name}: {row.value:.4g} {row.unit} ({row.note})", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(sys.argv[2], Asked.parse(sys.argv[3]))
    else:
        main(sys.argv[1:])
