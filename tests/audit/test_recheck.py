"""Rechecking attestations: honest ones hold, copied digests and false accusations do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import auditkit
from auditkit.audit import recheck as recheck_module
from auditkit.audit.attest import Attester
from auditkit.audit.recheck import Recheck, recheck
from auditkit.errors import UsageError
from auditkit.formats.step_audit import Digests
from auditkit.formats.work import work_key
from auditkit.replay.report import Report
from auditkit.replay.run import open_run
from auditkit.trust.attested import Attested, read_attestation
from auditkit.trust.keys import PrivateKey
from auditkit.verdict import Verdict
from tests.replay.flaky import FlakyBackend, FlippedOps
from tests.replay.make_run import Parts, flip_state, publish

ALICE, BOB = (PrivateKey(bytes([n]) * 32) for n in (1, 2))
KEYS = {key.public.keyid: key.public for key in (ALICE, BOB)}


def attested(folder: Path, key: PrivateKey = ALICE, **options: Any) -> list[Attested]:
    """What an auditor signs, read back as everybody reads it."""
    attester = Attester(key)
    report = auditkit.verify(folder, work_key=attester.work_key, **options)
    with open_run(str(folder)) as run:
        return [
            read_attestation(signed.envelope, KEYS, records=run.records) for signed in attester.attest(report).signed
        ]


def one(attestation: Attested, folder: Path, **options: Any) -> Recheck:
    (found,) = recheck([attestation], KEYS, str(folder), **options)
    assert found.attested is attestation
    return found


@pytest.fixture(scope="module")
def lie(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose step 4 does not lead to its state 5."""
    changed = parts.copy()
    changed.states[5] = flip_state(parts.states[5], "params", "model.norm.weight", 0)
    return publish(changed, tmp_path_factory.mktemp("lie") / "lie")


def test_an_honest_match_holds(honest: Path) -> None:
    (found,) = attested(honest, step=6)
    checked = one(found, honest)
    assert checked.verdict is Verdict.MATCH
    assert checked.message == "MATCH: digests and proof of work are those of a replay here"
    assert checked.here is not None and checked.here.work == found.work


def test_an_honest_mismatch_holds(lie: Path) -> None:
    (found,) = attested(lie, step=4)
    assert found.verdict is Verdict.MISMATCH
    assert one(found, lie).verdict is Verdict.MATCH


def test_an_honest_mismatch_without_a_result_holds(parts: Parts, tmp_path: Path) -> None:
    changed = parts.copy()
    changed.states[4] = flip_state(parts.states[4], "params", "model.norm.weight", 0)
    changed.states[4].params["model.norm.weight"][...] = 3e38
    folder = publish(changed, tmp_path / "lie")
    (found,) = attested(folder, step=4)
    assert found.computed is None
    checked = one(found, folder)
    assert (checked.verdict, checked.message) == (Verdict.MATCH, "MISMATCH: without a result, as here")


@pytest.mark.parametrize(
    "work",
    [
        "0" * 64,
        "of another auditor",
        "of another step",
        "of another run",
    ],
)
def test_copied_digests_without_work_are_untrusted(honest: Path, work: str) -> None:
    """The digests of a record are public: all that a copier lacks is the work."""
    (mine,) = attested(honest, step=6)
    keys = {
        "of another auditor": lambda run_id, step: work_key(BOB.public.raw, run_id, step),
        "of another step": lambda run_id, step: work_key(ALICE.public.raw, run_id, step + 1),
        "of another run": lambda run_id, step: work_key(ALICE.public.raw, "0" * 64, step),
    }
    if work in keys:
        work = auditkit.verify(honest, step=6, work_key=keys[work]).steps[0].work
    checked = one(replace(mine, work=work), honest)
    assert checked.verdict is Verdict.UNTRUSTED
    assert "the digests are right and may be copied" in checked.message
    assert work in checked.message and mine.work in checked.message
    assert "nothing shows that this auditor computed the step" in checked.hint


def test_a_false_mismatch_is_untrusted(honest: Path) -> None:
    (mine,) = attested(honest, step=6)
    assert mine.computed is not None
    false = replace(mine, verdict=Verdict.MISMATCH, computed=replace(mine.computed, state="f" * 64))
    checked = one(false, honest)
    assert checked.verdict is Verdict.UNTRUSTED
    assert "says MISMATCH, digests not reproduced: state " + "f" * 64 in checked.message
    assert mine.computed.state in checked.message


@pytest.mark.parametrize("name", ["state", "gradient", "micro_batches"])
def test_each_digest_must_be_reproduced(honest: Path, name: str) -> None:
    (mine,) = attested(honest, step=2)
    assert mine.computed is not None
    other = Digests(**{**{n: getattr(mine.computed, n) for n in Digests.__slots__}, name: "e" * 64})
    checked = one(replace(mine, computed=other), honest)
    assert checked.verdict is Verdict.UNTRUSTED and f"not reproduced: {name} " in checked.message


def test_a_false_mismatch_with_the_right_digests_is_untrusted(honest: Path) -> None:
    (mine,) = attested(honest, step=6)
    checked = one(replace(mine, verdict=Verdict.MISMATCH), honest)
    assert (checked.verdict, checked.message) == (Verdict.UNTRUSTED, "says MISMATCH, a replay here says MATCH")


def test_a_false_mismatch_without_a_result_is_untrusted(honest: Path) -> None:
    (mine,) = attested(honest, step=6)
    checked = one(replace(mine, verdict=Verdict.MISMATCH, computed=None, work=""), honest)
    assert checked.verdict is Verdict.UNTRUSTED and "no result in the attestation" in checked.message


def test_a_false_match_of_a_lie_is_untrusted(lie: Path) -> None:
    (mine,) = attested(lie, step=4)
    checked = one(replace(mine, verdict=Verdict.MATCH, computed=mine.expected), lie)
    assert checked.verdict is Verdict.UNTRUSTED and "says MATCH, digests not reproduced: state" in checked.message


def test_about_another_run_or_record_is_untrusted(honest: Path, lie: Path) -> None:
    (mine,) = attested(honest, step=6)
    assert "about run 00" in one(replace(mine, run_id="0" * 64), honest).message
    for other in (replace(mine, record_sha256="0" * 64), replace(mine, expected=Digests(*["0" * 64] * 3))):
        checked = one(other, honest)
        assert (checked.verdict, checked.message) == (Verdict.UNTRUSTED, "about another record than that of step 6")


def test_what_was_not_decided_cannot_be_repeated(honest: Path, parts: Parts, tmp_path: Path) -> None:
    folder = publish(parts, tmp_path / "run")
    (folder / "states" / "00000004" / "shard-00000.safetensors.zst").unlink()
    (found,) = attested(folder, step=4)
    assert found.verdict is Verdict.UNAVAILABLE
    checked = one(found, honest)
    assert checked.verdict is Verdict.INCOMPLETE and checked.here is None
    assert checked.message == "says UNAVAILABLE: nothing was computed, so there is nothing to repeat"


def test_a_replay_here_without_a_result_decides_nothing(honest: Path, parts: Parts, tmp_path: Path) -> None:
    (found,) = attested(honest, step=4)
    folder = publish(parts, tmp_path / "run")
    (folder / "states" / "00000004" / "shard-00000.safetensors.zst").unlink()
    checked = one(found, folder)
    assert checked.verdict is Verdict.UNAVAILABLE and "not decided here" in checked.message
    checked = one(found, honest, backend=FlakyBackend(FlippedOps("adamw"), 1, "flaky"))
    assert checked.verdict is Verdict.MACHINE_FAULT
    (folder / "records.bin").write_bytes(b"")
    checked = one(found, folder)
    assert checked.verdict is Verdict.BAD_ARTIFACT and "not replayed here" in checked.message and checked.here is None


def test_many_are_replayed_together_where_they_can_be(honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two auditors, three steps, one of them twice: two passes over the run, and the answers in the order asked."""
    calls: list[tuple[int, ...]] = []

    def counting(*arguments: Any, **options: Any) -> Report:
        report = auditkit.verify(*arguments, **options)
        calls.append(report.wanted)
        return report

    monkeypatch.setattr(recheck_module, "verify", counting)
    alices, bobs = attested(honest, ALICE, steps="5:7"), attested(honest, BOB, steps="6:8")
    copied = replace(bobs[0], work=alices[1].work)
    asked = [copied, *alices, bobs[1], bobs[0]]
    found = recheck(asked, KEYS, str(honest))
    assert [checked.attested for checked in found] == asked
    assert [checked.verdict for checked in found] == [Verdict.UNTRUSTED, *[Verdict.MATCH] * 4]
    assert calls == [(5, 6, 7), (6,), (6,)]


def test_no_attestations_need_no_replay() -> None:
    assert recheck([], KEYS, "there is no such run") == []


def test_a_call_that_makes_no_sense_is_refused(honest: Path) -> None:
    (found,) = attested(honest, step=4)
    with pytest.raises(UsageError):
        recheck([found], KEYS, str(honest), device="abacus")
