"""Ten thousand changed envelopes: none is taken, none makes the registry stumble, the one they come from still is."""

from __future__ import annotations

import base64
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from auditkit.formats.dsse import Envelope
from auditkit.registry.limits import REGISTRY_LIMITS
from auditkit.registry.runs import KnownRun
from tests.registry.inprocess import LINES, Options, Service, serving
from tests.registry.makers import Maker, key

COUNT = 10_000
BATCH = 125
Mutation = Callable[[random.Random, bytes], bytes]


def flip(rng: random.Random, data: bytes) -> bytes:
    """One bit of the file."""
    changed = bytearray(data)
    changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def cut(rng: random.Random, data: bytes) -> bytes:
    """Some bytes are missing."""
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.randint(1, 40) :]


def double(rng: random.Random, data: bytes) -> bytes:
    """Some bytes are there twice."""
    at, size = rng.randrange(len(data)), rng.randint(1, 40)
    return data[: at + size] + data[at : at + size] + data[at + size :]


def byte(rng: random.Random, data: bytes) -> bytes:
    """Another byte, often one that means something to JSON."""
    at = rng.randrange(len(data))
    return (
        data[:at]
        + rng.choice([b'"', b"{", b"}", b",", b":", b"\\", b"0", b" ", bytes([rng.randrange(256)])])
        + data[at + 1 :]
    )


def payload(rng: random.Random, data: bytes) -> bytes:
    """One bit of what was signed, in an envelope of good form."""
    envelope = Envelope.parse(data)
    return replace(envelope, payload=flip(rng, envelope.payload)).encode()


def signature(rng: random.Random, data: bytes) -> bytes:
    """One bit of the signature, in an envelope of good form."""
    envelope = Envelope.parse(data)
    found = envelope.signatures[0]
    return replace(envelope, signatures=(replace(found, sig=flip(rng, found.sig)),)).encode()


def keyid(rng: random.Random, data: bytes) -> bytes:
    """The keyid of another auditor."""
    envelope = Envelope.parse(data)
    other = key(rng.choice([2, 3, 4])).public.keyid
    return replace(envelope, signatures=(replace(envelope.signatures[0], keyid=other),)).encode()


def letters(rng: random.Random, data: bytes) -> bytes:
    """Another spelling of the base64: its unused bits, its alphabet, its padding."""
    text = base64.b64encode(Envelope.parse(data).payload)
    other = rng.choice([text.rstrip(b"="), text + b"=", text.replace(b"+", b"-"), text[:-3] + b"B=="])
    return data.replace(text, other if other != text else text + b"====")


MUTATIONS: list[Mutation] = [flip, cut, double, byte, payload, signature, keyid, letters]


def test_no_changed_envelope_is_taken(run: KnownRun, maker: Maker, tmp_path: object) -> None:
    limits = replace(REGISTRY_LIMITS, envelopes_burst=10**9, requests_burst=10**9, log_seconds=0.0)
    good = maker.signed(5, key(1))
    rng = random.Random(20260101)
    with serving(tmp_path / "registry", run, Options(limits=limits)) as service:  # type: ignore[operator]
        verdicts: Counter[str] = Counter()
        for _ in range(COUNT // BATCH):
            verdicts += submitted(service, [mutated(rng, good) for _ in range(BATCH)])
        assert sum(verdicts.values()) == COUNT
        assert set(verdicts) <= {"BAD_ARTIFACT", "UNTRUSTED", "UNSUPPORTED"}
        assert min(verdicts["BAD_ARTIFACT"], verdicts["UNTRUSTED"]) > COUNT // 10
        assert service.registry.database.size() == 0
        assert service.post(good).status_code == 201
        assert not service.told


def mutated(rng: random.Random, good: bytes) -> bytes:
    """A changed envelope that is one line and not the good one."""
    while True:
        data = rng.choice(MUTATIONS)(rng, good)
        if data != good and b"\n" not in data and data:
            return data


def submitted(service: Service, envelopes: list[bytes]) -> Counter[str]:
    """The verdicts on a batch; none may be taken."""
    answer = service.ask("POST", "/v1/attestations/batch", content=b"\n".join(envelopes), headers=LINES)
    results = answer.json()["results"]
    assert len(results) == len(envelopes)
    assert {result["status"] for result in results} == {"refused"}, answer.text
    return Counter(result["verdict"] for result in results)
