"""policy.toml: any spelling of it, one meaning, and errors that say where."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditkit.errors import AuditkitError, BadArtifact
from auditkit.formats.limits import LIMITS
from auditkit.formats.note import ED25519, NoteKey
from auditkit.formats.policy import Auditor, Policy
from tests.formats import policies
from tests.formats.policies import auditors, excluded, head, log


def parse(text: str) -> Policy:
    """The policy of a text."""
    return Policy.parse(text.encode("utf-8"))


def test_everything_that_a_policy_can_say() -> None:
    policy = parse(policies.LARGE)
    assert (policy.threshold, policy.families, policy.automation) == (2, 2, True)
    assert [(a.name, a.keyid) for a in policy.auditors] == [(n, k.keyid) for n, k in policies.KEYS.items()]
    assert [(e.keyid, e.reason) for e in policy.excluded] == [("a" * 64, "it was stolen")]
    assert policy.log is not None
    assert (policy.log.publisher, policy.log.witness_threshold) == (policies.PUBLISHER, 2)
    assert list(policy.log.witnesses) == policies.WITNESSES


def test_what_is_left_out_is_the_careful_choice() -> None:
    policy = parse(head(threshold=1) + auditors("alice"))
    alice = Auditor("alice", policies.KEYS["alice"].raw)
    assert policy == Policy(threshold=1, families=1, automation=False, log=None, auditors=(alice,), excluded=())


def test_a_policy_that_nothing_can_satisfy_is_an_error() -> None:
    with pytest.raises(BadArtifact, match="neither an auditor nor a log is listed"):
        parse(head())
    with pytest.raises(BadArtifact, match=r"policy\.families: 4 are asked for, 3 of the auditors can count"):
        parse(head(families=4) + auditors())
    carol = NoteKey("example.org/run", ED25519, policies.KEYS["carol"].raw)
    with pytest.raises(BadArtifact, match="3 keys are asked for, 2 of the auditors can count"):
        parse(head(threshold=3) + log({"publisher": carol.text}) + auditors())
    assert parse(head(threshold=3, families=3) + auditors()).families == 3


def test_a_log_without_witnesses() -> None:
    rule = parse(head() + log({"witnesses": None, "witness_threshold": None})).log
    assert rule is not None
    assert (rule.witnesses, rule.witness_threshold) == ((), 0)


def test_spelling_and_comments_are_free() -> None:
    text = policies.SMALL.replace(" = ", "=").replace("[[auditor]]", "\n# next\n[[ auditor ]]  # one more")
    assert parse(text) == parse(policies.SMALL)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("threshold = 1\nfamilies =\n", "line 2"),
        ('a = 1\nb = "unclosed\nc = 2\n', "line 2"),
        ('a = "\\q"', "line 1"),
        ("a = 1\n[a]\n", "line 2"),
    ],
)
def test_an_error_of_toml_names_its_line(text: str, where: str) -> None:
    with pytest.raises(BadArtifact, match=rf"^policy: not TOML: .*{where}"):
        parse(text)


@pytest.mark.parametrize(
    "data",
    [b"a = " + b"[" * 100_000, b"a = " + b"{b=" * 10_000, b"a = " + b"9" * 10_000, b"\xff\xfe", b"a = 2026-02-30",
     b"a." * 5000 + b"a = 1", b"\0", b"a = '\xed\xa0\x80'", b'a = "\\ud800"'],
)  # fmt: skip
def test_hostile_toml_is_malformed_and_nothing_else(data: bytes) -> None:
    with pytest.raises(BadArtifact, match=r"^policy: "):
        Policy.parse(data)


def test_a_large_file_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadArtifact, match=f"at most {LIMITS.policy_bytes} are allowed"):
        Policy.parse(b"#" * (LIMITS.policy_bytes + 1))


def test_a_private_key_in_a_policy_is_refused_without_being_shown() -> None:
    secret = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIAAAAA\n-----END PRIVATE KEY-----\n"
    with pytest.raises(
        AuditkitError, match=r"policy.auditor\[0\].key: a private key, a public key is needed"
    ) as caught:
        parse(head() + policies.auditor("alice", secret))
    assert "MC4C" not in caught.value.message + caught.value.hint


def test_nobody_counts_twice() -> None:
    with pytest.raises(BadArtifact, match="is listed twice"):
        parse(head() + auditors("alice") + auditors("alice"))
    with pytest.raises(BadArtifact, match="2 keys are asked for, 1 of the auditors can count"):
        parse(head() + auditors("alice", "bob") + excluded(policies.KEYS["alice"].keyid))


@settings(max_examples=150)
@given(st.integers(0, len(policies.LARGE) - 1), st.text(max_size=3))
def test_a_changed_policy_is_another_policy_or_an_error_that_names_a_place(place: int, text: str) -> None:
    try:
        parse(policies.LARGE[:place] + text + policies.LARGE[place + 1 :])
    except AuditkitError as error:
        assert error.message.startswith("policy")
        assert error.message.isascii()
        assert error.message.isprintable()
