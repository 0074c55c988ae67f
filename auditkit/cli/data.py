"""`auditkit data`: the documents and the text behind a step."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli import options
from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome, to_json

if TYPE_CHECKING:
    from auditkit.replay.data import DataReport

Chosen = Annotated[int, typer.Option("--step", parser=options.number, metavar="N", help="One step, counted from 0.")]


def data(
    step: Chosen,
    run: options.Run = None,
    artifacts: options.Artifacts = None,
    offline: options.Offline = False,
    cache_dir: options.CacheDir = None,
    json: options.Json = False,
) -> Outcome:
    """Show the documents and the text that a step saw, and whether they follow from corpus, tokenizer and seed.

    Deriving the tokens again needs the tokenizers library (extra `data`).
    """
    from auditkit.cli.progress import Board
    from auditkit.replay.data import inspect
    from auditkit.replay.run import open_run

    with Board() as board:
        opened = open_run(run, artifacts=artifacts, cache_dir=cache_dir, offline=offline, progress=board.handle())
        with opened:
            report = inspect(opened, step, board.handle())
    return Outcome(report.verdict, to_json(report.to_dict()) if json else "\n".join(_lines(report)) + "\n")


def _lines(report: DataReport) -> Iterator[str]:
    from auditkit.cli.render import verdict_lines

    yield f"run    {printable(report.run)}, step {report.step}"
    yield f"batch  {report.batch}, as its record says"
    yield f"data   {printable(report.title)} ({printable(report.license)})"
    for source in report.sources:
        yield f"source {source.name}, weight {source.weight}: {printable(source.title)} ({printable(source.license)})"
    for sequence, text in zip(report.sequences, report.texts, strict=True):
        yield ""
        of = f"{sequence.source}, " if sequence.source else ""
        whose = "source" if sequence.source else "corpus"
        where = f"epoch {sequence.epoch}, window {sequence.window}, {whose} token {sequence.begin} on"
        yield f"sequence {sequence.number}: {of}{where}"
        for passage in sequence.passages:
            yield f"  {printable(passage.document)}, tokens {passage.begin} to {passage.end - 1}"
        yield from (f"    | {printable(line)}" for line in text.split("\n"))
    yield ""
    said = "these tokens follow from the corpus, the tokenizer and the seed" if report.derived else ""
    yield from verdict_lines(report.verdict, report.message, report.hint, said=said)
    if report.derived:
        found = report.derived
        yield f"  {found.documents} documents, {found.tokens} tokens, tokenised again with {found.library}"
    yield "not checked:"
    yield from (f"  - {text}" for text in report.not_checked)
