"""The arguments of `prepare`, and what they ask for."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from auditkit.errors import UsageError
from trainer.data.declared import DEFAULT_KEY, Sources, from_options, from_toml

Number = Callable[[str], int]

SOURCE = "--source"


def names_sources(argv: Sequence[str]) -> bool:
    """Whether a command line names its sources by options: then there is no TEXT_DIR."""
    return any(word == SOURCE or word.startswith(f"{SOURCE}=") for word in argv)


def add_arguments(parser: argparse.ArgumentParser, by_options: bool, positive: Number, natural: Number) -> None:
    """Add all arguments; with `by_options` those of a command line that names its sources by options."""
    parser.usage = (
        "%(prog)s TEXT_DIR WORK --vocab-size N --context-length N --title T --license L [..]\n"
        "       %(prog)s SOURCES.toml WORK --vocab-size N --context-length N [..]\n"
        "       %(prog)s --source NAME=PATH[:WEIGHT] [..] WORK --vocab-size N --context-length N --title T --license L"
    )
    if not by_options:
        parser.add_argument(
            "text_dir", metavar="TEXT_DIR", type=Path, help="folder of UTF-8 *.txt files, or a *.toml file of sources"
        )
    parser.add_argument("work", metavar="WORK", type=Path, help="work folder to make")
    parser.add_argument("--vocab-size", type=positive, metavar="N", help="ids of the tokenizer, 257 or more")
    parser.add_argument("--context-length", type=positive, required=True, metavar="N", help="tokens a sequence")
    parser.add_argument("--seed", type=natural, default=0, help="seed of the order of the windows (default 0)")
    parser.add_argument("--title", help="what the text is, for people")
    parser.add_argument("--license", help="SPDX expression of the text's licence, e.g. CC0-1.0")
    parser.add_argument("--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json to take as it is")
    parser.add_argument("--end-of-text", metavar="TOKEN", help="its special token that ends a document")
    parser.add_argument("--processes", type=positive, metavar="N", help="tokenise in so many (changes no byte)")
    parser.add_argument("--max-document", type=positive, metavar="BYTES", help="the longest document (default 64 MiB)")
    _add_sources(parser.add_argument_group("declared sources"), positive)


def _add_sources(group: argparse._ArgumentGroup, positive: Number) -> None:
    group.add_argument(
        SOURCE,
        action="append",
        default=[],
        metavar="NAME=PATH[:WEIGHT]",
        help="a file or folder of *.txt, *.jsonl, *.parquet, each also .zst; repeatable",
    )
    group.add_argument("--text-key", metavar="KEY", help="key or column of the text (default: text)")
    group.add_argument("--epochs", type=positive, metavar="N", help="use no window more often (default: no limit)")
    group.add_argument("--source-title", action="append", default=[], metavar="NAME=T", help="default: --title")
    group.add_argument("--source-license", action="append", default=[], metavar="NAME=L", help="default: --license")
    group.add_argument(
        "--tokenizer-sample", type=positive, metavar="K", help="train the tokenizer on one document in K"
    )
    group.add_argument("--shard-bytes", type=positive, metavar="BYTES", help="text in a file (default 256 MiB)")


def run(arguments: argparse.Namespace) -> str:
    """Prepare a work folder and return a summary. Raises what `prepare` and `prepare_sources` do.

    SIGTERM ends it as Ctrl-C does, with exit code 143: processes end, and what is unfinished goes.
    """
    with _terminable():
        return _run(arguments)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _run(arguments: argparse.Namespace) -> str:
    from trainer import bpe
    from trainer.data.document import DEFAULT_BYTES, Limit
    from trainer.data.options import DataOptions

    declared = bool(arguments.source) or arguments.text_dir.suffix == ".toml"
    from_file = declared and not arguments.source
    _check(arguments, declared, from_file)
    options = DataOptions(
        vocab_size=arguments.vocab_size,
        context_length=arguments.context_length,
        seed=arguments.seed,
        title=arguments.title or "",
        license=arguments.license or "",
        tokenizer=arguments.tokenizer,
        end_of_text=arguments.end_of_text or bpe.END_OF_TEXT,
        processes=arguments.processes,
        limit=Limit(arguments.max_document or DEFAULT_BYTES),
    )
    if not declared:
        from trainer.prepare import prepare

        return prepare(arguments.text_dir, arguments.work, options)
    from trainer.data.shard_files import SHARD_BYTES
    from trainer.data.sources import MixOptions, prepare_sources

    mix = MixOptions(arguments.tokenizer_sample, arguments.shard_bytes or SHARD_BYTES)
    found = from_toml(arguments.text_dir) if from_file else _from_options(arguments)
    return prepare_sources(found, arguments.work, options, mix)


def _from_options(arguments: argparse.Namespace) -> Sources:
    return from_options(
        arguments.source,
        title=arguments.title,
        license=arguments.license,
        titles=_pairs("--source-title", arguments.source_title),
        licenses=_pairs("--source-license", arguments.source_license),
        epochs=arguments.epochs or 0,
        text_key=arguments.text_key or DEFAULT_KEY,
    )


def _check(arguments: argparse.Namespace, declared: bool, from_file: bool) -> None:
    """Refuse options that would have no effect, and ask for those that are needed."""
    only = ["source_title", "source_license", "text_key", "epochs"]
    useless = [] if arguments.source else only
    if not declared:
        useless = [*only, "tokenizer_sample", "shard_bytes"]
    if from_file:
        useless = [*only, "title", "license"]
    for name in useless:
        if getattr(arguments, name):
            option = "--" + name.replace("_", "-")
            where = f"{arguments.text_dir} says it itself" if from_file else f"it is for {SOURCE}, or a file of sources"
            raise UsageError(f"{option} has no effect here: {where}")
    for name in () if from_file else ("title", "license"):
        if getattr(arguments, name) is None:
            raise UsageError(f"--{name} is needed")


def _pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, separator, value = text.partition("=")
        if not (name and separator and value) or name in found:
            raise UsageError(f"{option} {text!r} is not NAME=TEXT, or the name was given before")
        found[name] = value
    return found
