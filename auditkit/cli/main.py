"""The `auditkit` command: parse, run one command, print its result, exit with its verdict's code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, NoReturn

import typer

from auditkit.cli import (
    attest,
    bench,
    cache,
    claim,
    console,
    coverage,
    data,
    diff,
    doctor,
    explain,
    fetch,
    key,
    log,
    nightly,
    plan,
    registry,
    show,
    submit,
    trace,
    verify,
)
from auditkit.cli import next as next_command
from auditkit.cli.command import ComputingCommand
from auditkit.cli.interrupt import INTERRUPTED, Signals
from auditkit.cli.outcome import Outcome, error_json
from auditkit.errors import AuditkitError, Unavailable, Unsupported, UsageError
from auditkit.verdict import Verdict, worst

# typer raises its parse errors as subclasses of this, whether it brings its own copy of click or uses the installed one
_PARSE_ERROR: type[Exception] = typer.BadParameter.__mro__[2]

EPILOG = (
    "exit codes: 0 match or done, 2 usage, 3 mismatch, 4 bad artifact, 5 unavailable, 6 unsupported, "
    "7 machine fault, 8 untrusted, 9 incomplete, 70 internal error, 130 interrupted, 143 terminated"
)

app = typer.Typer(
    name="auditkit",
    help="Verify any step of a published language-model training run, bit for bit.",
    epilog=EPILOG,
    no_args_is_help=False,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        from auditkit.version import version

        typer.echo(f"auditkit {version()}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


app.command("verify", cls=ComputingCommand, short_help="Replay steps of a run and compare every bit.")(verify.verify)
app.command("explain", cls=ComputingCommand, short_help="Say what departs first in a step, and why.")(explain.explain)
app.command("trace", cls=ComputingCommand, short_help="Write or compare the digests of every op of a step.")(
    trace.trace
)
app.command("fetch", cls=ComputingCommand, short_help="Fetch what a verification needs, and nothing else.")(fetch.fetch)
app.command("plan", cls=ComputingCommand, short_help="Say what a verification would cost here.")(plan.plan)
app.command("show", cls=ComputingCommand, short_help="Show a run, a record or the log.")(show.show)
app.command("data", cls=ComputingCommand, short_help="Show the documents and the text behind a step.")(data.data)
app.command("diff", cls=ComputingCommand, short_help="Compare two states bit by bit.")(diff.diff)
app.command("doctor", cls=ComputingCommand, short_help="Test whether this machine is fit to verify.")(doctor.doctor)
app.command("bench", cls=ComputingCommand, short_help="Measure a step here: time, floor, energy, torch beside it.")(
    bench.bench
)
app.command("coverage", cls=ComputingCommand, short_help="Say which steps auditors have verified, and which not.")(
    coverage.coverage
)
app.command("next", cls=ComputingCommand, short_help="Say which steps to verify next, by need and by chance.")(
    next_command.next_steps
)
app.command("nightly", cls=ComputingCommand, short_help="Verify and attest what a public beacon draws.")(
    nightly.nightly
)
app.add_typer(attest.app, name="attest")
app.add_typer(key.app, name="key")
app.add_typer(log.app, name="log")
app.add_typer(cache.app, name="cache")
app.command("submit", cls=ComputingCommand, short_help="Hand attestations over to a registry.")(submit.submit)
app.command("claim", cls=ComputingCommand, short_help="Ask a registry which steps to verify next.")(claim.claim)
app.add_typer(registry.app, name="registry")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit; the code is the verdict's (auditkit/verdict.py), never 1."""
    signals = Signals()
    signals.install()
    console.prepare()
    argv = list(sys.argv[1:] if arguments is None else arguments)
    code = run(argv, signals)
    console.finish()
    signals.leave(code)


def run(argv: list[str], signals: Signals) -> int:
    """Run one command line and give its exit code; every failure is told on stderr and, with --json, on stdout too."""
    try:
        outcome = _dispatch(argv)
        if signals.code:  # whatever came of a command that was told to stop, it did not come to its end
            raise KeyboardInterrupt
        signals.end_at_once()
    except KeyboardInterrupt:
        outcome = _interrupted(argv, signals.code)
    code = outcome.verdict.code
    if outcome.text:
        try:
            console.emit(outcome.text)
        except console.OutputFailed as error:
            console.tell(f"error: the result could not be written: {error.strerror}")
            code = worst([outcome.verdict, Verdict.UNAVAILABLE]).code
    return signals.code or code


def _dispatch(argv: list[str]) -> Outcome:
    """Parse and run; any exception becomes the outcome that users see."""
    try:
        result = typer.main.get_command(app).main(argv, prog_name="auditkit", standalone_mode=False)
    except _PARSE_ERROR as error:
        return _failed(argv, Verdict.USAGE, _sentence(error), _usage_hint(error))
    except AuditkitError as error:
        return _failed(argv, error.verdict, error.message, error.hint)
    except MemoryError:
        return _failed(argv, Unsupported.verdict, "out of memory", "`auditkit plan` says how much a step needs")
    except SystemExit:
        # typer's own way out when the reader of its help went away
        return Outcome(Verdict.MATCH, "")
    except OSError as error:
        return _failed(argv, Unavailable.verdict, _os_text(error), "")
    except Exception as error:  # noqa: BLE001 - the one place that may: a bug ends as code 70, never as Python's 1
        return _internal(argv, error)
    if result == INTERRUPTED:
        raise KeyboardInterrupt
    if isinstance(result, Outcome):
        return result
    return Outcome(Verdict.MATCH if not result else UsageError.verdict, "")


def _failed(argv: list[str], verdict: Verdict, message: str, hint: str) -> Outcome:
    console.tell(f"error: {console.printable(message)}")
    if hint:
        console.tell(f"hint: {console.printable(hint)}")
    return Outcome(verdict, error_json(verdict, message, hint) if "--json" in argv else "")


def _interrupted(argv: list[str], code: int) -> Outcome:
    """The outcome of a signal; `code` is its exit code, which the JSON object names as well."""
    message, hint = "interrupted", "run the same command again: downloads resume"
    outcome = _failed([], Verdict.INTERRUPTED, message, hint)
    text = error_json(Verdict.INTERRUPTED, message, hint, code=code or INTERRUPTED)
    return Outcome(outcome.verdict, text) if "--json" in argv else outcome


def _internal(argv: list[str], error: Exception) -> Outcome:
    if os.environ.get("AUDITKIT_DEBUG"):
        console.tell("".join(traceback.format_exception(error)).rstrip())
    message = f"internal error: {type(error).__name__}: {error}"
    return _failed(argv, Verdict.INTERNAL, message, "set AUDITKIT_DEBUG=1 for the traceback, and please report it")


def _os_text(error: OSError) -> str:
    named = f"{error.filename}: " if error.filename else ""
    return named + (error.strerror or str(error)).lower()


def _sentence(error: Exception) -> str:
    """The parser's message in this program's manner: lower case, no final period."""
    text = str(getattr(error, "message", "") or error)
    formatter = getattr(error, "format_message", None)
    if callable(formatter):
        text = str(formatter())
    text = " ".join(text.split()).rstrip(".")
    return text[:1].lower() + text[1:]


def _usage_hint(error: Exception) -> str:
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "auditkit")
    return f"{path} --help"
