"""Which proxy, and what NO_PROXY may say (case 26)."""

from __future__ import annotations

import pytest

from auditkit.errors import UsageError
from auditkit.store.proxies import bypassed, choose


@pytest.mark.parametrize(
    ("no_proxy", "host", "direct"),
    [
        ("", "example.org", False),
        ("*", "example.org", True),
        ("example.org", "example.org", True),
        ("example.org", "www.example.org", True),
        (".example.org", "www.example.org", True),
        ("*.example.org", "www.example.org", True),
        ("example.org", "badexample.org", False),
        ("EXAMPLE.org", "example.ORG", True),
        ("example.org", "example.org.", True),
        ("example.org:8080", "example.org", False),
        ("example.org:80", "example.org", True),
        ("other, example.org ,", "example.org", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("127.0.0.0/8", "127.0.0.1", True),
        ("192.168.1.7", "192.168.1.7", True),
        ("1.7", "192.168.1.7", False),
        ("::1", "::1", True),
        ("[::1]", "::1", True),
        ("fd00::/8", "fd12::1", True),
        ("fe80::/10,::1", "10.0.0.1", False),
        ("10.0.0.0/99", "10.0.0.1", False),
        ("localhost", "localhost", True),
        ("http://example.org", "example.org", True),
    ],
)
def test_no_proxy(no_proxy: str, host: str, direct: bool) -> None:
    assert bypassed(host, 80, no_proxy) is direct


def test_the_scheme_chooses_and_all_is_the_rest() -> None:
    settings = {"https": "http://a:1", "all": "b:2"}
    assert getattr(choose("https://x.org/", settings), "url", None) == "http://a:1"
    assert getattr(choose("http://x.org/", settings), "url", None) == "http://b:2"
    assert choose("http://x.org/", {"https": "http://a:1"}) is None
    assert choose("http://x.org/", {"http": "http://a:1", "no": "x.org"}) is None


def test_a_variable_that_is_not_needed_may_be_malformed() -> None:
    assert choose("http://x.org/", {"https": "socks://nonsense"}) is None


def test_the_variable_is_named_as_it_is_spelt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "socks://h:1")
    with pytest.raises(UsageError, match=r"^HTTP_PROXY names a proxy \(socks://"):
        choose("http://x.org/", {"http": "socks://h:1"})
