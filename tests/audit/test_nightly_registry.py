"""Nights with a real registry: what was attested is in its log, and the next night reads it there."""

from __future__ import annotations

import itertools
import time
from dataclasses import replace
from pathlib import Path

import pytest

from auditkit.audit.assigned import Subject
from auditkit.audit.night_tools import Setting, make_tools
from auditkit.audit.nightly import Night, Plan, Tools, nightly
from auditkit.audit.submit import Status
from auditkit.replay.run import open_run
from auditkit.store.progress import Silent
from auditkit.trust.assignment import NEVER, Ranks, assign, needs
from auditkit.trust.coverage import Coverage
from auditkit.trust.coverage import Status as CoverageStatus
from auditkit.verdict import Verdict
from tests.cli.conftest import Cli, main
from tests.registry.makers import key
from tests.registry.server import RUN, running, write_policy

__all__ = ["main"]

JOB = key(1)


def cheap_beacon(subject: Subject, published: list[int]) -> bytes:
    """A beacon under which the job's first step begins at a published state, so that one replay will do."""
    for number in itertools.count():
        value = number.to_bytes(16, "big")
        if assign(Ranks(subject.run_id, JOB.public.keyid, value), subject.size, 1)[0] in published:
            return value
    raise AssertionError("there is always another number")


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry is on this machine."""
    for kind in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{kind}_proxy", raising=False)
        monkeypatch.delenv(f"{kind}_proxy".upper(), raising=False)


def test_a_night_hands_its_attestations_over_and_the_next_one_goes_by_them(tmp_path: Path, main: Cli) -> None:
    with open_run(RUN) as run:
        subject = Subject(run.name, run.run_id, run.size, JOB.public.keyid)
        beacon = cheap_beacon(subject, [step for step in run.published if step < run.size]).hex()
    folder = tmp_path / "registry"
    made = main("registry", "init", folder, "--origin", "registry.example/test")
    assert made.code == 0, made.stderr
    (vkey,) = [word for word in made.stdout.split() if word.startswith("registry.example/test+")]

    with running(folder) as server:
        setting = Setting(run=RUN, device="cpu", beacon=beacon, data=tmp_path / "data", registry=server.url)
        first = nightly(Plan(count=1), make_tools(setting, JOB, Silent(), Silent()), tmp_path / "first")
        assert first.verdict is Verdict.MATCH, first.notes
        assert [result.status for result in first.submitted] == [Status.TAKEN]

        # the reader's policy does not list the job's key: it is read all the same, for it is not to be asked twice
        policy = write_policy(tmp_path / "readers.toml", auditors=(2, 3))
        later = replace(setting, places=[f"{server.url}/log/"], log_key=vkey, policy=policy)
        tools = make_tools(later, JOB, Silent(), Silent())
        coverage = in_the_log(tools, subject)
        assert coverage.rows.step.tolist() == [drawn(first)]
        assert coverage.totals[CoverageStatus.OPEN] == subject.size
        assert needs(coverage, JOB.public.keyid)[drawn(first)] == NEVER
        assert tools.submit is not None
        again = tools.submit([("again.json", (first.folder / first.attestations[0]).read_bytes())])
        assert [(result.status, result.position) for result in again] == [(Status.KNOWN, 0)]


def in_the_log(tools: Tools, subject: Subject) -> Coverage:
    """What the log says, once it has the entry: it follows the database a moment later."""
    for _ in range(200):
        coverage, _ = tools.said(subject)
        if coverage is not None and len(coverage.rows):
            return coverage
        time.sleep(0.2)
    raise AssertionError("the attestation never got into the log")


def drawn(night: Night) -> int:
    """The one step of a night."""
    assert night.assigned is not None
    (step,) = night.assigned.steps
    return step
