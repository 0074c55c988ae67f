"""`auditkit bench`: what a step takes on this device, how far that is from its floor, and torch's time beside it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import options
from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome, to_json
from auditkit.verdict import Verdict

if TYPE_CHECKING:
    from auditkit.measure.report import Report

MOST_LINES = 24

Model = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="tiny, 25m, 125m, 350m or 1.6b. Default: 125m, tiny on a CPU."),
]
MicroBatchSize = Annotated[
    int | None,
    typer.Option(
        "--micro-batch-size", parser=options.number, metavar="N", help="Sequences of a micro-batch, part of the recipe."
    ),
]
Rounds = Annotated[
    int | None,
    typer.Option(
        "--rounds",
        parser=options.number,
        metavar="N",
        help="Micro-batches that are timed, after one. Default: a few seconds of them.",
    ),
]
Torch = Annotated[bool, typer.Option("--torch/--no-torch", help="Measure torch beside it, where it is installed.")]
Ops = Annotated[bool, typer.Option("--ops", help="Say where the time of a micro-batch goes, op by op.")]


def bench(
    model: Model = None,
    micro_batch_size: MicroBatchSize = None,
    rounds: Rounds = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    memory: options.Memory = None,
    torch: Torch = True,
    ops: Ops = False,
    json: options.Json = False,
) -> Outcome:
    """Measure a training step of a model of some size on this device, as a verification replays it.

    Measured are its parts; a whole step and an audit are computed from these. The floor is the step's operations over
    the rate of the exact dot, or its bytes over the bandwidth of a copy, both measured here. Exit code 6 where the
    device or its memory cannot do it.
    """
    from auditkit.cli.progress import Board
    from auditkit.measure import bench as measuring
    from auditkit.replay import arguments
    from auditkit.replay.backend import choose

    asked = measuring.Options(model, micro_batch_size, arguments.memory(memory), rounds, torch, ops)
    backend = choose(device, threads)
    with Board() as board:
        found = measuring.bench(asked, backend, board.handle())
    return Outcome(Verdict.MATCH, to_json(found.to_dict()) if json else "\n".join(_lines(found)))


def _lines(found: Report) -> Iterator[str]:
    from auditkit.cli.progress import size
    from auditkit.model.params import parameter_count

    batch, times, rates = found.recipe.batch, found.times, found.rates
    length = found.recipe.model.context_length
    yield f"model        {found.model}, {parameter_count(found.recipe.model):,} parameters"
    yield f"step         {found.tokens:,} tokens: {batch.sequences} sequences of {length:,}, {_batches(found)}"
    yield f"device       {printable(found.device)}, {found.threads} thread{'s' if found.threads > 1 else ''}"
    yield f"plan         {found.plan}; about {size(found.memory)}"
    if times.peak_bytes is not None:
        yield f"             {size(times.peak_bytes)} held at most"
    yield f"copy         {size(round(rates.copy))}/s, read and written"
    yield f"products     {_quantity(rates.operations)}op/s, exact dot fx14, {rates.product} cubed"
    yield f"digest       {size(round(rates.digest))}/s"
    yield f"unpack       {size(round(rates.unpack))}/s"
    yield f"micro-batch  {_seconds(times.micro_batch)}, of {times.counted}"
    yield f"update       {_seconds(times.update)}, weights to fixed point {_seconds(times.prepare)}"
    yield f"state        {_seconds(times.digest)} to digest it, {times.digest / found.step:.2%} of a step"
    yield f"step         {_seconds(found.step)}, computed from these"
    yield f"audit        {_seconds(found.audit)}, with {_seconds(found.unpack)} to unpack a state, without downloads"
    yield from _floor(found)
    yield from _energy(found)
    yield from _torch(found)
    yield from _ops(found)


def _floor(found: Report) -> Iterator[str]:
    floor = found.floor
    which = "arithmetic" if floor.arithmetic >= floor.traffic else "traffic"
    yield f"floor        {_seconds(found.least)} a step, {found.step / found.least:.2f} times that is what it takes"
    yield (
        f"             of a micro-batch {_seconds(floor.arithmetic)} arithmetic, {_seconds(floor.traffic)} traffic:"
        f" {which} decides"
    )


def _energy(found: Report) -> Iterator[str]:
    if found.joules is None or found.times.joules is None:
        yield "energy       unknown: the device does not say, or not for so short a time"
        return
    watts = found.times.joules / found.times.micro_batch
    yield f"energy       {_quantity(found.joules)}J a step, computed; {watts:,.0f} W meanwhile"


def _torch(found: Report) -> Iterator[str]:
    for other in found.torch:
        step, ratio = other.step(found.micro_batches), found.ratio(other)
        yield f"torch        {_seconds(step)} a step, computed: {other.said}"
        yield f"             micro-batch {_seconds(other.micro_batch)}, update {_seconds(other.update)}"
        yield f"             ours takes {ratio:.2f} times as long"
    for reason in found.missing:
        yield f"torch        {printable(reason)}"


def _ops(found: Report) -> Iterator[str]:
    total = sum(line.seconds for line in found.lines)
    for line in found.lines[:MOST_LINES]:
        yield f"op           {_seconds(line.seconds):>9} {line.seconds / total:6.1%} {line.count:5} x {line.name}"


def _batches(found: Report) -> str:
    batch = found.recipe.batch
    return (
        f"{batch.micro_batches} micro-batch{'es' if batch.micro_batches > 1 else ''} of {batch.micro_batch_sequences}"
    )


def _seconds(value: float) -> str:
    """A time with three digits, in the unit that suits it."""
    from auditkit.cli.progress import duration

    if value >= 100:
        return duration(value)
    if value >= 1:
        return f"{value:.3g} s"
    return f"{value * 1e3:.3g} ms"


def _quantity(value: float) -> str:
    """A number with three digits and the prefix of its unit."""
    for prefix in ("", "k", "M", "G", "T"):
        if value < 999.5:
            return f"{value:.3g} {prefix}"
        value /= 1000
    return f"{value:.3g} P"
