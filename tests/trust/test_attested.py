"""Attestations: each speaks for one run, step, record and key, and no change of a byte or field for another one."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditkit.errors import AuditkitError, BadArtifact, Unsupported, Untrusted
from auditkit.formats import canonical
from auditkit.formats.dsse import PAYLOAD_TYPE, Envelope
from auditkit.formats.step_audit import Digests, StepAudit, sha256_of
from auditkit.trust.attested import Attested, Summary, read_attestation, read_either, read_summary
from auditkit.trust.envelope import sign_payload
from auditkit.trust.rows import NO_RESULT
from auditkit.verdict import Verdict
from tests.formats import attestations, samples
from tests.formats.attestations import AUDITS, KEY, KEYS, MATCH, MISMATCH, RECORD, SHA256, signed, signed_summary
from tests.formats.strategies import damaged, json_values

MATCHED = signed(MATCH)
STATEMENT = json.loads(Envelope.parse(MATCHED).payload)


def resigned(statement: Any, payload_type: str = PAYLOAD_TYPE) -> bytes:
    """An envelope of any statement with KEY's valid signature."""
    return sign_payload(canonical.dumps(statement), payload_type, KEY).encode()


def read(data: bytes) -> Attested:
    """As strictly as can be: bound to the run and its records."""
    return read_attestation(data, KEYS, run_id=samples.RUN_ID, record_sha256=SHA256, records=samples.CHAIN)


@pytest.mark.parametrize("name", AUDITS)
def test_what_was_signed_is_read(name: str) -> None:
    audit = AUDITS[name]
    data = signed(audit)
    attested = read(data)
    assert attested == read_attestation(data, KEYS)
    assert attested.envelope == hashlib.sha256(data).hexdigest()
    assert (attested.keyid, attested.record_sha256) == (KEY.public.keyid, SHA256)
    for field in ("run_id", "step", "verdict", "expected", "computed", "work", "automation", "finished"):
        assert getattr(attested, field) == getattr(audit, field)
    assert attested.family == audit.machine.family


def test_the_row_of_a_coverage() -> None:
    entry = read(signed(MISMATCH)).entry()
    assert (entry.step, entry.keyid, entry.verdict) == (1, KEY.public.keyid, Verdict.MISMATCH)
    assert (entry.family, entry.automation, entry.finished) == ("cuda-sm_90", "nightly", 1767323047)
    assert entry.outcome.split() == list(dataclasses.astuple(attestations.WRONG))
    assert read(MATCHED).entry().outcome == ""
    assert read(signed(attestations.NO_RESULT)).entry().outcome == NO_RESULT
    assert read(signed(attestations.UNAVAILABLE)).entry().outcome == ""


def test_results_that_differ_in_one_digest_are_different_outcomes() -> None:
    outcomes = set()
    for field in ("state", "gradient", "micro_batches"):
        computed = dataclasses.replace(MATCH.expected, **{field: samples.digest_of("x")})
        outcomes.add(read(signed(dataclasses.replace(MISMATCH, computed=computed))).outcome)
    assert len(outcomes) == 3


# Nothing bound to another step, run, key, record or predicate type is accepted, although KEY signed it.

OTHER = samples.digest_of("other")
SIGNED = "signed, but not an attestation: "
CASES: dict[str, tuple[str, Any, str]] = {
    "another statement type": (
        "_type", "https://in-toto.io/Statement/v0.1", SIGNED + 'statement._type: "https://in-'
    ),
    "another predicate type": ("predicateType", "urn:x", 'a predicate of type "urn:x", not "urn:auditkit:predicate'),
    "version zero": ("predicateType", "urn:auditkit:predicate:step-audit:v0", "a predicate of type"),
    "no subject": ("subject", [], SIGNED + "statement.subject: 0 items"),
    "two subjects": ("subject", STATEMENT["subject"] * 2, "a statement about 2 subjects, one is expected"),
    "null as a subject": ("subject", [False], SIGNED + "statement.subject[0]: not an object"),
    "empty digest": ("subject/0/digest/sha256", "", SIGNED + "statement.subject[0].digest"),
    "upper-case digest": ("subject/0/digest/sha256", SHA256.upper(), SIGNED + "statement.subje"),
    "another digest algorithm": (
        "subject/0/digest", {"blake3": SHA256}, SIGNED + 'statement.subject[0].digest: key "sha25'
    ),
    "two digest algorithms": (
        "subject/0/digest/sha512", SHA256 * 2, SIGNED + 'statement.subject[0].digest: unknown key'
    ),
    "another record": ("subject/0/digest/sha256", OTHER, f"about a record with SHA-256 {OTHER}, that of the step has"),
    "subject of another step": ("subject/0/name", "demo/step/2", 'the subject is "demo/step/2", but the'),
    "subject of another run": ("subject/0/name", "demo2/step/1", 'the subject is "demo2/step/1", but the predicate is'),
    "subject in another spelling": ("subject/0/name", "demo/step/01", 'the subject is "demo/step/01", but the predica'),
    "another step": ("predicate/step", 2, 'the subject is "demo/step/1", but the predicate is about demo/step/2'),
    "another run's name": ("predicate/run", "fork", 'the subject is "demo/step/1", but the predicate is about fork/st'),
    "another run": ("predicate/run_id", OTHER, f"about run {OTHER}, not about run {samples.RUN_ID}"),
    "another record by BLAKE3": ("predicate/record", OTHER, f"record of the predicate is {OTHER}, the record of"),
    "other numerics": ("predicate/numerics", 2, "numerics of the predicate is 2, the record of step 1 says 1"),
    "match of something else": (
        "predicate/computed/state", OTHER, SIGNED + "predicate: MATCH, but computed is not what w"
    ),
    "a mismatch that matches": (
        "predicate/verdict", "MISMATCH", SIGNED + "predicate: MISMATCH, but no check failed"
    ),
    "finished before it started": (
        "predicate/finished", "2025-01-02T03:04:05Z", SIGNED + "predicate: finished 2025-01-02T0"
    ),
    "no time zone": ("predicate/finished", "2026-01-02T03:04:07", SIGNED + "predicate.finished"),
    "unknown field": ("predicate/nonce", "", SIGNED + 'predicate: unknown key "nonce"'),
    "unknown field of the statement": ("note", "", SIGNED + 'statement: unknown key "note"'),
    "unknown field of the machine": (
        "predicate/machine/owner", "me", SIGNED + 'predicate.machine: unknown key "owner"'
    ),
    "a ninth check": ("predicate/checks/9", "ok", SIGNED + 'predicate.checks: unknown key "9"'),
    "another automation": ("predicate/automation", "cron", SIGNED + 'predicate.automation: "cron"'),
}  # fmt: skip


def edited(path: str, value: Any) -> Any:
    """The statement of MATCH with another value at a path."""
    changed = copy.deepcopy(STATEMENT)
    *way, last = path.split("/")
    target = changed
    for key in way:
        target = target[int(key)] if isinstance(target, list) else target[key]
    target[last] = value
    return changed


@pytest.mark.parametrize("name", CASES)
def test_a_signed_statement_about_something_else_is_untrusted(name: str) -> None:
    path, value, error = CASES[name]
    with pytest.raises(Untrusted) as caught:
        read(resigned(edited(path, value)))
    assert caught.value.message.startswith(error)


def test_expected_is_what_the_record_claims() -> None:
    wrong = dataclasses.asdict(dataclasses.replace(MATCH.expected, gradient=OTHER))
    statement = edited("predicate/expected", wrong)
    statement["predicate"]["computed"] = wrong
    assert read_attestation(resigned(statement), KEYS).expected.gradient == OTHER
    with pytest.raises(Untrusted, match="expected of the predicate is .*, the record of step 1 says"):
        read(resigned(statement))


def test_a_step_that_the_run_does_not_have() -> None:
    audit = dataclasses.replace(MATCH, step=3)
    data = signed(audit)
    assert read_attestation(data, KEYS, run_id=samples.RUN_ID).step == 3
    with pytest.raises(Untrusted, match="about step 3 of a run of 3 steps"):
        read_attestation(data, KEYS, records=samples.CHAIN)


def test_a_step_with_equal_digests_is_another_step() -> None:
    """A step that changes nothing has the digests of its neighbour; its record has another number and predecessor."""
    twin = dataclasses.replace(RECORD, step=2, previous=RECORD.digest(), state_before=RECORD.state_after)
    assert Digests.of(twin) == Digests.of(RECORD)
    chain = [*samples.CHAIN[:2], twin]
    for data in (MATCHED, resigned(edited("predicate/step", 2)), resigned(edited("subject/0/name", "demo/step/2"))):
        with pytest.raises(Untrusted):
            read_attestation(data, KEYS, records=chain, record_sha256=sha256_of(twin))
    moved = edited("predicate/step", 2)
    moved["subject"][0]["name"] = "demo/step/2"
    with pytest.raises(Untrusted, match="about a record with SHA-256"):
        read_attestation(resigned(moved), KEYS, records=chain)


def test_a_newer_predicate_is_unsupported() -> None:
    with pytest.raises(Unsupported, match="this verifier knows") as caught:
        read(resigned(edited("predicateType", "urn:auditkit:predicate:step-audit:v3")))
    assert "update" in caught.value.hint


def test_another_payload_type_is_untrusted() -> None:
    with pytest.raises(Untrusted, match='payload of type "application/json"'):
        read(resigned(STATEMENT, "application/json"))


@pytest.mark.parametrize(
    "payload",
    [
        b"", b"null", b"[]", b"{}", b"\xff", json.dumps(STATEMENT).encode(), canonical.dumps(STATEMENT) + b"\n",
        canonical.dumps(STATEMENT).replace(b'"step":1', b'"step":1,"step":1'),
        canonical.dumps(STATEMENT).replace(b'"step":1', b'"\\u0073tep":1'),
        canonical.dumps(STATEMENT).replace(b'"step":1', b'"step":1.0'),
        canonical.dumps(STATEMENT).replace(b'"subject":[{', b'"subject":[null,{'),
    ],
)  # fmt: skip
def test_a_signed_payload_that_is_no_canonical_statement_is_refused(payload: bytes) -> None:
    with pytest.raises((BadArtifact, Untrusted)):
        read(sign_payload(payload or b" ", PAYLOAD_TYPE, KEY).encode())


def test_duplicate_keys_are_malformed_everywhere() -> None:
    duplicated = canonical.dumps(STATEMENT).replace(b'"step":1', b'"step":1,"step":1')
    with pytest.raises(BadArtifact, match='duplicate key "step"'):
        read(sign_payload(duplicated, PAYLOAD_TYPE, KEY).encode())
    with pytest.raises(BadArtifact, match='duplicate key "payloadType"'):
        read(MATCHED.replace(b',"payloadType":', b',"payloadType":"a","payloadType":'))


def test_nothing_of_the_payload_is_read_before_the_signature() -> None:
    with pytest.raises(Untrusted, match="does not fit what it signs"):
        envelope = sign_payload(b"{", PAYLOAD_TYPE, KEY)
        read(Envelope(PAYLOAD_TYPE, b"not even JSON", envelope.signatures).encode())


# Property tests: whatever is changed, nothing but the original is ever accepted.


@settings(max_examples=300)
@given(place=st.integers(0, len(MATCHED) - 1), byte=st.integers(0, 255))
def test_no_other_byte_anywhere_is_accepted(place: int, byte: int) -> None:
    if MATCHED[place] == byte:
        return
    with pytest.raises((BadArtifact, Untrusted, Unsupported)) as caught:
        read_attestation(MATCHED[:place] + bytes([byte]) + MATCHED[place + 1 :], KEYS)
    assert caught.value.message.isprintable()


def test_no_bit_of_the_file_can_be_turned() -> None:
    for place in range(len(MATCHED)):
        with pytest.raises(AuditkitError):
            read_attestation(MATCHED[:place] + bytes([MATCHED[place] ^ 1 << place % 8]) + MATCHED[place + 1 :], KEYS)


@settings(max_examples=200)
@given(damaged([MATCHED, signed(MISMATCH), signed_summary()]))
def test_a_damaged_file_is_refused(data: bytes) -> None:
    if data in (MATCHED, signed(MISMATCH)):
        return
    with pytest.raises((BadArtifact, Untrusted, Unsupported)):
        read_attestation(data, KEYS)


def leaves(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """The paths of all values inside a JSON value, objects and lists included."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


PATHS = list(leaves(STATEMENT))
# What an auditor may say freely: it binds the attestation to nothing, and the policy does not trust it blindly.
FREE = {"automation", "finished", "machine", "manifest", "message", "milliseconds", "started", "verifier", "work"}


@settings(max_examples=400)
@given(path=st.sampled_from(PATHS), data=st.data())
def test_no_other_field_is_accepted_though_the_key_signs_it(path: tuple[str | int, ...], data: st.DataObject) -> None:
    changed = copy.deepcopy(STATEMENT)
    target = changed
    for key in path[:-1]:
        target = target[key]
    old = target[path[-1]]
    new = data.draw(json_values | st.sampled_from([OTHER, 0, 2, "MISMATCH", "ok", "failed", "", "demo/step/2", "ci"]))
    target[path[-1]] = new
    try:
        attested = read(resigned(changed))
    except (BadArtifact, Untrusted, Unsupported) as error:
        assert error.message.isprintable()
        return
    # accepted: the value is the same as before, or of a field that the auditor alone decides
    assert (type(new) is type(old) and new == old) or path[1] in FREE
    assert (attested.step, attested.run_id, attested.record_sha256) == (1, samples.RUN_ID, SHA256)
    assert (attested.verdict, attested.expected, attested.computed) == (Verdict.MATCH, MATCH.expected, MATCH.computed)


@settings(max_examples=100)
@given(path=st.sampled_from(PATHS))
def test_no_field_can_be_left_out(path: tuple[str | int, ...]) -> None:
    changed = copy.deepcopy(STATEMENT)
    target = changed
    for key in path[:-1]:
        target = target[key]
    del target[path[-1]]
    with pytest.raises(Untrusted):
        read(resigned(changed))


def test_a_valid_audit_of_other_digests_is_bound_to_no_record_here() -> None:
    other = dataclasses.replace(MATCH, expected=attestations.WRONG, computed=attestations.WRONG)
    assert isinstance(StepAudit.from_value(other.to_value()), StepAudit)
    with pytest.raises(Untrusted, match="expected of the predicate"):
        read(signed(other))


# The Simple Verification Result beside a match.


def test_a_summary_is_read_but_is_no_attestation() -> None:
    data = signed_summary()
    summary = read_summary(data, KEYS, records=samples.CHAIN)
    assert (summary.run, summary.step, summary.record_sha256) == ("demo", 1, SHA256)
    assert (summary.keyid, summary.envelope) == (KEY.public.keyid, hashlib.sha256(data).hexdigest())
    assert summary.result.properties == ("AUDITKIT_STEP_MATCH", "AUDITKIT_NUMERICS_V1")
    with pytest.raises(Untrusted, match='a predicate of type "https://in-toto.io/attestation/svr/v0.1", not "urn'):
        read_attestation(data, KEYS)
    with pytest.raises(Untrusted, match='a predicate of type "urn:auditkit'):
        read_summary(MATCHED, KEYS)
    assert read_either(data, KEYS) == read_summary(data, KEYS) == summary
    assert read_either(MATCHED, KEYS) == read_attestation(MATCHED, KEYS)
    assert isinstance(summary, Summary)
    with pytest.raises(Untrusted, match='a predicate of type "urn:x", not "urn:auditkit'):
        read_either(resigned(edited("predicateType", "urn:x")), KEYS)


@pytest.mark.parametrize(
    ("path", "value", "error"),
    [
        ("subject/0/name", "demo/step/01", 'the subject "demo/step/01" is not a step of a run'),
        ("subject/0/name", "demo/step/7", "about step 7 of a run of 3 steps"),
        ("subject/0/digest/sha256", OTHER, f"about a record with SHA-256 {OTHER}"),
        ("predicate/properties", [], SIGNED + "predicate.properties: 0 items"),
    ],
)
def test_a_summary_of_something_else_is_untrusted(path: str, value: Any, error: str) -> None:
    statement = json.loads(Envelope.parse(signed_summary()).payload)
    target = statement
    *way, last = path.split("/")
    for key in way:
        target = target[int(key)] if isinstance(target, list) else target[key]
    target[last] = value
    with pytest.raises(Untrusted) as caught:
        read_summary(resigned(statement), KEYS, records=samples.CHAIN)
    assert caught.value.message.startswith(error)
