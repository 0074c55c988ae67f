"""Nights of the nightly job in tests: its tools with a beacon, a clock and a cache of their own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auditkit.audit.assigned import Subject
from auditkit.audit.attest import Attester
from auditkit.audit.nightly import Night, Tools
from auditkit.replay.backend import choose
from auditkit.replay.report import Report
from auditkit.replay.run import open_run
from auditkit.replay.verify import verify
from auditkit.trust import beacon
from tests.store.tools import FakeClock, Story

BEACON = beacon.parse("5a" * 32)
DAY = 86400.0


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the user's cache nor the user's proxies."""
    monkeypatch.setenv("AUDITKIT_CACHE", str(tmp_path / "cache"))
    for kind in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{kind}_proxy", raising=False)
        monkeypatch.delenv(f"{kind}_proxy".upper(), raising=False)


@pytest.fixture
def clock() -> FakeClock:
    """A clock whose waits take no time."""
    return FakeClock()


Make = Callable[..., Tools]


@pytest.fixture
def make(clock: FakeClock) -> Make:
    """The tools of a night over a real run: a folder or an address."""

    def tools(run: object, attester: Attester | None = None, **changed: Any) -> Tools:
        def subject() -> Subject:
            with open_run(str(run), clock=clock) as opened:
                return Subject(opened.name, opened.run_id, opened.size)

        def replay(steps: str) -> Report:
            work_key = attester.work_key if attester else None
            return verify(str(run), steps=steps, backend=choose("cpu", 1), clock=clock, work_key=work_key)

        made = Tools(clock, Story(), subject, lambda: (BEACON, {}), replay, attester=attester)
        return replace(made, **changed)

    return tools


def result(night: Night) -> dict[str, Any]:
    """What the night's folder says."""
    found: dict[str, Any] = json.loads((night.folder / "result.json").read_text(encoding="ascii"))
    return found
