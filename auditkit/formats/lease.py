"""What an auditor signs to ask a registry for steps, and what the registry answers.

The request is the payload of a DSSE envelope of a type of its own, so that no signature of an attestation can pass for
one. It names the registry it is meant for, a time and a nonce: it can be used once, there, and for some minutes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self
from urllib.parse import urlsplit

from auditkit.errors import UsageError
from auditkit.formats import canonical
from auditkit.formats.canonical import shown, words
from auditkit.formats.digest import Digest, check_digest
from auditkit.formats.fields import Fields, check_text
from auditkit.formats.limits import LIMITS

PAYLOAD_TYPE = "application/vnd.auditkit.lease-request+json"
REQUEST_FORMAT = "auditkit/lease-request/v1"
ANSWER_FORMAT = "auditkit/leases/v1"

REQUEST_BYTES = 4096
ANSWER_BYTES = 1 << 20
STEPS = 4096  # of one request, whatever a registry allows

_PORTS = {"http": 80, "https": 443}


def registry_address(text: str) -> str:
    """The one spelling of a registry's address, by which a request names it: scheme, host, port if unusual, path.

    UsageError: not an http(s) address, or one with a user, a query or a fragment.
    """
    hint = "for example https://registry.example"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{shown(text)} is not an address: {words(error)}", hint=hint) from None
    scheme, host = parts.scheme.lower(), (parts.hostname or "").lower()
    if scheme not in _PORTS or not host or len(text) > LIMITS.url_characters or not text.isascii():
        raise UsageError(f"{shown(text)} is not an http(s) address", hint=hint)
    if parts.username is not None or parts.query or parts.fragment or any(c.isspace() or c < "!" for c in text):
        raise UsageError("the address of a registry has no user, query or fragment", hint=hint)
    place = f"[{host}]" if ":" in host else host
    suffix = "" if port in (None, _PORTS[scheme]) else f":{port}"
    return f"{scheme}://{place}{suffix}{parts.path.rstrip('/')}"


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """`count` steps of run `run_id` are asked of the registry whose address is `audience`.

    `time` is in seconds since 1970 UTC; `nonce` is 32 random bytes in hex, never used twice by a key.
    """

    audience: str
    run_id: Digest
    count: int
    time: int
    nonce: Digest

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The request of canonical JSON; BadArtifact naming the field."""
        fields = Fields(canonical.loads(data, what="lease request", limit=REQUEST_BYTES), "lease request")
        fields.format(REQUEST_FORMAT)
        request = cls(
            audience=fields.text("audience", limit=LIMITS.url_characters),
            run_id=fields.digest("run"),
            count=fields.integer("count", 1, STEPS, "steps"),
            time=fields.integer("time", unit="seconds"),
            nonce=fields.digest("nonce"),
        )
        fields.done()
        return request

    def encode(self) -> bytes:
        """Canonical JSON."""
        check_text(self.audience, "lease request.audience", LIMITS.url_characters)
        value = {
            "audience": self.audience,
            "count": self.count,
            "format": REQUEST_FORMAT,
            "nonce": check_digest(self.nonce, "lease request.nonce"),
            "run": check_digest(self.run_id, "lease request.run"),
            "time": self.time,
        }
        return canonical.dumps(value, what="lease request")


@dataclass(frozen=True, slots=True)
class Lease:
    """One step; others are kept off it until `expires`, in seconds since 1970 UTC."""

    step: int
    expires: int


@dataclass(frozen=True, slots=True)
class Leases:
    """The answer: steps of run `run_id` in the order of need; `held` leases has the key now, these included."""

    run_id: Digest
    held: int
    leases: tuple[Lease, ...]

    @classmethod
    def parse(cls, data: bytes) -> Self:
        """The answer of canonical JSON; BadArtifact naming the field."""
        fields = Fields(canonical.loads(data, what="leases", limit=ANSWER_BYTES), "leases")
        fields.format(ANSWER_FORMAT)
        answer = cls(
            run_id=fields.digest("run"),
            held=fields.integer("held"),
            leases=tuple(map(_lease, fields.rows("leases", 0, STEPS))),
        )
        fields.done()
        return answer

    def encode(self) -> bytes:
        """Canonical JSON."""
        value = {
            "format": ANSWER_FORMAT,
            "held": self.held,
            "leases": [{"expires": lease.expires, "step": lease.step} for lease in self.leases],
            "run": check_digest(self.run_id, "leases.run"),
        }
        return canonical.dumps(value, what="leases")


def _lease(fields: Fields) -> Lease:
    lease = Lease(fields.integer("step", 0, LIMITS.steps - 1), fields.integer("expires", unit="seconds"))
    fields.done()
    return lease
