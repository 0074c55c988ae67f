"""`auditkit trace`: write the digest of what each op of a step gives, and compare two such traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import options
from auditkit.cli.outcome import Outcome, to_json
from auditkit.errors import AuditkitError, UsageError
from auditkit.verdict import Verdict

if TYPE_CHECKING:
    from auditkit.explain.subject import Start
    from auditkit.explain.tracing import Parting
    from auditkit.formats.trace import Trace
    from auditkit.replay.backend import Backend
    from auditkit.store.progress import Progress

MicroBatch = Annotated[
    int | None,
    typer.Option("--micro-batch", parser=options.number, metavar="I", help="Trace one micro-batch alone."),
]
Output = Annotated[str | None, typer.Option("--output", "-o", metavar="FILE", help="A new file for the trace.")]
Compare = Annotated[
    tuple[str, str] | None, typer.Option("--compare", metavar="A B", help="Compare two traces; nothing is replayed.")
]
Backends = Annotated[
    bool, typer.Option("--compare-backends", help="Take the step on the CPU and on a GPU, and compare the traces.")
]
FORMAT = "auditkit/trace-comparison/v1"
WRITTEN = "auditkit/trace-written/v1"


def trace(
    step: options.Step = None,
    micro_batch: MicroBatch = None,
    output: Output = None,
    compare: Compare = None,
    compare_backends: Backends = False,
    run: options.Run = None,
    artifacts: options.Artifacts = None,
    device: options.Device = "auto",
    threads: options.Threads = None,
    offline: options.Offline = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
) -> Outcome:
    """Trace a step: the digest of what each op of its forward and backward pass and its update gives, in order.

    A publisher and a verifier can each write one; --compare names the first op at which they part. Exit code 0: the
    traces are equal, or one was written; 3: they part. A trace proves nothing by itself.
    """
    _check_options(step, output, compare, compare_backends)
    if compare is not None:
        from auditkit.explain.tracing import compare as side_by_side

        return _compared(side_by_side(*map(read, map(Path, compare))), compare, json)
    assert step is not None
    if output is not None:
        from auditkit.trust.key_files import require_new

        require_new(Path(output))
    from auditkit.cli.progress import Board
    from auditkit.replay.backend import choose

    backends = (
        [choose("cpu", threads), choose("cuda" if device in ("auto", "cpu") else device)]
        if compare_backends
        else [choose(device, threads)]
    )
    for backend in backends:
        backend.self_test()
    with Board() as board:
        start = _start(run, step, backends[-1], board.handle(), artifacts, cache_dir, offline)
        if compare_backends:
            from auditkit.explain.tracing import compare_backends as both

            found = both(start, (backends[0], backends[1]), micro_batch)
            return _compared(found, (backends[0].device, backends[1].device), json)
        return _written(start, backends[0], micro_batch, str(output), board.handle(), json)


def _check_options(step: int | None, output: str | None, compare: object, backends: bool) -> None:
    modes = [output is not None, compare is not None, backends]
    if sum(modes) != 1:
        raise UsageError(
            "choose exactly one of -o, --compare and --compare-backends", hint="auditkit trace --step 0 -o t"
        )
    if (step is None) == (compare is None):
        raise UsageError(
            "--step belongs to -o and --compare-backends, and only there", hint="auditkit trace --step 0 -o t.json"
        )


def _start(
    run: str | None,
    step: int,
    backend: Backend,
    progress: Progress,
    artifacts: str | None,
    cache_dir: Path | None,
    offline: bool,
) -> Start:
    """The start of a step of a run whose records are checked."""
    from auditkit.explain.subject import reach
    from auditkit.replay.run import open_run
    from auditkit.replay.selection import select
    from auditkit.replay.verify import check_chain, check_log

    opened = open_run(run, artifacts=artifacts, cache_dir=cache_dir, offline=offline, progress=progress)
    with opened:
        select(step=step).resolve(opened.size, opened.published)
        check_chain(opened)
        check_log(opened)
        return reach(opened, step, backend, progress)


def _written(
    start: Start, backend: Backend, micro_batch: int | None, output: str, progress: Progress, json: bool
) -> Outcome:
    from auditkit.explain.tracing import record
    from auditkit.formats.digest import content_digest
    from auditkit.trust.key_files import write_new

    count = 1 if micro_batch is not None else start.recipe.batch.micro_batches
    progress.start("trace", count, "micro-batches")
    try:
        made = record(start, backend, micro_batch=micro_batch, on_micro_batch=lambda _: progress.advance(1))
    finally:
        progress.finish()
    data = made.encode()
    write_new(Path(output), data, mode=0o666)
    facts = {"ops": len(made.ops), "bytes": len(data), "digest": content_digest(data), "backend": made.backend}
    if json:
        head = {"format": WRITTEN, "verdict": Verdict.MATCH.name, "code": 0, "run_id": start.run_id, "step": start.step}
        return Outcome(Verdict.MATCH, to_json({**head, **facts, "file": output}))
    said = f"traced step {start.step}: {len(made.ops)} ops on {made.backend}, {len(data)} bytes in {output}"
    return Outcome(Verdict.MATCH, f"{said}\ndigest {facts['digest']}")


def _compared(found: Parting, names: tuple[str, str], json: bool) -> Outcome:
    from auditkit.cli.explain import parting_lines

    verdict = Verdict.MATCH if found.equal else Verdict.MISMATCH
    if json:
        head = {"format": FORMAT, "verdict": verdict.name, "code": verdict.code, "names": list(names)}
        return Outcome(verdict, to_json({**head, **found.to_dict()}))
    lines = [f"left       {names[0]}", f"right      {names[1]}", *parting_lines(found, "left", "right")]
    lines.append("EQUAL" if found.equal else "DIFFERENT")
    return Outcome(verdict, "\n".join(lines))


def read(path: Path) -> Trace:
    """The trace in a file. Raises Unavailable, BadArtifact naming the file."""
    from auditkit.formats.limits import LIMITS
    from auditkit.formats.trace import Trace
    from auditkit.trust import key_files

    data = key_files.read(path, LIMITS.trace_bytes)
    try:
        return Trace.parse(data)
    except AuditkitError as error:
        raise type(error)(f"{path}: {error.message}", hint=error.hint) from error
