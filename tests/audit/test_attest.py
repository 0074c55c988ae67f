"""Attestations of a report: what is signed and what is not, and that every reader accepts what is."""

from __future__ import annotations

import os
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

import auditkit
from auditkit.audit.attest import Attester, Signed, steps_text
from auditkit.audit.source import source_digest
from auditkit.errors import Unsupported, UsageError
from auditkit.formats.dsse import Envelope
from auditkit.formats.statement import Statement
from auditkit.formats.step_audit import StepAudit
from auditkit.model.step import step
from auditkit.numerics import reference
from auditkit.replay.backend import Backend
from auditkit.replay.report import Report
from auditkit.replay.run import open_run
from auditkit.trust.attested import Attested, read_attestation, read_summary
from auditkit.trust.keys import PrivateKey
from auditkit.verdict import Verdict
from tests.replay.flaky import FlakyBackend, FlippedOps
from tests.replay.make_run import Parts, flip_state, publish

KEY = PrivateKey(bytes(range(32)))
ATTESTER = Attester(KEY)


def audit(folder: Path, **options: Any) -> Report:
    return auditkit.verify(folder, work_key=ATTESTER.work_key, **options)


def read(data: bytes, folder: Path) -> Attested:
    """As a reader does who has the run."""
    with open_run(str(folder)) as run:
        return read_attestation(data, {KEY.public.keyid: KEY.public}, run_id=run.run_id, records=run.records)


def predicate(data: bytes) -> StepAudit:
    return StepAudit.from_value(Statement.parse(Envelope.parse(data).payload).predicate)


def lie_about_state_5(parts: Parts, tmp_path: Path) -> Path:
    lie = parts.copy()
    lie.states[5] = flip_state(parts.states[5], "params", "model.norm.weight", 0)
    return publish(lie, tmp_path / "lie")


def test_a_match_is_attested_with_its_work_and_a_summary(honest: Path, parts: Parts) -> None:
    report = audit(honest, step=6)
    made = ATTESTER.attest(report)
    (signed,) = made.signed
    assert made.unsigned == ()
    found = read(signed.envelope, honest)
    key = ATTESTER.work_key(report.run_id, 6)
    _, own = step(parts.states[6], parts.batches[6], parts.recipe, reference, work_key=key)
    assert (found.step, found.verdict, found.work) == (6, Verdict.MATCH, own.work)
    assert found.computed == found.expected == report.steps[0].expected
    assert found.keyid == ATTESTER.keyid == KEY.public.keyid
    with open_run(str(honest)) as run:
        summary = read_summary(signed.summary, {KEY.public.keyid: KEY.public}, records=run.records)
    assert (summary.run, summary.step, summary.record_sha256) == ("tiny", 6, found.record_sha256)


def test_what_is_said_of_run_program_and_machine(honest: Path) -> None:
    report = audit(honest, step=2, device="cpu", threads=1)
    said = predicate(ATTESTER.attest(report).signed[0].envelope)
    assert (said.run, said.run_id, said.manifest, said.numerics) == ("tiny", report.run_id, report.manifest, 1)
    assert said.checks == dict.fromkeys(range(1, 9), "ok")
    assert (said.verifier.name, said.verifier.version) == ("auditkit", report.machine["auditkit"])
    assert said.verifier.source == source_digest()
    assert said.machine.device == "cpu" and said.machine.family in ("cpu-x86_64", "cpu-arm64")
    assert said.machine.driver == said.machine.cupy == "" and said.machine.numpy
    assert said.started <= said.finished and said.milliseconds == round(report.steps[0].seconds * 1000)
    assert (said.automation, said.message) == ("", "")


def test_a_card_is_named_with_its_driver(honest: Path) -> None:
    report = audit(honest, step=2)
    card = {
        "device": "cuda:0 (NVIDIA\tH200)",
        "architecture": "sm_90",
        "driver": "580.95.05 (CUDA 13.0)",
        "cupy": "14.2.0",
    }
    said = predicate(ATTESTER.attest(replace(report, machine={**report.machine, **card})).signed[0].envelope)
    assert (said.machine.device, said.machine.family) == ("cuda:0 (NVIDIA?H200)", "cuda-sm_90")
    assert (said.machine.driver, said.machine.cupy) == ("580.95.05 (CUDA 13.0)", "14.2.0")


@pytest.mark.parametrize("automation", ["", "ci", "nightly"])
def test_automation_is_declared(honest: Path, automation: str) -> None:
    attester = Attester(KEY, automation)
    report = auditkit.verify(honest, step=1, work_key=attester.work_key)
    assert read(attester.attest(report).signed[0].envelope, honest).automation == automation


def test_another_automation_is_refused() -> None:
    with pytest.raises(UsageError, match="not ci or nightly"):
        Attester(KEY, "weekly")


def test_a_mismatch_is_attested_and_has_no_summary(parts: Parts, tmp_path: Path) -> None:
    folder = lie_about_state_5(parts, tmp_path)
    report = audit(folder, step=4)
    (signed,) = ATTESTER.attest(report).signed
    found = read(signed.envelope, folder)
    assert found.verdict is Verdict.MISMATCH and signed.summary == b""
    assert found.computed is not None and found.computed.state == report.steps[0].computed != found.expected.state
    assert found.work == report.steps[0].work != ""
    assert predicate(signed.envelope).message == "first differing field of the record: state_after"
    assert predicate(signed.envelope).checks[7] == "failed"


def test_a_mismatch_without_a_result_is_attested(parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.states[4] = flip_state(parts.states[4], "params", "model.norm.weight", 0)
    lie.states[4].params["model.norm.weight"][...] = 3e38
    folder = publish(lie, tmp_path / "lie")
    (signed,) = ATTESTER.attest(audit(folder, step=4)).signed
    found = read(signed.envelope, folder)
    assert (found.verdict, found.computed, found.work) == (Verdict.MISMATCH, None, "")


def test_a_state_0_that_the_seed_does_not_give_is_attested(parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.states[0] = flip_state(parts.states[0], "params", "model.norm.weight", 0)
    folder = publish(lie, tmp_path / "lie")
    (signed,) = ATTESTER.attest(audit(folder, step=0)).signed
    assert read(signed.envelope, folder).verdict is Verdict.MISMATCH
    assert predicate(signed.envelope).checks[4] == "failed"


def test_steps_that_could_not_be_decided_are_attested_as_such(honest: Path, parts: Parts, tmp_path: Path) -> None:
    folder = publish(parts, tmp_path / "run")
    (folder / "states" / "00000004" / "shard-00000.safetensors.zst").unlink()
    made = ATTESTER.attest(audit(folder, steps="3:6"))
    assert [signed.verdict for signed in made.signed] == [Verdict.UNAVAILABLE, Verdict.UNAVAILABLE, Verdict.MATCH]
    found = read(made.signed[1].envelope, folder)
    assert (found.step, found.computed, found.work) == (4, None, "")


def test_what_was_computed_before_a_file_turned_out_bad_is_not_signed(parts: Parts, tmp_path: Path) -> None:
    """Step 3 matches, the files of the published state after it do not: that is no verdict about the step."""
    folder = publish(parts, tmp_path / "run")
    shard = folder / "states" / "00000004" / "shard-00000.safetensors.zst"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\0")
    report = audit(folder, step=3)
    assert report.verdict is Verdict.BAD_ARTIFACT and report.steps[0].obtained is not None
    found = read(ATTESTER.attest(report).signed[0].envelope, folder)
    assert (found.verdict, found.computed, found.work) == (Verdict.BAD_ARTIFACT, None, "")


def test_a_machine_fault_is_not_signed(honest: Path) -> None:
    report = audit(honest, step=4, backend=FlakyBackend(FlippedOps("adamw"), 1, "flaky"))
    made = ATTESTER.attest(report)
    assert made.signed == ()
    assert [entry.describe() for entry in made.unsigned] == [
        "step 4: MACHINE_FAULT is about this machine and says nothing about the publisher"
    ]


def test_steps_beside_a_machine_fault_are_signed(honest: Path) -> None:
    class Once(Backend):
        def step(self, state, tokens, recipe, **options):  # type: ignore[no-untyped-def]
            self.ops.armed = state.step == 4 and options["on_micro_batch"] is not None
            return super().step(state, tokens, recipe, **options)

    made = ATTESTER.attest(audit(honest, steps="4:7", backend=Once(FlippedOps("adamw"), 1, "once")))
    assert [(signed.step, signed.verdict) for signed in made.signed] == [(5, Verdict.MATCH), (6, Verdict.MATCH)]
    assert [entry.steps for entry in made.unsigned] == [(4,)]


def test_a_verification_that_ends_before_any_step_signs_nothing_and_says_why(parts: Parts, tmp_path: Path) -> None:
    folder = publish(parts, tmp_path / "run")
    records = folder / "records.bin"
    records.write_bytes(records.read_bytes()[:-1] + b"\0")
    made = ATTESTER.attest(audit(folder, steps="2:5"))
    (entry,) = made.unsigned
    assert made.signed == () and entry.steps == (2, 3, 4)
    assert "no record was read and believed" in entry.reason and "BAD_ARTIFACT: records.bin" in entry.reason
    (folder / "run.json").write_bytes(b"{}")
    (entry,) = ATTESTER.attest(audit(folder, steps="2:5")).unsigned
    assert entry.steps == () and entry.describe() == entry.reason


def test_a_step_on_the_way_is_not_signed_but_named(parts: Parts, tmp_path: Path) -> None:
    folder = lie_about_state_5(replace(parts, published=(0, 4, 8)), tmp_path)
    report = audit(folder, step=6)
    made = ATTESTER.attest(report)
    assert [(signed.step, signed.verdict) for signed in made.signed] == [(6, Verdict.INCOMPLETE)]
    (entry,) = made.unsigned
    assert entry.describe() == "step 4: MISMATCH on the way, not asked for: --step 4 signs it"


def test_a_report_without_a_work_key_cannot_be_signed(honest: Path) -> None:
    with pytest.raises(UsageError, match="step 3 was verified without a key"):
        ATTESTER.attest(auditkit.verify(honest, step=3))


def test_a_machine_without_a_family_cannot_sign(honest: Path) -> None:
    report = audit(honest, step=3)
    with pytest.raises(Unsupported, match="no hardware family"):
        ATTESTER.attest(replace(report, machine={**report.machine, "processor": ""}))


def test_messages_name_no_home_folder_and_fit(honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = audit(honest, step=3)
    home = os.path.expanduser("~")
    bad = replace(
        report.steps[0], verdict=Verdict.UNAVAILABLE, message=f"cannot read {home}/x\n\u202e\ud800" + "y" * 5000
    )
    said = predicate(ATTESTER.attest(replace(report, steps=(bad,))).signed[0].envelope).message
    assert said.startswith("cannot read ~/x???yyy") and len(said) == 2000


def test_the_steps_of_a_long_report_are_named_in_words() -> None:
    assert steps_text((3,)) == "step 3"
    assert steps_text((3, 4, 5, 9)) == "steps 3:6,9"
    assert steps_text(tuple(range(0, 60, 2))).endswith("and 20 more ranges")


def test_names_of_files() -> None:
    signed = Signed(7, Verdict.MATCH, "step-7.1a2b3c4d", b"a", b"b")
    assert list(signed.files()) == [("step-7.1a2b3c4d.json", b"a"), ("step-7.1a2b3c4d.svr.json", b"b")]
    assert list(signed.files(2)) == [("step-7.1a2b3c4d.2.json", b"a"), ("step-7.1a2b3c4d.2.svr.json", b"b")]
    assert list(replace(signed, summary=b"").files()) == [("step-7.1a2b3c4d.json", b"a")]


def test_the_subject_is_the_record_of_the_step(honest: Path) -> None:
    (signed,) = ATTESTER.attest(audit(honest, step=5)).signed
    statement = Statement.parse(Envelope.parse(signed.envelope).payload)
    with open_run(str(honest)) as run:
        record = run.records[5].encode()
    assert [(s.name, s.sha256) for s in statement.subjects] == [("tiny/step/5", sha256(record).hexdigest())]
    assert signed.name == f"step-5.{KEY.public.keyid[:8]}"
