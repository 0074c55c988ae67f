"""What dishonest auditors make, with programs of their own: well-formed attestations that no replay stands behind."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from auditkit.formats import canonical
from auditkit.formats.digest import content_digest
from auditkit.formats.dsse import PAYLOAD_TYPE, Envelope
from auditkit.trust.envelope import sign_payload
from auditkit.trust.keys import load_private
from tests.story.stage import Person

Statement = dict[str, Any]


def statement_of(attestation: Path) -> Statement:
    """What an attestation says."""
    found: Statement = json.loads(Envelope.parse(attestation.read_bytes()).payload)
    return found


def signed(statement: Statement, forger: Person) -> bytes:
    """An envelope of any statement, whose signature is good."""
    payload = canonical.dumps(statement)
    return sign_payload(payload, PAYLOAD_TYPE, load_private(forger.key)).encode()


def copied(attestation: Path, forger: Person) -> bytes:
    """A MATCH made of published digests alone: the gradient is not at hand, so the work is invented."""
    statement = statement_of(attestation)
    statement["predicate"]["work"] = content_digest(b"some work")
    return signed(statement, forger)


def with_borrowed_work(attestation: Path, forger: Person) -> bytes:
    """Somebody else's attestation as one's own, with the work that they did."""
    return signed(statement_of(attestation), forger)


def false_accusation(attestation: Path, forger: Person) -> bytes:
    """A MISMATCH with an invented result, made of a MATCH."""
    statement = statement_of(attestation)
    predicate = statement["predicate"]
    predicate["verdict"] = "MISMATCH"
    predicate["computed"] = {name: content_digest(name.encode()) for name in predicate["computed"]}
    predicate["checks"]["7"] = predicate["checks"]["8"] = "failed"
    predicate["work"] = content_digest(b"some work")
    return signed(statement, forger)


def moved(attestation: Path, step: int) -> Statement:
    """An attestation edited to speak of another step."""
    statement = statement_of(attestation)
    statement["predicate"]["step"] = step
    subject = statement["subject"][0]
    subject["name"] = f"{subject['name'].rpartition('/')[0]}/{step}"
    return statement


def edited_under_its_signature(attestation: Path, step: int) -> bytes:
    """The same edit, the signature of the honest auditor left as it was."""
    envelope: dict[str, Any] = json.loads(attestation.read_bytes())
    payload = canonical.dumps(moved(attestation, step))
    envelope["payload"] = base64.b64encode(payload).decode("ascii")
    return canonical.dumps(envelope)
