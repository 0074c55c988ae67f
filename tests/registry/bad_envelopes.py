"""Envelopes that no registry may take, each with the verdict that it must be refused with."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from auditkit.formats.dsse import PAYLOAD_TYPE, Envelope
from auditkit.formats.statement import Statement
from auditkit.formats.step_audit import PREDICATE_TYPE, Digests
from auditkit.formats.times import time_text
from auditkit.trust.envelope import sign, sign_payload
from auditkit.verdict import Verdict
from tests.registry.makers import NOW, Maker, key

Bad = dict[str, tuple[bytes, Verdict]]

STATUS = {Verdict.UNTRUSTED: 403, Verdict.BAD_ARTIFACT: 400, Verdict.UNSUPPORTED: 422}


def bad_envelopes(maker: Maker) -> Bad:
    """All of them. They are about step 5, of which key 1 is an auditor and key 77 nobody; key 9 is excluded."""
    return {**bad_signatures(maker), **bad_statements(maker), **bad_payloads(maker), **bad_bytes(maker)}


def bad_signatures(maker: Maker) -> Bad:
    """Signed by others than they say, or than may."""
    good, stranger = (Envelope.parse(maker.signed(5, key(n))) for n in (1, 77))
    other = Envelope.parse(maker.signed(6, key(1)))
    forged = replace(stranger.signatures[0], keyid=key(1).public.keyid)
    flipped = replace(good.signatures[0], sig=bytes([good.signatures[0].sig[0] ^ 1]) + good.signatures[0].sig[1:])
    found = {
        "an unknown key": stranger,
        "claims the keyid of another": replace(good, signatures=(forged,)),
        "one bit of the signature": replace(good, signatures=(flipped,)),
        "the signature of another step": replace(good, signatures=other.signatures),
        "two signatures": replace(good, signatures=(*good.signatures, *stranger.signatures)),
    }
    return {
        **{name: (envelope.encode(), Verdict.UNTRUSTED) for name, envelope in found.items()},
        "an excluded key": (maker.signed(5, key(9)), Verdict.UNTRUSTED),
        "the same signature twice": (replace(good, signatures=good.signatures * 2).encode(), Verdict.BAD_ARTIFACT),
    }


def bad_statements(maker: Maker) -> Bad:
    """Signed by an auditor, and not true of the run."""
    sha256 = hashlib.sha256(maker.run.record(5)).hexdigest()
    subject, audit = maker.audit(5).subject(sha256), maker.audit(5)
    lie = maker.audit(5, Verdict.UNAVAILABLE, expected=Digests("11" * 32, "22" * 32, "33" * 32))
    run = {"run_id": maker.run.run_id}
    found = {
        "another run": replace(audit, run_id="11" * 32).statement(sha256),
        "the subject of another step": Statement((subject,), PREDICATE_TYPE, maker.audit(6).to_value()),
        "the record of another step": maker.audit(6).statement(sha256),
        "expects what was not published": lie.statement(sha256),
        "the digest of another record": replace(audit, record="11" * 32).statement(sha256),
        "another numerics version": replace(audit, numerics=2).statement(sha256),
        "a step that the run does not have": replace(audit, step=1000).statement(sha256),
        "finished tomorrow": replace(audit, finished=time_text(NOW + 86400)).statement(sha256),
        "another predicate": Statement((subject,), "https://example.org/other", run),
        "no subject of a step": Statement((replace(subject, name="step 5"),), PREDICATE_TYPE, audit.to_value()),
    }
    newer = Statement((subject,), PREDICATE_TYPE.replace(":v1", ":v3"), run)
    return {
        **{name: (sign(statement, key(1)).encode(), Verdict.UNTRUSTED) for name, statement in found.items()},
        "a newer predicate": (sign(newer, key(1)).encode(), Verdict.UNSUPPORTED),
    }


def bad_payloads(maker: Maker) -> Bad:
    """Signed by an auditor, and not an attestation."""
    payload = Envelope.parse(maker.signed(5, key(1))).payload
    found = {
        "another payload type": (payload, "text/plain", Verdict.UNTRUSTED),
        "no JSON": (b"all is fine", PAYLOAD_TYPE, Verdict.BAD_ARTIFACT),
        "a list": (b"[]", PAYLOAD_TYPE, Verdict.UNTRUSTED),
        "no run": (b'{"predicate":[]}', PAYLOAD_TYPE, Verdict.UNTRUSTED),
        "a run that is a number": (b'{"predicate":{"run_id":5}}', PAYLOAD_TYPE, Verdict.UNTRUSTED),
        "a run that is a word": (b'{"predicate":{"run_id":"this one"}}', PAYLOAD_TYPE, Verdict.UNTRUSTED),
        "half a surrogate": (b'{"predicate":{"run_id":"\\ud800"}}', PAYLOAD_TYPE, Verdict.BAD_ARTIFACT),
    }
    return {
        f"payload: {name}": (sign_payload(data, kind, key(1)).encode(), verdict)
        for name, (data, kind, verdict) in found.items()
    }


def bad_bytes(maker: Maker) -> Bad:
    """No envelopes at all."""
    good = maker.signed(5, key(1))
    found = {
        "nothing": b"",
        "null": b"null",
        "a list": b"[]",
        "an object": b"{}",
        "half of it": good[: len(good) // 2],
        "a space behind": good + b" ",
        "a newline before": b"\n" + good,
        "not UTF-8": b"\xff" + good,
        "a byte order mark": b"\xef\xbb\xbf" + good,
        "deep": b"[" * 5000 + b"]" * 5000,
        "a key twice": good.replace(b'"payload"', b'"payloadType"', 1),
        "another key": good.replace(b'"signatures"', b'"signaturez"', 1),
        "a float": good.replace(b'"signatures":[', b'"signatures":[1e999,', 1),
        "zeros": bytes(1000),
    }
    return {f"bytes: {name}": (data, Verdict.BAD_ARTIFACT) for name, data in found.items()}
