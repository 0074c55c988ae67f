"""Whose word counts: the auditors of the policy, never the publisher, an excluded key, or automation by default."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact, Unavailable, Unsupported, Untrusted
from auditkit.formats import pem
from auditkit.formats.policy import Auditor, Excluded, Policy
from auditkit.trust.attested import read_attestation
from auditkit.trust.coverage import Status, cover
from auditkit.trust.keys import PublicKey
from auditkit.trust.policy import PUBLISHER, UNLISTED, Trust, load_policy
from auditkit.trust.rows import Entry, Rows
from auditkit.verdict import Verdict
from tests.formats import attestations, policies
from tests.trust.test_point import CASES

ALICE, BOB, CAROL = policies.KEYS.values()
AUDITORS = tuple(Auditor(name, key.raw) for name, key in policies.KEYS.items())


def test_auditors_count_and_nobody_else() -> None:
    trust = Trust(Policy(2, auditors=AUDITORS[:2]), others=[CAROL])
    assert trust.why_not(ALICE.keyid, "") == trust.why_not(BOB.keyid, "") == ""
    assert trust.why_not(CAROL.keyid, "") == UNLISTED
    assert set(trust.keys) == {ALICE.keyid, BOB.keyid, CAROL.keyid}
    assert trust.names == {ALICE.keyid: "alice", BOB.keyid: "bob"}
    assert (trust.threshold, trust.families) == (2, 1)


def test_an_excluded_key_never_counts_whatever_else_is_said() -> None:
    policy = Policy(1, automation=True, auditors=AUDITORS, excluded=(Excluded(BOB.keyid, "it was stolen"),))
    trust = Trust(policy)
    assert trust.why_not(BOB.keyid, "") == trust.why_not(BOB.keyid, "ci") == "excluded: it was stolen"
    assert trust.why_not(ALICE.keyid, "") == ""


def test_the_publisher_never_counts() -> None:
    trust = Trust(Policy(1, automation=True, auditors=AUDITORS), publisher=CAROL)
    assert trust.why_not(CAROL.keyid, "") == PUBLISHER
    assert trust.why_not(ALICE.keyid, "") == ""
    named = Policy.parse((policies.head() + policies.log() + policies.auditors()).encode())
    assert named.log is not None
    signer = PublicKey(named.log.publisher.public)
    assert Trust(named, publisher=CAROL).excluded == {CAROL.keyid: PUBLISHER, signer.keyid: PUBLISHER}
    assert signer.keyid in Trust(named).keys  # so that what it signs is "the publisher's", and not "unknown"


@pytest.mark.parametrize("kind", ["ci", "nightly"])
def test_automation_counts_only_where_the_policy_says_so(kind: str) -> None:
    assert Trust(Policy(1, auditors=AUDITORS)).why_not(ALICE.keyid, kind) == f"automation ({kind})"
    assert Trust(Policy(1, automation=True, auditors=AUDITORS)).why_not(ALICE.keyid, kind) == ""


def test_an_attestation_counts_or_not() -> None:
    key = attestations.KEY.public
    trust = Trust.of([key])
    match = read_attestation(attestations.signed(attestations.MATCH), trust.keys)
    assert trust.counts(match)
    assert not trust.counts(dataclasses.replace(match, automation="nightly"))
    assert not Trust.of([key], publisher=key).counts(match)
    assert not Trust.of([ALICE]).counts(match)


def test_without_a_policy_one_attestation_is_enough() -> None:
    trust = Trust.of([ALICE, BOB, ALICE])
    assert (trust.threshold, trust.families, len(trust.keys)) == (1, 1, 2)
    assert trust.why_not(ALICE.keyid, "") == ""
    assert trust.why_not(CAROL.keyid, "") == UNLISTED


@pytest.mark.parametrize("text", CASES["small_order"] + CASES["non_canonical"])
def test_an_unsound_key_in_a_policy_is_untrusted(text: str) -> None:
    written = pem.encode(pem.PUBLIC, pem.spki(bytes.fromhex(text))).decode("ascii")
    policy = Policy.parse((policies.head(threshold=1) + policies.auditor("mallory", written)).encode())
    with pytest.raises(Untrusted, match='policy.auditor "mallory": public key: '):
        Trust(policy)


def test_a_policy_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(policies.LARGE, encoding="utf-8")
    assert load_policy(path) == Policy.parse(policies.LARGE.encode())
    path.write_text("threshold = \n", encoding="utf-8")
    with pytest.raises(BadArtifact, match=r"policy\.toml: policy: not TOML: .*line 1"):
        load_policy(path)
    path.write_text(policies.head(format="auditkit/policy/v9"), encoding="utf-8")
    with pytest.raises(Unsupported, match=r"policy\.toml: policy\.format: .* is newer") as caught:
        load_policy(path)
    assert "update" in caught.value.hint
    with pytest.raises(Unavailable, match="cannot read"):
        load_policy(tmp_path / "nothing.toml")


entries = st.builds(
    Entry,
    step=st.just(0),
    keyid=st.sampled_from([ALICE.keyid, BOB.keyid, CAROL.keyid, "f" * 64]),
    verdict=st.just(Verdict.MATCH),
    family=st.sampled_from(["cpu-x86_64", "cuda-sm_90"]),
    finished=st.integers(0, 5),
    automation=st.sampled_from(["", "ci", "nightly"]),
    part=st.just(""),  # of whole steps
)


@given(st.lists(entries, max_size=8), st.integers(1, 3), st.booleans())
def test_a_step_is_covered_exactly_by_enough_keys_that_count(found: list[Entry], threshold: int, ci: bool) -> None:
    trust = Trust(Policy(threshold, automation=ci, auditors=AUDITORS), publisher=CAROL)
    counting = {e.keyid for e in found if e.keyid in (ALICE.keyid, BOB.keyid) and (ci or not e.automation)}
    [status] = cover(Rows.of(found), trust, 1).status.tolist()
    assert (status == Status.COVERED) == (len(counting) >= threshold)
    assert (status == Status.OPEN) == (not counting)
