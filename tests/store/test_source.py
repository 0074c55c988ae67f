"""Addresses: what is a base, what stays out of messages, which paths are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditkit.errors import BadArtifact, UsageError
from auditkit.store.source import Folder, Remote, parse_remote, redact, segments


@pytest.mark.parametrize(
    ("text", "base", "name"),
    [
        ("https://h.org", "https://h.org/", "run.json"),
        ("https://h.org/", "https://h.org/", "run.json"),
        ("https://h.org/a/b", "https://h.org/a/b/", "run.json"),
        ("https://h.org/a/b/", "https://h.org/a/b/", "run.json"),
        ("https://h.org/a/b//", "https://h.org/a/b/", "run.json"),
        ("https://h.org/a/run.json", "https://h.org/a/", "run.json"),
        ("https://h.org/a/other.json", "https://h.org/a/", "other.json"),
        ("HTTP://H.org:8080/a#frag", "http://h.org:8080/a/", "run.json"),
        ("http://[::1]:80/a", "http://[::1]:80/a/", "run.json"),
        ("http://u:p@h.org/a", "http://h.org/a/", "run.json"),
        ("https://h.org/a%20b/run.json", "https://h.org/a%20b/", "run.json"),
    ],
)
def test_addresses(text: str, base: str, name: str) -> None:
    remote, found = parse_remote(text)
    assert (remote.url, found) == (base, name)


@pytest.mark.parametrize(
    "text", ["ftp://h/x", "https://", "http:///x", "http://h:99999/", "http://[::1/", "https://h/%2e%2e.json", "x://y"]
)
def test_addresses_that_are_none(text: str) -> None:
    with pytest.raises(UsageError):
        parse_remote(text)


def test_links() -> None:
    remote, _ = parse_remote("https://u:p%40@h.org/a/run.json?sv=1&sig=x%2By")
    assert remote.link("states/00000500/x+y.zst") == "https://h.org/a/states/00000500/x%2By.zst?sv=1&sig=x%2By"
    assert remote.show("records.bin") == "https://h.org/a/records.bin"
    assert remote.authorization == "Basic dTpwQA=="  # u:p@
    assert not any(secret in repr(remote) for secret in ("sig", "Basic"))


def test_a_token() -> None:
    assert parse_remote("https://h/", token="t")[0].authorization == "Bearer t"
    assert parse_remote("https://u:p@h/", token="t")[0].authorization.startswith("Basic ")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@h.org/a?q=1#f", "https://h.org/a"),
        ("https://u:p@h.org?q=@", "https://h.org"),
        ("https://h.org/a@b", "https://h.org/a@b"),
        ("folder/run.json", "folder/run.json"),
        ("https://u:p@x@h.org/", "https://h.org/"),
    ],
)
def test_redact(url: str, shown: str) -> None:
    assert redact(url) == shown


@pytest.mark.parametrize(
    "path", ["", "/", "a/", "/a", "../a", "a/../b", "a\\b", "c:a", "a:b", "nul", "a\0b", "a b", "."]
)
def test_paths_that_are_refused(path: str) -> None:
    with pytest.raises(BadArtifact, match="artifact path"):
        segments(path)
    with pytest.raises(BadArtifact):
        Folder(Path("x")).file(path)
    with pytest.raises(BadArtifact):
        Remote("https://h/").link(path)


@pytest.mark.parametrize(
    "text", ["https://u:\udcd9@example.org/", "https://example.org/\udc80/run.json", "http://a\x1b[2J/"]
)
def test_an_address_that_cannot_be_written_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_remote(text)
    assert caught.value.message.isascii() and caught.value.message.isprintable()
