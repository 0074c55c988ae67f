"""Envelopes, statements, predicates and policies, valid and bad; make_formats.py writes them out.

A bad document is a sample of tests/formats/attestations.py with one wrong value, as in bad_documents.py.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any

from auditkit.formats import canonical, dsse, svr
from tests.formats import attestations, policies
from tests.formats.attestations import AUDITS, KEY, MATCH, SHA256
from tests.formats.policies import auditor, auditors, excluded, head, log
from tests.vectors.bad_documents import DROP, NO_DIGEST, UPPER, Case, edited

Good = tuple[str, bytes, dict[str, Any]]
Bad = tuple[str, bytes, str]

KEYID, SIG = "0" * 64, base64.b64encode(bytes(64)).decode("ascii")

ENVELOPE: list[Case] = [
    ("unknown key", "note", "x", 'envelope: unknown key "note"'),
    ("no payload", "payload", DROP, 'envelope: key "payload" is missing'),
    ("empty payload", "payload", "", "envelope.payload: 0 characters, 1 to 65536 are allowed"),
    ("payload as an object", "payload", {}, "envelope.payload: not text"),
    ("base64 for addresses", "payload", "-_8=", 'envelope.payload: "-_8=" is not base64'),
    ("base64 without its padding", "payload", "/w", 'envelope.payload: "/w" is not base64'),
    ("base64 with a line end", "payload", "/w==\n", 'envelope.payload: "/w==\\n" holds an unprintable character'),
    ("base64 with bits left over", "payload", "/x==",
     'envelope.payload: "/x==" is not the only base64 of its bytes (RFC 4648 section 3.5)'),
    ("no payload type", "payloadType", "", "envelope.payloadType: 0 characters, 1 to 200 are allowed"),
    ("payload type beyond ASCII", "payloadType", "application/caf\u00e9",
     'envelope.payloadType: "application/caf\\u00e9" is not ASCII'),
    ("no signature", "signatures", [], "envelope.signatures: 0 items, 1 to 16 are allowed"),
    ("seventeen signatures", "signatures", [{"keyid": KEYID, "sig": SIG}] * 17,
     "envelope.signatures: 17 items, 1 to 16 are allowed"),
    ("two by one key", "signatures", [{"keyid": KEYID, "sig": SIG}] * 2,
     "envelope.signatures: one keyid is listed twice"),
    ("no keyid", "signatures/0/keyid", DROP, 'envelope.signatures[0]: key "keyid" is missing'),
    ("short keyid", "signatures/0/keyid", KEYID[:8], f"envelope.signatures[0].keyid: {NO_DIGEST}"),
    ("keyid in upper case", "signatures/0/keyid", UPPER, f"envelope.signatures[0].keyid: {NO_DIGEST}"),
    ("short signature", "signatures/0/sig", base64.b64encode(bytes(63)).decode("ascii"),
     "envelope.signatures[0].sig: 63 bytes, 64 are expected"),
    ("long signature", "signatures/0/sig", base64.b64encode(bytes(65)).decode("ascii"),
     "envelope.signatures[0].sig: 65 bytes, 64 are expected"),
    ("certificate", "signatures/0/cert", "x", 'envelope.signatures[0]: unknown key "cert"'),
]  # fmt: skip

STATEMENT: list[Case] = [
    ("unknown key", "note", "x", 'statement: unknown key "note"'),
    ("older statement", "_type", "https://in-toto.io/Statement/v0.1",
     'statement._type: "https://in-toto.io/Statement/v0.1" is not "https://in-toto.io/Statement/v1"'),
    ("no subject", "subject", [], "statement.subject: 0 items, 1 to 16 are allowed"),
    ("subject without a list", "subject", {}, "statement.subject: not a list"),
    ("subject is no object", "subject/0", "x", "statement.subject[0]: not an object"),
    ("nameless subject", "subject/0/name", "", "statement.subject[0].name: 0 characters, 1 to 200 are allowed"),
    ("no digest", "subject/0/digest", {}, 'statement.subject[0].digest: key "sha256" is missing'),
    ("another digest", "subject/0/digest", {"blake3": SHA256},
     'statement.subject[0].digest: key "sha256" is missing'),
    ("second digest", "subject/0/digest/sha512", SHA256 * 2, 'statement.subject[0].digest: unknown key "sha512"'),
    ("empty digest", "subject/0/digest/sha256", "", f"statement.subject[0].digest.sha256: {NO_DIGEST}"),
    ("digest in upper case", "subject/0/digest/sha256", UPPER, f"statement.subject[0].digest.sha256: {NO_DIGEST}"),
    ("media type of a subject", "subject/0/mediaType", "x", 'statement.subject[0]: unknown key "mediaType"'),
    ("no predicate type", "predicateType", DROP, 'statement: key "predicateType" is missing'),
    ("predicate as text", "predicate", "x", "statement.predicate: not an object"),
]  # fmt: skip

STEP_AUDIT: list[Case] = [
    ("unknown key", "nonce", "", 'predicate: unknown key "nonce"'),
    ("no work", "work", DROP, 'predicate: key "work" is missing'),
    ("run id in upper case", "run_id", UPPER, f"predicate.run_id: {NO_DIGEST}"),
    ("unsafe name of the run", "run", "../x", 'predicate.run: unsafe name "../x" (letters, digits and ._+- only, no dot'
     " at either end)"),
    ("negative step", "step", -1, "predicate.step: -1 is outside 0 to 9999999"),
    ("step is true", "step", True, "predicate.step: not an integer"),
    ("verdict of a broken machine", "verdict", "MACHINE_FAULT", 'predicate.verdict: "MACHINE_FAULT" is not "MATCH" or'
     ' "MISMATCH" or "BAD_ARTIFACT" or "UNAVAILABLE" or "UNSUPPORTED" or "INCOMPLETE"'),
    ("verdict by code", "verdict", 0, 'predicate.verdict: int is not "MATCH" or'
     ' "MISMATCH" or "BAD_ARTIFACT" or "UNAVAILABLE" or "UNSUPPORTED" or "INCOMPLETE"'),
    ("nothing expected", "expected", DROP, 'predicate: key "expected" is missing'),
    ("a digest too many", "expected/loss", UPPER.lower(), 'predicate.expected: unknown key "loss"'),
    ("half a result", "computed/gradient", DROP, 'predicate.computed: key "gradient" is missing'),
    ("another result", "computed/state", UPPER.lower(), "predicate: MATCH, but computed is not what was expected"),
    ("no result", "computed", DROP, "predicate: MATCH, but computed is not what was expected"),
    ("a match that failed", "checks/7", "failed", "predicate: MATCH, but not every check is ok"),
    ("a match that skipped", "checks/3", "skipped", "predicate: MATCH, but not every check is ok"),
    ("a mismatch that failed nowhere", "verdict", "MISMATCH", "predicate: MISMATCH, but no check failed"),
    ("undecided with a result", "verdict", "UNAVAILABLE", "predicate: UNAVAILABLE, but something was computed"),
    ("result without work", "work", "", "predicate: what was computed and the work belong together, one of them is"
     " missing"),
    ("seven checks", "checks/8", DROP, 'predicate.checks: key "8" is missing'),
    ("nine checks", "checks/9", "ok", 'predicate.checks: unknown key "9"'),
    ("check passed", "checks/1", "passed", 'predicate.checks.1: "passed" is not "ok" or "failed" or "skipped"'),
    ("no numerics", "numerics", 0, "predicate.numerics: 0 is outside 1 to 65536"),
    ("no source", "verifier/source", "", f"predicate.verifier.source: {NO_DIGEST}"),
    ("no version", "verifier/version", "", "predicate.verifier.version: 0 characters, 1 to 200 are allowed"),
    ("family without a kind", "machine/family", "x86_64",
     'predicate.machine.family: not a hardware family such as "cpu-x86_64" or "cuda-sm_90"'),
    ("escape sequence", "machine/device", "\x1b[2J",
     'predicate.machine.device: "\\u001b[2J" holds an unprintable character'),
    ("local time", "started", "2026-01-02T03:04:05+01:00",
     'predicate.started: "2026-01-02T03:04:05+01:00" is not a time such as "2026-01-02T03:04:05Z"'),
    ("no such day", "started", "2026-02-30T03:04:05Z",
     'predicate.started: "2026-02-30T03:04:05Z" is not in the calendar'),
    ("finished first", "finished", "2026-01-02T03:04:04Z",
     "predicate: finished 2026-01-02T03:04:04Z, before it started 2026-01-02T03:04:05Z"),
    ("negative time", "milliseconds", -1, "predicate.milliseconds: -1 is outside 0 to 9007199254740991 ms"),
    ("another automation", "automation", "cron", 'predicate.automation: "cron" is not "" or "ci" or "nightly"'),
    ("long message", "message", "a" * 2001, "predicate.message: 2001 characters, 1 to 2000 are allowed"),
    ("message of two lines", "message", "a\nb", 'predicate.message: "a\\nb" holds an unprintable character'),
]  # fmt: skip

SVR: list[Case] = [
    ("unknown key", "policy", "x", 'predicate: unknown key "policy"'),
    ("no verifier", "verifier/id", DROP, 'predicate.verifier: key "id" is missing'),
    ("policy of the verifier", "verifier/policy", {}, 'predicate.verifier: unknown key "policy"'),
    ("parts of a second", "timeCreated", "1985-04-12T23:20:50.52Z",
     'predicate.timeCreated: "1985-04-12T23:20:50.52Z" is not a time such as "2026-01-02T03:04:05Z"'),
    ("no properties", "properties", [], "predicate.properties: 0 items, 1 to 64 are allowed"),
    ("property is no text", "properties", [1], "predicate.properties[0]: not text"),
    ("listed twice", "properties", ["A", "A"], "predicate.properties: one is listed twice"),
]  # fmt: skip

ALICE = policies.KEYS["alice"].pem().decode("ascii")
RSA = "-----BEGIN PUBLIC KEY-----\nMFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBAA==\n-----END PUBLIC KEY-----\n"
WITNESS, PUBLISHER = policies.WITNESSES[0], policies.PUBLISHER
NAMED_TWICE = [WITNESS.text, WITNESS.text]

POLICY_GOOD: list[tuple[str, str]] = [
    ("three auditors", policies.SMALL),
    ("everything", policies.LARGE),
    ("a log and nobody", head() + log()),
    ("a log without witnesses", head(threshold=1) + log({"witnesses": None, "witness_threshold": None})),
    ("CRLF", policies.SMALL.replace("\n", "\r\n")),
    ("byte order mark", "\ufeff" + policies.SMALL),
    ("a publisher who audits", head() + auditors() + excluded(policies.KEYS["carol"].keyid, "publisher")),
]

POLICY: list[tuple[str, str, str]] = [
    ("nothing", "", 'policy: key "format" is missing'),
    ("not TOML", "threshold = two\n", "policy: not TOML: invalid value (at line 1..."),
    ("a key twice", head() + "threshold = 3\n", "policy: not TOML: cannot overwrite a value (at line 3..."),
    ("another format", head(format="auditkit/recipe/v1"), 'policy.format: "auditkit/recipe/v1" is not'
     ' "auditkit/policy/v1"'),
    ("newer version", head(format="auditkit/policy/v2"), 'policy.format: "auditkit/policy/v2" is newer than'
     ' "auditkit/policy/v1", which this verifier knows'),
    ("unknown key", head(treshold=2) + auditors(), 'policy: unknown key "treshold"'),
    ("no threshold", head(threshold=None) + auditors(), 'policy: key "threshold" is missing'),
    ("threshold of nobody", head(threshold=0), "policy.threshold: 0 is outside 1 to 4096 keys"),
    ("threshold as text", head(threshold="2"), "policy.threshold: not an integer"),
    ("threshold is true", head(threshold=True), "policy.threshold: not an integer"),
    ("more than there are", head(threshold=4) + auditors(),
     "policy.threshold: 4 keys are asked for, 3 of the auditors can count"),
    ("more than can count", head() + auditors("alice", "bob") + excluded(policies.KEYS["bob"].keyid),
     "policy.threshold: 2 keys are asked for, 1 of the auditors can count"),
    ("nobody", head(), "policy: neither an auditor nor a log is listed, so nothing can satisfy it"),
    ("more families than keys", head(families=4) + auditors(),
     "policy.families: 4 are asked for, 3 of the auditors can count"),
    ("no families", head(families=0), "policy.families: 0 is outside 1 to 64"),
    ("automation as a number", head(automation=1), "policy.automation: not true or false"),
    ("auditor is a table", head() + "[auditor]\nname = 'a'\n", "policy.auditor: not a list"),
    ("auditor without a key", head() + "[[auditor]]\nname = 'a'\n", 'policy.auditor[0]: key "key" is missing'),
    ("auditor without a name", head() + auditor("", ALICE),
     "policy.auditor[0].name: 0 characters, 1 to 200 are allowed"),
    ("unknown key of an auditor", head() + auditor("alice") + "weight = 2\n",
     'policy.auditor[0]: unknown key "weight"'),
    ("key as a number", head() + "[[auditor]]\nname = 'a'\nkey = 1\n", "policy.auditor[0].key: not text"),
    ("no PEM", head() + auditor("a", "AAAA"),
     "policy.auditor[0].key: no PEM block (-----BEGIN PUBLIC KEY-----)"),
    ("another algorithm", head() + auditor("a", RSA), "policy.auditor[0].key: not an Ed25519 public key"),
    ("one name for two", head() + auditors("alice") + auditor("alice", policies.KEYS["bob"].pem().decode("ascii")),
     'policy.auditor: name "alice" is listed twice'),
    ("one key under two names", head() + auditors("alice", "bob") + auditor("carla", ALICE),
     f'policy.auditor: key with keyid "{policies.KEYS["alice"].keyid}" is listed twice'),
    ("excluded by name", head() + excluded("bob"), f"policy.excluded[0].keyid: {NO_DIGEST}"),
    ("excluded without a reason", head() + excluded("a" * 64, ""),
     "policy.excluded[0].reason: 0 characters, 1 to 200 are allowed"),
    ("excluded twice", head() + excluded("a" * 64) * 2, f'policy.excluded: keyid "{"a" * 64}" is listed twice'),
    ("log without a publisher", head() + log({"publisher": None}), 'policy.log: key "publisher" is missing'),
    ("publisher as PEM", head() + log({"publisher": "-----BEGIN PUBLIC KEY-----"}),
     'policy.log.publisher: "-----BEGIN PUBLIC KEY-----" is not a vkey (NAME+8 lower-case hexadecimal digits+BASE64)'),
    ("publisher who cosigns", head() + log({"publisher": WITNESS.text}),
     "policy.log.publisher: a key of type Ed25519 cosignature/v1, Ed25519 is needed here"),
    ("witness who signs", head() + log({"witnesses": [PUBLISHER.text], "witness_threshold": 1}),
     "policy.log.witnesses[0]: a key of type Ed25519, Ed25519 cosignature/v1 is needed here"),
    ("witness twice", head() + log({"witnesses": NAMED_TWICE}),
     'policy.log.witnesses: name "witness.example/0" is listed twice'),
    ("no witness threshold", head() + log({"witness_threshold": None}),
     'policy.log: key "witness_threshold" is missing'),
    ("more witnesses than there are", head() + log({"witness_threshold": 4}),
     "policy.log.witness_threshold: 4 is outside 1 to 3 witnesses"),
    ("witnesses of no use", head() + log({"witness_threshold": 0}),
     "policy.log.witness_threshold: 0 is outside 1 to 3 witnesses"),
    ("threshold of no witnesses", head() + log({"witnesses": None}),
     "policy.log.witness_threshold: 2 is outside 1 to 0 witnesses"),
]  # fmt: skip


def envelope(data: bytes) -> dict[str, str]:
    """What a reader needs besides an envelope to check its signature: the key, and a digest of what was signed."""
    found = dsse.Envelope.parse(data)
    signed = hashlib.sha256(dsse.pae(found.payload_type, found.payload)).hexdigest()
    return {"public_key": KEY.public.raw.hex(), "signed_sha256": signed}


def changed(value: Any, cases: list[Case]) -> list[Bad]:
    """A JSON value with one wrong value after the other."""
    return [(name, canonical.dumps(edited(value, path, new)), error) for name, path, new, error in cases]


def files() -> dict[str, tuple[list[Good], list[Bad]]]:
    """The valid and the bad vectors of each format."""
    signed = {name: attestations.signed(audit) for name, audit in AUDITS.items()}
    signed["summary of the match"] = attestations.signed_summary()
    statements = {name: dsse.Envelope.parse(data).payload for name, data in signed.items()}
    summary = svr.SimpleResult.of(MATCH).to_value()
    first = canonical.loads(signed["match"], what="envelope", limit=1 << 16)
    return {
        "envelope": ([(name, data, envelope(data)) for name, data in signed.items()], changed(first, ENVELOPE)),
        "policy": (
            [(name, text.encode("utf-8"), {}) for name, text in POLICY_GOOD],
            [(name, text.encode("utf-8"), error) for name, text, error in POLICY],
        ),
        "statement": (
            [(name, data, {}) for name, data in statements.items()],
            changed(canonical.loads(statements["match"], what="statement", limit=1 << 16), STATEMENT),
        ),
        "step_audit": (
            [(name, canonical.dumps(audit.to_value()), {}) for name, audit in AUDITS.items()],
            changed(MATCH.to_value(), STEP_AUDIT),
        ),
        "svr": ([("match", canonical.dumps(summary), {})], changed(summary, SVR)),
    }
