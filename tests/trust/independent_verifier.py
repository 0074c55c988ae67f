"""Verify an attestation with nothing of auditkit: independent_verifier.py ENVELOPE PUBLIC_KEY.pem RECORD.json"""

import base64
import hashlib
import json
import sys
from pathlib import Path

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

TYPES = ("https://in-toto.io/Statement/v1", "urn:auditkit:predicate:step-audit:v1")


def verify(envelope_bytes, key_bytes, record_bytes):
    """The signed predicate; ValueError, or the library's InvalidSignature, if it is not one about this record."""
    envelope, key, record = json.loads(envelope_bytes), load_pem_public_key(key_bytes), json.loads(record_bytes)
    [signature], kind = envelope["signatures"], b"application/vnd.in-toto+json"
    payload = base64.b64decode(envelope["payload"], validate=True)
    signed = b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)
    key.verify(base64.b64decode(signature["sig"], validate=True), signed)
    predicate, [subject] = (statement := json.loads(payload))["predicate"], statement["subject"]
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    root = record["micro_batches"]["root"]
    claims = {"gradient": record["gradient"], "micro_batches": root, "state": record["state_after"]}
    same = [
        (signature["keyid"], hashlib.sha256(der).hexdigest()),
        ((statement["_type"], statement["predicateType"]), TYPES),
        (subject["digest"], {"sha256": hashlib.sha256(record_bytes).hexdigest()}),
        (subject["name"], f"{predicate['run']}/step/{predicate['step']}"),
        ((predicate["run_id"], predicate["step"], predicate["expected"]), (record["run"], record["step"], claims)),
        (predicate.get("computed") == claims or predicate["verdict"] != "MATCH", True),
    ]
    if any(left != right for left, right in same):
        raise ValueError("signed, but not about this record")
    return predicate


if __name__ == "__main__":
    print(verify(*(Path(name).read_bytes() for name in sys.argv[1:4]))["verdict"])
