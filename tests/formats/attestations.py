"""Attestations about the sample run of samples.py: one of each kind, signed with a key that everybody knows."""

from __future__ import annotations

import dataclasses

from auditkit.formats import svr
from auditkit.formats.step_audit import CHECKS, Digests, Machine, StepAudit, Verifier, sha256_of
from auditkit.trust.envelope import sign
from auditkit.trust.keys import PrivateKey
from auditkit.verdict import Verdict
from tests.formats import samples

KEY = PrivateKey(bytes(range(32)))
OTHER_KEY = PrivateKey(bytes(range(1, 33)))
KEYS = {key.public.keyid: key.public for key in (KEY, OTHER_KEY)}

STEP = 1
RECORD = samples.CHAIN[STEP]
SHA256 = sha256_of(RECORD)

MATCH = StepAudit(
    run_id=samples.RUN_ID,
    run="demo",
    step=STEP,
    verdict=Verdict.MATCH,
    manifest=samples.RUN.digest(),
    record=RECORD.digest(),
    expected=Digests.of(RECORD),
    computed=Digests.of(RECORD),
    checks=dict.fromkeys(CHECKS, "ok"),
    work=samples.digest_of("work"),
    numerics=1,
    verifier=Verifier("auditkit", "0.1.0", samples.digest_of("source")),
    machine=Machine("cpu", "cpu-x86_64", "", "3.11.7", "2.3.1", "", "Linux"),
    started="2026-01-02T03:04:05Z",
    finished="2026-01-02T03:04:07Z",
    milliseconds=1234,
    automation="",
    message="",
)

WRONG = Digests(samples.digest_of("other state"), MATCH.expected.gradient, MATCH.expected.micro_batches)
MISMATCH = dataclasses.replace(
    MATCH,
    verdict=Verdict.MISMATCH,
    computed=WRONG,
    checks=MATCH.checks | {7: "failed"},
    machine=Machine("cuda:0 (H200)", "cuda-sm_90", "580.1", "3.12.1", "2.3.1", "14.0.1", "Linux"),
    automation="nightly",
    message="the state after the step differs: first in param/embedding [0, 0]",
)
NO_RESULT = dataclasses.replace(
    MISMATCH, computed=None, work="", checks=MATCH.checks | {6: "failed", 7: "skipped", 8: "skipped"}
)
UNAVAILABLE = dataclasses.replace(
    NO_RESULT, verdict=Verdict.UNAVAILABLE, message="states/00000000/state.json could not be fetched"
)
AUDITS = {"match": MATCH, "mismatch": MISMATCH, "step without a result": NO_RESULT, "unavailable": UNAVAILABLE}


def signed(audit: StepAudit, key: PrivateKey = KEY) -> bytes:
    """The envelope file of an audit of the sample step."""
    return sign(audit.statement(SHA256), key).encode()


def signed_summary(key: PrivateKey = KEY) -> bytes:
    """The envelope file of the Simple Verification Result beside the match."""
    return sign(svr.statement(MATCH, SHA256), key).encode()
