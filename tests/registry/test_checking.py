"""Which run an envelope is about is found before anything of it is believed, and nothing but that run is."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest

from auditkit.errors import AuditkitError, Untrusted, UsageError
from auditkit.formats.record import log_root
from auditkit.formats.step_audit import Digests
from auditkit.registry.checking import Records, check
from auditkit.registry.runs import KnownRun, Runs
from auditkit.replay.run import Run
from auditkit.trust.envelope import sign
from tests.registry.bad_envelopes import bad_envelopes
from tests.registry.makers import NOW, Maker, key

KEYS = {key(n).public.keyid: key(n).public for n in (1, 2)}


def renamed(opened: Run, name: str) -> KnownRun:
    """The same run under another name: only the run id in its records tells them apart."""
    manifest = replace(opened.manifest, name=name)
    records = [replace(record, run=manifest.run_id()) for record in opened.records]
    return KnownRun(replace(manifest, log=replace(manifest.log, root=log_root(records))), records)


@pytest.fixture
def other(opened: Run) -> KnownRun:
    """Another run."""
    return renamed(opened, "another")


def test_each_run_has_its_own(run: KnownRun, other: KnownRun) -> None:
    run.number, other.number = 7, 8
    runs = Runs([run, other])
    for served in (run, other):
        new = check(Maker(served).signed(5, key(1)), KEYS, runs, now=NOW)
        assert (new.run, new.step, new.keyid.hex()) == (served.number, 5, key(1).public.keyid)


def test_an_attestation_of_one_is_none_of_the_other(run: KnownRun, other: KnownRun, opened: Run) -> None:
    for served in (Runs([other]), Runs([other, renamed(opened, "third")])):
        with pytest.raises(Untrusted, match="about"):
            check(Maker(run).signed(5, key(1)), KEYS, served, now=NOW)
    # the other run's name over this run's record
    audit = replace(Maker(run).audit(5), run_id=other.run_id, run=other.name)
    forged = sign(audit.statement(hashlib.sha256(run.record(5)).hexdigest()), key(1)).encode()
    with pytest.raises(Untrusted):
        check(forged, KEYS, Runs([run, other]), now=NOW)


@pytest.mark.parametrize("several", [False, True])
def test_what_is_bad_is_bad_whether_one_run_is_served_or_several(
    run: KnownRun, other: KnownRun, maker: Maker, several: bool
) -> None:
    runs = Runs([run, other] if several else [run])
    for name, (envelope, verdict) in bad_envelopes(maker).items():
        with pytest.raises(AuditkitError) as caught:
            check(envelope, KEYS, runs, now=NOW)
        assert caught.value.verdict is verdict, name


def test_a_run_given_twice(run: KnownRun) -> None:
    with pytest.raises(UsageError, match="given twice"):
        Runs([run, run])


def test_records_read_one_by_one(run: KnownRun, opened: Run) -> None:
    records = Records(run)
    assert len(records) == 1000
    assert records[999] == opened.records[999]
    assert records[3:5] == opened.records[3:5]
    assert list(records) == opened.records
    with pytest.raises(IndexError):
        records[1000]
    assert Digests.of(records[0]) == Digests.of(opened.records[0])
