"""A lease request prints back the same bytes and says each thing once, in its range; the answer too."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import BadArtifact, Unsupported, UsageError
from auditkit.formats import canonical
from auditkit.formats.lease import STEPS, Lease, LeaseRequest, Leases, registry_address

REQUEST = LeaseRequest("https://registry.example", "ab" * 32, 5, 1_767_323_045, "0c" * 32)
ANSWER = Leases("ab" * 32, 7, (Lease(5, 1_767_326_645), Lease(3, 1_767_326_645)))


def test_they_print_back_the_same_bytes() -> None:
    assert LeaseRequest.parse(REQUEST.encode()) == REQUEST
    assert Leases.parse(ANSWER.encode()) == ANSWER
    assert Leases.parse(replace(ANSWER, leases=()).encode()).leases == ()


def test_the_bytes_are_these() -> None:
    assert REQUEST.encode() == (
        b'{"audience":"https://registry.example","count":5,"format":"auditkit/lease-request/v1","nonce":"'
        + b"0c" * 32
        + b'","run":"'
        + b"ab" * 32
        + b'","time":1767323045}'
    )


BAD = [
    ({"count": 0}, "count: 0 is outside"),
    ({"count": STEPS + 1}, "count: 4097 is outside"),
    ({"count": True}, "count: not an integer"),
    ({"count": "5"}, "count: not an integer"),
    ({"time": -1}, "time: -1 is outside"),
    ({"nonce": ""}, "nonce: not a digest"),
    ({"nonce": "AB" * 32}, "nonce: not a digest"),
    ({"run": "ab"}, "run: not a digest"),
    ({"audience": ""}, "audience: 0 characters"),
    ({"audience": "https://a\nb"}, "unprintable"),
    ({"format": "auditkit/lease-request/v0"}, "format"),
    ({"step": 3}, 'unknown key "step"'),
]


@pytest.mark.parametrize(("change", "message"), BAD, ids=[str(change) for change, _ in BAD])
def test_a_bad_field_is_named(change: dict[str, object], message: str) -> None:
    value = {**canonical.loads(REQUEST.encode(), what="request", limit=4096), **change}
    with pytest.raises(BadArtifact, match=message):
        LeaseRequest.parse(canonical.dumps(value))


@pytest.mark.parametrize("key", ["audience", "count", "format", "nonce", "run", "time"])
def test_a_missing_field_is_named(key: str) -> None:
    value = canonical.loads(REQUEST.encode(), what="request", limit=4096)
    del value[key]
    with pytest.raises(BadArtifact, match=f'key "{key}" is missing'):
        LeaseRequest.parse(canonical.dumps(value))


def test_a_newer_version_is_unsupported() -> None:
    with pytest.raises(Unsupported):
        LeaseRequest.parse(REQUEST.encode().replace(b"request/v1", b"request/v2"))
    with pytest.raises(Unsupported):
        Leases.parse(ANSWER.encode().replace(b"leases/v1", b"leases/v2"))


@given(st.integers(0, len(REQUEST.encode()) - 1), st.integers(0, 255))
def test_no_other_bytes_are_the_same_request(at: int, byte: int) -> None:
    data = bytearray(REQUEST.encode())
    data[at] = byte
    try:
        found = LeaseRequest.parse(bytes(data))
    except (BadArtifact, Unsupported):
        return
    assert found.encode() == data
    assert (found == REQUEST) == (data == REQUEST.encode())


def test_too_large_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadArtifact, match="at most 4096"):
        LeaseRequest.parse(b" " * 4097)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("https://Registry.Example/", "https://registry.example"),
        ("HTTPS://registry.example:443", "https://registry.example"),
        ("http://127.0.0.1:8080/", "http://127.0.0.1:8080"),
        ("http://[::1]:80/audit/", "http://[::1]/audit"),
    ],
)
def test_an_address_has_one_spelling(text: str, address: str) -> None:
    assert registry_address(text) == registry_address(address) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        "registry.example",
        "ftp://a",
        "http://",
        "http://a:b@c",
        "http://a?b",
        "http://a#b",
        "http://a:99999",
        "http://\u00e4",
        "http://a/ b",
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(UsageError):
        registry_address(text)
