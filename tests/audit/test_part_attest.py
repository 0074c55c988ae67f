"""Attestations of some micro-batches: signed, checked, rechecked, and never counted as the step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import auditkit
from auditkit.audit.attest import Attester, Signed
from auditkit.audit.keep import keep
from auditkit.audit.recheck import Recheck, recheck
from auditkit.replay.run import open_run
from auditkit.trust.attested import Attested, read_attestation
from auditkit.trust.check import KnownRun, check
from auditkit.trust.coverage import Status
from auditkit.trust.keys import PrivateKey
from auditkit.trust.policy import Trust
from auditkit.verdict import Verdict
from tests.replay.make_run import Parts, change_leaf, publish

ALICE, BOB = (PrivateKey(bytes([n]) * 32) for n in (1, 2))
KEYS = {key.public.keyid: key.public for key in (ALICE, BOB)}


def signed(folder: Path, key: PrivateKey = ALICE, **options: Any) -> Signed:
    attester = Attester(key)
    report = auditkit.verify(folder, step=4, work_key=attester.work_key, **options)
    (one,) = attester.attest(report).signed
    return one


def attested(folder: Path, key: PrivateKey = ALICE, **options: Any) -> Attested:
    with open_run(str(folder)) as run:
        return read_attestation(signed(folder, key, **options).envelope, KEYS, records=run.records)


def rechecked(one: Attested, folder: Path) -> Recheck:
    (found,) = recheck([one], KEYS, str(folder))
    return found


def test_a_part_is_signed_without_a_summary(honest: Path, tmp_path: Path) -> None:
    one = signed(honest, micro_batches="1")
    assert one.verdict is Verdict.MATCH and one.summary == b""
    assert one.name == f"step-4.part.{ALICE.public.keyid8}"
    assert [path.name for path in keep(one, tmp_path)] == [f"{one.name}.json"]


def test_an_honest_part_holds_and_copied_digests_do_not(honest: Path) -> None:
    found = attested(honest, micro_batches="1")
    assert rechecked(found, honest).verdict is Verdict.MATCH
    for work in ("0" * 64, attested(honest, BOB, micro_batches="1").work, attested(honest, micro_batches="0-1").work):
        refused = rechecked(replace(found, work=work), honest)
        assert refused.verdict is Verdict.UNTRUSTED and "proof of work" in refused.message


def test_a_false_accusation_is_refuted(honest: Path) -> None:
    found = attested(honest, micro_batches="1")
    assert found.part is not None
    lie = replace(found, verdict=Verdict.MISMATCH, part=replace(found.part, computed="0" * 64))
    refused = rechecked(lie, honest)
    assert refused.verdict is Verdict.UNTRUSTED
    assert f"leaves {'0' * 64} in the attestation" in refused.message


def test_an_honest_mismatch_of_a_part_holds(parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.results[4] = change_leaf(parts.results[4], 1, gradient="0" * 64)
    folder = publish(lie, tmp_path / "lie")
    found = attested(folder, micro_batches="1")
    assert found.verdict is Verdict.MISMATCH and found.work
    assert rechecked(found, folder).verdict is Verdict.MATCH
    assert rechecked(attested(folder, micro_batches="0"), folder).verdict is Verdict.MATCH


def test_parts_and_wholes_are_rechecked_together(honest: Path) -> None:
    ones = [attested(honest, micro_batches="0"), attested(honest), attested(honest, BOB, micro_batches="all")]
    assert [one.verdict for one in recheck(ones, KEYS, str(honest))] == [Verdict.MATCH] * 3


def test_two_keys_on_all_micro_batches_do_not_satisfy_a_policy(honest: Path) -> None:
    files = [(str(n), signed(honest, key, micro_batches="all").envelope) for n, key in enumerate((ALICE, BOB))]
    with open_run(str(honest)) as run:
        known = KnownRun(run.run_id, run.name, run.records)
        report = check(files, Trust.of(list(KEYS.values()), None), lambda run_id: known, known, now=4e9)
    (step,) = report.steps
    assert all(file.says is not None and not file.why_not for file in report.files)
    assert (step.status, step.matches) == (Status.PARTIAL, 0)
    assert report.verdict is Verdict.INCOMPLETE
    assert report.to_dict()["files"][0]["micro_batches"] == "0-1"  # type: ignore[index]


def test_a_part_that_could_not_be_read_is_undecided(honest: Path, tmp_path: Path) -> None:
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(honest, folder)
    (folder / "leaves.bin").unlink()
    found = attested(folder, micro_batches="1")
    assert found.verdict is Verdict.UNAVAILABLE
    assert found.part is not None and (found.part.leaves, found.part.computed, found.work) == ("", "", "")
