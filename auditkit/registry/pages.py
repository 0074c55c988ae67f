"""Coverage for readers: JSON in ranges, and the page, made again only when something changed."""

from __future__ import annotations

import html
import threading
from typing import TYPE_CHECKING, Any

from auditkit.formats.digest import content_digest
from auditkit.registry.ledger import SHARE, Covered
from auditkit.registry.runs import KnownRun
from auditkit.replay.report import utc_text
from auditkit.store.progress import moment
from auditkit.trust.coverage import Status
from auditkit.trust.page import page
from auditkit.trust.page_parts import NOT_CHECKED, UNSIGNED, UNSIGNED_NOT_CHECKED, About
from auditkit.version import version

if TYPE_CHECKING:
    from auditkit.registry.service import Registry

_LOG = "not checked by this registry"
_LOG_NOT_CHECKED = "whose records these are: the registry does not check the log that the run's publisher signs"

MOST_RANGES = 10_000  # of a status in one answer


def coverage_value(covered: Covered) -> dict[str, Any]:
    """The coverage of a run as JSON values; `ranges` are half-open, and cut where `cut` says so."""
    coverage, run = covered.coverage, covered.run
    ranges = {status: coverage.ranges(status) for status in Status}
    return {
        "format": "auditkit/registry-coverage/v1",
        "run": run.run_id,
        "name": run.name,
        "steps": coverage.size,
        "position": covered.position,
        "attestations": len(coverage.rows) + len(coverage.part_rows),
        "of_parts": len(coverage.part_rows),
        "threshold": coverage.threshold,
        "families": coverage.families_needed,
        "verdict": coverage.verdict.name,
        "totals": {status.name.lower(): count for status, count in coverage.totals.items()},
        "ranges": {status.name.lower(): found[:MOST_RANGES] for status, found in ranges.items()},
        "cut": any(len(found) > MOST_RANGES for found in ranges.values()),
    }


class Pages:
    """The pages of a registry; thread-safe."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        # by run: the position that the page tells of, the page, and when it may be made again
        self._kept: dict[int, tuple[int, bytes, float]] = {}
        self._lock = threading.Lock()

    def html(self, run: KnownRun | None) -> bytes:
        """The page of a run; without one that of the only run, or a list of them. Unavailable as of the database."""
        runs = self._registry.runs.all()
        if run is None and len(runs) != 1:
            return _list(self._registry.setting.origin, runs)
        wanted = run or runs[0]
        covered = self._registry.ledger.coverage(wanted)
        now = self._registry.setting.clock.now
        with self._lock:  # one at a time: a page of a million attestations takes seconds
            position, kept, until = self._kept.get(wanted.number, (-1, b"", 0.0))
            began = now()
            if position != covered.position and began >= until:
                kept = page(covered.coverage, self._about(wanted))
                ended = now()
                self._kept[wanted.number] = covered.position, kept, ended + SHARE * (ended - began)
            return kept

    def _about(self, run: KnownRun) -> About:
        setting = self._registry.setting
        signed_log, whose = (UNSIGNED, UNSIGNED_NOT_CHECKED) if run.publisher is None else (_LOG, _LOG_NOT_CHECKED)
        return About(
            run=run.name,
            run_id=run.run_id,
            manifest=content_digest(run.manifest),
            policy=setting.policy,
            made=utc_text(moment(setting.clock)),
            program=f"auditkit {version()}, registry {setting.origin}",
            names=setting.names,
            signed_log=signed_log,
            not_checked=(*NOT_CHECKED, whose),
        )


def _list(origin: str, runs: list[KnownRun]) -> bytes:
    items = "".join(
        f'<li><a href="/runs/{run.run_id}">{html.escape(run.name)}</a>, {run.size:,} steps</li>' for run in runs
    )
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(origin)}</title>'
    policy = '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'">'
    return f"{head}{policy}<h1>{html.escape(origin)}</h1><ul>{items}</ul></html>\n".encode()
