"""`--attest`: each step of a verification is signed, and its files written, as soon as it is decided.

So an interrupted verification keeps what it had. Key and folder are tried before anything is replayed; what goes wrong
later is told at the end, beside the verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from auditkit.cli.console import printable
from auditkit.cli.outcome import Outcome, to_json
from auditkit.errors import AuditkitError, UsageError
from auditkit.verdict import worst

if TYPE_CHECKING:
    from auditkit.audit.attest import Attester, Signed
    from auditkit.replay.report import Report

Key = Annotated[
    Path | None,
    typer.Option("--attest", metavar="KEYFILE", help="Sign what is found about each step with this private key."),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--attest-dir",
        metavar="DIR",
        help="Where they are written; none is ever replaced, a further one is numbered. Default: here.",
    ),
]
Automation = Annotated[
    str | None,
    typer.Option(
        "--automation", metavar="ci|nightly", help="Declare that no person, but such a job, started the program."
    ),
]


class Signing:
    """The signing of one verification."""

    def __init__(self, attester: Attester, folder: Path) -> None:
        self.attester = attester
        self._folder = folder
        self._kept: list[tuple[Signed, list[Path]]] = []
        self._problems: list[tuple[int, AuditkitError]] = []

    @classmethod
    def begin(cls, key: Path | None, folder: Path | None, automation: str | None) -> Signing | None:
        """The signing that was asked for; None without a key.

        UsageError: options that belong to --attest without it. The errors of the key file, and Unsupported for a folder
        that takes no files.
        """
        if key is None:
            for name, value in (("--attest-dir", folder), ("--automation", automation)):
                if value is not None:
                    raise UsageError(f"{name} belongs to --attest", hint="--attest KEYFILE signs what is found")
            return None
        from auditkit.audit.attest import Attester
        from auditkit.audit.keep import prepare
        from auditkit.trust.keys import load_private

        attester = Attester(load_private(key), automation or "")
        prepare(folder or Path())
        return cls(attester, folder or Path())

    def step(self, report: Report) -> None:
        """Sign what a report of one step says, and write it."""
        from auditkit.audit.keep import keep

        try:
            for signed in self.attester.attest(report).signed:
                self._kept.append((signed, keep(signed, self._folder)))
        except AuditkitError as error:
            self._problems.append((report.wanted[0], error))

    def outcome(self, report: Report, text: str, *, json: bool) -> Outcome:
        """The verification's outcome, `text` or JSON, with what was signed; its code is the worst of all."""
        verdict = worst([report.verdict, *(error.verdict for _, error in self._problems)])
        if json:
            return Outcome(
                verdict, to_json({**report.to_dict(), "code": verdict.code, "attestations": self._value(report)})
            )
        return Outcome(verdict, text + "\n".join(self._lines(report)) + "\n")

    def _value(self, report: Report) -> dict[str, object]:
        """What was signed as JSON values."""
        from auditkit.audit.attest import unsigned

        return {
            "keyid": self.attester.keyid,
            "files": [
                {"step": signed.step, "verdict": signed.verdict.name, "path": str(path)}
                for signed, paths in self._kept
                for path in paths
            ],
            "not_signed": [{"steps": list(entry.steps), "reason": entry.reason} for entry in unsigned(report)],
            "problems": [
                {"step": step, "verdict": error.verdict.name, "message": error.message, "hint": error.hint}
                for step, error in self._problems
            ],
        }

    def _lines(self, report: Report) -> Iterator[str]:
        from auditkit.audit.attest import unsigned

        yield f"signed by {self.attester.keyid}:" if self._kept else "nothing was signed"
        for signed, paths in self._kept:
            yield from (f"  step {signed.step}  {signed.verdict.name}  {printable(str(path))}" for path in paths)
        refused = unsigned(report)
        if refused:
            yield "not signed:"
            yield from (f"  - {printable(entry.describe())}" for entry in refused)
        for step, error in self._problems:
            yield f"{error.verdict.name}: step {step} is not attested: {printable(error.message)}"
            if error.hint:
                yield f"  hint: {printable(error.hint)}"
