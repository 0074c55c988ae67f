"""Options that several commands share, so that one name means one thing everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def number(text: str) -> int:
    """A number of ASCII digits; int() would take 1_0, blanks and other scripts' digits too."""
    if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) <= 20):
        raise typer.BadParameter(f"{text!r} is not a number of at most 20 digits")
    return int(text)


def check(
    step: int | None,
    steps: str | None,
    random: int | None,
    seed: int | None,
    part: str | None,
    micro_batch: list[str] | None,
    replay_to: bool = False,
    memory: str | None = None,
) -> None:
    """Refuse a choice of steps, of micro-batches or of memory that makes no sense for any run; UsageError."""
    from auditkit.replay import arguments
    from auditkit.replay.part_run import check_asked
    from auditkit.replay.selection import select

    arguments.memory(memory)
    select(step=step, steps=steps, random=random, seed=seed, part=part)
    check_asked(micro_batch or None, step, replay_to)


Step = Annotated[int | None, typer.Option("--step", parser=number, metavar="N", help="One step, counted from 0.")]
Steps = Annotated[
    str | None,
    typer.Option(
        "--steps", metavar="A:B", help="Steps A to B-1 (half-open: 10:13 is 10, 11, 12), or a list: 3,17,20:25."
    ),
]
Random = Annotated[
    int | None, typer.Option("--random", parser=number, metavar="K", help="K different steps drawn at random.")
]
Seed = Annotated[
    int | None,
    typer.Option(
        "--seed", parser=number, metavar="S", help="Seed of --random; without it a fresh one is drawn and named."
    ),
]
Part = Annotated[
    str | None,
    typer.Option("--part", metavar="I/N", help="Of these steps those of machine I of N; each machine has its own."),
]
MicroBatch = Annotated[
    list[str] | None,
    typer.Option(
        "--micro-batch",
        metavar="I|A-B|all",
        help="Of --step only these micro-batches, without its update: 3, 0-3,7 or all; repeatable.",
    ),
]
ReplayTo = Annotated[
    bool,
    typer.Option(
        "--replay-to", help="With --micro-batch: replay up to the step if the state before it is unpublished."
    ),
]
Run = Annotated[
    str | None,
    typer.Option("--run", metavar="NAME|PATH|URL", help="A run's name, folder or URL. Default: the bundled run."),
]
Artifacts = Annotated[
    str | None,
    typer.Option("--artifacts", metavar="URL", help="Try this folder or URL first for every file but run.json."),
]
Publisher = Annotated[
    str | None,
    typer.Option("--publisher", metavar="VKEY", help="The key that must have signed the run's log (NAME+HASH+BASE64)."),
]
LogPolicy = Annotated[
    Path | None,
    typer.Option("--policy", metavar="FILE", help="A policy whose [log] says who must have signed the run's log."),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda[:N]",
        help="Where to replay; auto takes the best that is supported, native the CPU by ops in C compiled for it.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads", parser=number, metavar="N", help="Threads of the replay; any number gives the same bits."
    ),
]
Memory = Annotated[
    str | None,
    typer.Option(
        "--memory",
        metavar="SIZE",
        help="The most memory to use where the device computes, e.g. 8GiB or 512MiB; any gives the same bits."
        " Default: most of what is free.",
    ),
]
Paranoid = Annotated[
    str | None,
    typer.Option(
        "--paranoid",
        metavar="[=same|both]",
        help="Compute all twice, with known answers in between. same, the default: here; both: on a GPU and the CPU.",
    ),
]
Offline = Annotated[bool, typer.Option("--offline", help="Use the cache and local files only.")]
CacheDir = Annotated[
    Path | None, typer.Option("--cache-dir", metavar="DIR", help="Where downloads are kept. Default: the user's cache.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
