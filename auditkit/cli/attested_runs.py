"""The runs that attestations are about, as `attest check` needs them: checks 1 to 3, the signed log included."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from auditkit.cli.console import printable
from auditkit.errors import AuditkitError

if TYPE_CHECKING:
    from auditkit.replay.log_check import LogFound
    from auditkit.replay.run import Run
    from auditkit.trust.check import KnownRun


class Logs:
    """The policy of a file, if one is given, and what the signed logs of runs gave by it; a run is checked once."""

    def __init__(self, policy: Path | None) -> None:
        from auditkit.trust.policy import load_policy

        self.policy = load_policy(policy) if policy else None
        self._runs: dict[str, KnownRun | AuditkitError] = {}
        self._found: dict[str, tuple[str, LogFound]] = {}  # run id: name of the run, its log

    def known(self, run: Run) -> KnownRun:
        """A run with its records, checked as `auditkit verify` does (its checks 1 to 3, by the policy); its errors."""
        if run.run_id not in self._runs:
            try:
                self._runs[run.run_id] = self._checked(run)
            except AuditkitError as error:
                self._runs[run.run_id] = error
        found = self._runs[run.run_id]
        if isinstance(found, AuditkitError):
            raise found
        return found

    def _checked(self, run: Run) -> KnownRun:
        from auditkit.audit.signed_log import Rule, SignedLog
        from auditkit.replay.verify import check_chain, check_log
        from auditkit.trust.check import KnownRun

        check_chain(run)
        check_log(run)
        rule = Rule.of(self.policy) if self.policy else None
        self._found[run.run_id] = (run.name, SignedLog(rule, whole=True).check(run, None))
        return KnownRun(run.run_id, run.name, run.records)

    def lines(self) -> Iterator[str]:
        """What the logs gave, for people; runs without one are left out."""
        for name, found in self._found.values():
            if found.detail:
                yield f"log of {printable(name)}: {printable(found.detail)}"

    def not_checked(self) -> Iterator[str]:
        """What the checks of the logs leave open."""
        for _, found in self._found.values():
            yield from found.not_checked

    def to_list(self) -> list[dict[str, object]]:
        """The logs as JSON values, those of runs without one with an empty detail."""
        return [
            {"run_id": run_id, "detail": found.detail, "not_checked": list(found.not_checked)}
            for run_id, (_, found) in self._found.items()
        ]
