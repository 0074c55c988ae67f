"""Which hosts lie inside, in every spelling that a system takes for an address."""

from __future__ import annotations

import pytest

from auditkit.store.inside import is_inside, may_be_outside

INSIDE = """127.0.0.1 127.1 0x7f000001 2130706433 0177.0.0.1 ::1 [::1] 0.0.0.0 :: ::ffff:127.0.0.1 10.1.2.3 172.16.0.1
192.168.1.1 169.254.169.254 100.64.0.1 fe80::1 fe80::1%eth0 fd00::1 localhost LOCALHOST. a.localhost printer.local
metadata.google.internal ::ffff:a9fe:a9fe""".split()
OUTSIDE = (
    "1.1.1.1 93.184.216.34 2606:4700::1111 [2606:4700::1111] example.org huggingface.co localhost.example.org".split()
)


@pytest.mark.parametrize("host", INSIDE)
def test_inside(host: str) -> None:
    assert is_inside(host, resolve=False)


@pytest.mark.parametrize("host", OUTSIDE)
def test_outside(host: str) -> None:
    assert not is_inside(host, resolve=False)


def test_a_name_is_what_it_stands_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def stands_for(*addresses: str) -> None:
        answers = [(2, 1, 6, "", (address, 0)) for address in addresses]
        monkeypatch.setattr("socket.getaddrinfo", lambda *args, **kwargs: answers)

    stands_for("93.184.216.34")
    assert not is_inside("rebound.example", resolve=True)
    stands_for("93.184.216.34", "10.0.0.1")
    assert is_inside("rebound.example", resolve=True)
    assert not is_inside("rebound.example", resolve=False)
    stands_for()
    assert not is_inside("rebound.example", resolve=True)


def test_a_name_of_both_kinds_is_neither_asked_nor_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a target it lies inside, as a source outside."""

    def stands_for(*addresses: str) -> None:
        answers = [(2, 1, 6, "", (address, 0)) for address in addresses]
        monkeypatch.setattr("socket.getaddrinfo", lambda *args, **kwargs: answers)

    stands_for("93.184.216.34", "10.0.0.1")
    assert is_inside("rebound.example", resolve=True) and may_be_outside("rebound.example", resolve=True)
    stands_for("10.0.0.1")
    assert is_inside("rebound.example", resolve=True) and not may_be_outside("rebound.example", resolve=True)
    assert may_be_outside("rebound.example", resolve=False)  # a proxy looks it up
    stands_for()
    assert may_be_outside("rebound.example", resolve=True)
    for host in ("localhost", "10.0.0.1", "a.internal", "::1"):
        assert not may_be_outside(host, resolve=True)
    assert may_be_outside("93.184.216.34", resolve=True)


@pytest.mark.parametrize("host", ["", ".", "a" * 300, "\u0000", "\u2488", "[", "999.1.1.1"])
def test_what_is_no_host_is_nowhere(host: str) -> None:
    assert not is_inside(host, resolve=False)
