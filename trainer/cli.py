"""The command line: parse, call, tell. Results go to stdout, the story to stderr; exit codes are those of auditkit."""

from __future__ import annotations

import argparse
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from auditkit.cli import console
from auditkit.errors import AuditkitError, UsageError
from auditkit.verdict import Verdict
from trainer.data import command
from trainer.data.command import names_sources
from trainer.disk import explain
from trainer.held import CHECK_EVERY
from trainer.live import command as publication
from trainer.skips import MOST

if TYPE_CHECKING:
    from trainer.run import Machine

Ended = tuple[int, str]
"""How a command ended: exit code, and the result for stdout."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 0, a verdict's code, 70 for an internal error, 130 when interrupted."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # all is loaded: from now on Ctrl-C is ours to answer
        signal.signal(signal.SIGINT, signal.default_int_handler)
    words = sys.argv[1:] if argv is None else list(argv)
    arguments = _parser(names_sources(words)).parse_args(words)
    try:
        code, summary = arguments.call(arguments)
        return _say(summary, int(code))
    except AuditkitError as error:
        return _tell(error)
    except OSError as error:
        return _tell(explain(error))
    except KeyboardInterrupt:
        console.tell("error: interrupted")
        return Verdict.INTERRUPTED.code
    except MemoryError:
        console.tell("error: out of memory")
        return Verdict.UNSUPPORTED.code
    except Exception:  # noqa: BLE001 - a bug of ours: Python's own exit code 1 is never used, so say it under 70
        traceback.print_exc()
        console.tell("error: internal error, please report the lines above")
        return Verdict.INTERNAL.code


def _say(summary: str, code: int) -> int:
    """Print the result; where nobody reads stdout any more the work is done all the same, and its code stands."""
    try:
        if summary:  # of several ranks, the one that leads has one
            console.emit(summary)
    except console.OutputFailed as error:
        console.tell(f"error: the work is done, but the result could not be written to stdout: {error.strerror}")
        return code or Verdict.UNAVAILABLE.code
    return code


def _tell(error: AuditkitError) -> int:
    console.tell(f"error: {error.message}")
    if error.hint:
        console.tell(f"hint: {error.hint}")
    return error.verdict.code


def _prepare(arguments: argparse.Namespace) -> Ended:
    return Verdict.MATCH.code, command.run(arguments)


def _run(arguments: argparse.Namespace) -> Ended:
    from trainer.run import RunOptions, start

    kept, live = (arguments.state_every, arguments.keep_states), publication.options(arguments)
    options = RunOptions(arguments.steps, *kept, _machine(arguments), live)
    return start(arguments.recipe, arguments.work, options)


def _resume(arguments: argparse.Namespace) -> Ended:
    from trainer.run import resume

    live = publication.options(arguments)
    return resume(arguments.work, steps=arguments.steps, machine=_machine(arguments), publication=live)


def _change(arguments: argparse.Namespace) -> Ended:
    from trainer.change import ChangeOptions, change, withdraw

    options = ChangeOptions(arguments.recipe, arguments.data, arguments.data_seed, arguments.steps)
    if not arguments.withdraw:
        return Verdict.MATCH.code, change(arguments.work, options)
    if options != ChangeOptions():
        raise UsageError("--withdraw takes back what is declared: nothing else can be said with it")
    return Verdict.MATCH.code, withdraw(arguments.work)


def _machine(arguments: argparse.Namespace) -> Machine:
    from trainer.run import Machine

    limits = arguments.wait, arguments.check_replicas, arguments.max_skips
    return Machine(arguments.threads, arguments.device, arguments.backend, *limits)


def _publish(arguments: argparse.Namespace) -> Ended:
    from trainer.publish import PublishOptions, publish

    options = PublishOptions(
        arguments.name,
        tuple(arguments.mirror),
        arguments.partial,
        arguments.compact,
        arguments.states,
        arguments.log_key,
        arguments.origin,
    )
    return Verdict.MATCH.code, publish(arguments.work, arguments.out, options)


def _parser(by_options: bool) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m trainer", description="train a model and publish the run")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_prepare(commands.add_parser("prepare", help="tokenizer and token stream from text"), by_options)
    _add_run(commands.add_parser("run", help="train by a recipe, from step 0"))
    _add_resume(commands.add_parser("resume", help="go on from the last complete state, to the same bits"))
    _add_change(commands.add_parser("change", help="declare another recipe or other data from the last state on"))
    _add_publish(commands.add_parser("publish", help="write the run folder that others verify"))
    _add_upload(commands.add_parser("upload", help="repeat the upload of a run that is published while it is trained"))
    return parser


def _add_prepare(parser: argparse.ArgumentParser, by_options: bool) -> None:
    command.add_arguments(parser, by_options, _positive, _natural)
    parser.set_defaults(call=_prepare)


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", metavar="RECIPE", type=Path, help="recipe file (TOML)")
    parser.add_argument("work", metavar="WORK", type=Path, help="prepared work folder")
    parser.add_argument("--steps", type=_positive, help="stop after this many steps (default: the recipe's total)")
    parser.add_argument("--state-every", type=_positive, default=100, metavar="K", help="keep every K-th (default 100)")
    parser.add_argument("--keep-states", type=_steps, default=(), metavar="A,B,..", help="further states to keep")
    _add_machine(parser)
    publication.add_arguments(parser, _positive)
    parser.set_defaults(call=_run)


def _add_resume(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("work", metavar="WORK", type=Path, help="work folder of a run that was begun")
    parser.add_argument("--steps", type=_positive, help="a new number of steps in all, at most the recipe's total")
    _add_machine(parser)
    publication.add_arguments(parser, _positive)
    parser.set_defaults(call=_resume)


def _add_change(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "%(prog)s [RECIPE] WORK [--data PREPARED] [--data-seed N] [--steps N]\n       %(prog)s WORK --withdraw"
    )
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", type=Path, help="recipe file (default: as before)")
    parser.add_argument("work", metavar="WORK", type=Path, help="work folder of a run that was begun")
    parser.add_argument("--data", type=Path, metavar="PREPARED", help="work folder prepared with this run's tokenizer")
    parser.add_argument("--data-seed", type=_natural, metavar="N", help="another order of the windows")
    parser.add_argument("--steps", type=_positive, help="where the run ends then (default: the recipe's total)")
    parser.add_argument("--withdraw", action="store_true", help="take back a change of which no step is complete")
    parser.set_defaults(call=_change)


def _add_publish(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("work", metavar="WORK", type=Path, help="work folder of a finished run")
    parser.add_argument("out", metavar="OUT", type=Path, help="run folder to make; it must not exist")
    parser.add_argument("--name", required=True, help="name of the run")
    parser.add_argument("--mirror", action="append", default=[], metavar="URL", help="where files will lie; repeatable")
    parser.add_argument("--partial", action="store_true", help="an unfinished run, up to its last state")
    parser.add_argument("--compact", action="store_true", help="without token stream and whatever can be derived")
    parser.add_argument(
        "--states", type=_steps, metavar="A,B,..", help="states to publish besides first and last (default: all kept)"
    )
    parser.add_argument(
        "--log-key", type=Path, metavar="KEYFILE", help="sign a log of the records with this private key (PEM, Ed25519)"
    )
    parser.add_argument(
        "--origin", metavar="NAME", help="name of that log, never used for another run (default: auditkit-run/RUN_ID)"
    )
    parser.set_defaults(call=_publish)


def _add_upload(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("work", metavar="WORK", type=Path, help="work folder")
    publication.add_upload(parser, _positive)
    parser.set_defaults(call=publication.upload)


def _add_machine(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=_positive, help="CPU threads (changes no bit; default: all)")
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or cuda:N (changes no bit; default: cpu)")
    parser.add_argument(
        "--max-skips",
        type=_positive,
        default=MOST,
        metavar="N",
        help=f"stop after N skipped steps on end (default {MOST})",
    )
    parser.add_argument(
        "--check-replicas",
        type=_natural,
        default=CHECK_EVERY,
        metavar="K",
        help="see after every K-th step that memory holds what it began from (changes no bit; default: 1; 0: off)",
    )
    ranks = parser.add_argument_group("on several ranks", "torchrun --nproc-per-node N -m trainer ...; change no bit")
    ranks.add_argument(
        "--backend", choices=("nccl", "gloo"), default="", help="default: nccl if each rank has a GPU, else gloo"
    )
    ranks.add_argument(
        "--wait", type=_positive, default=1800, metavar="SECONDS", help="longest wait for another rank (default 1800)"
    )


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"not a whole number: {text!r}")
    return int(text)


def _positive(text: str) -> int:
    if _natural(text) == 0:
        raise argparse.ArgumentTypeError("must be 1 or more")
    return int(text)


def _steps(text: str) -> tuple[int, ...]:
    return tuple(sorted({_natural(part.strip()) for part in text.split(",")}))
