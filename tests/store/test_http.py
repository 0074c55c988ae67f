"""Redirects, credentials and proxies (cases 26 and 28)."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

import httpcore
import pytest

from auditkit.errors import AuditkitError, Unavailable, UsageError
from auditkit.store import http, locate
from auditkit.store.limits import STORE_LIMITS
from auditkit.store.peers import Peers
from tests.store import servers
from tests.store.conftest import Shop
from tests.store.servers import honest, redirecting, serve
from tests.store.tools import blob, named

DATA = blob(3000)
SIZE, DIGEST = named(DATA)
FILES = {"run.json": b"{}", "x.bin": DATA}
SECRET = "s3cr3t-tok"


def with_user(url: str) -> str:
    return url.replace("http://", f"http://me:{SECRET}@")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(shop: Shop, status: int) -> None:
    with serve(honest, FILES) as good:
        with serve(redirecting(lambda h: f"{good.url}{h.asked.path}", status), FILES) as first:
            assert shop.store(first.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert good.asked[0].headers["accept-encoding"] == "identity"


def test_a_relative_redirect_on_the_same_server(shop: Shop) -> None:
    def behave(handler: servers.Handler, data: bytes | None) -> None:
        if handler.asked.path == "x.bin":
            return handler.whole(b"", 302, Location="deep/y.bin")
        return honest(handler, DATA)

    with serve(behave, FILES) as server:
        assert shop.store(with_user(server.url)).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert [a.path for a in server.asked] == ["x.bin", "deep/y.bin"]
    assert all(a.headers["authorization"].startswith("Basic ") for a in server.asked)


def test_a_range_is_kept_through_a_redirect(shop: Shop) -> None:
    with serve(honest, FILES) as good:
        with serve(redirecting(lambda h: f"{good.url}x.bin"), FILES) as first:
            assert shop.store(first.url).range("x.bin", 100, 50, size=SIZE) == DATA[100:150]
    assert good.asked[0].range == "bytes=100-149"


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is called 127.0.0.1 counts as a server outside; localhost, the same one, stays inside."""
    inside = http.is_inside
    monkeypatch.setattr(
        http, "is_inside", lambda host, *, resolve: host != "127.0.0.1" and inside(host, resolve=resolve)
    )


def test_a_redirect_from_outside_to_inside_is_not_followed(shop: Shop, outside: None) -> None:
    """What answers inside (a metadata service, a router) may act on a mere request."""
    with serve(honest, FILES) as inner:
        target = inner.url.replace("127.0.0.1", "localhost")
        with serve(redirecting(lambda h: f"{target}x.bin"), FILES) as server, pytest.raises(Unavailable) as error:
            shop.store(server.url).file("x.bin", SIZE, DIGEST)
        assert "redirects into this machine or its own network" in error.value.message
        with serve(redirecting(lambda h: f"{inner.url}x.bin"), FILES) as server:  # from outside to outside
            assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert len(inner.asked) == 1


def test_a_mirror_inside_that_a_manifest_from_outside_names_is_not_asked(shop: Shop, outside: None) -> None:
    with serve(honest, FILES) as inner, serve(honest, {}) as server:
        store = shop.store(server.url)
        store.use_mirrors([inner.url.replace("127.0.0.1", "localhost")])
        with pytest.raises(Unavailable) as error:
            store.file("x.bin", SIZE, DIGEST)
        assert "names the mirror" in error.value.message + shop.story.text
        assert not inner.asked
        store.use_mirrors([inner.url])
        assert store.file("x.bin", SIZE, DIGEST).read_bytes() == DATA


@pytest.fixture
def connections(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Every name is looked up as one outside; the connections to be made lead inside, or not, as this list says."""
    found: list[bool] = []
    monkeypatch.setattr(http, "is_inside", lambda host, *, resolve: not resolve and found.pop(0))
    return found


def test_a_redirect_to_a_name_that_has_moved_inside_is_not_sent(shop: Shop, connections: list[bool]) -> None:
    """The look-up and the connection may get two answers (DNS rebinding): the one that counts is the connection's."""
    with serve(honest, FILES) as inner, serve(redirecting(lambda h: f"{inner.url}x.bin"), FILES) as server:
        connections += [False, True]
        with pytest.raises(Unavailable, match="leads into this machine or its own network"):
            shop.store(server.url.replace("127.0.0.1", "localhost")).file("x.bin", SIZE, DIGEST)
        assert not inner.asked
        connections += [False, False]
        where = server.url.replace("127.0.0.1", "localhost")
        assert shop.store(where).file("x.bin", SIZE, DIGEST).read_bytes() == DATA


def test_a_name_that_moves_inside_is_not_asked_any_more(shop: Shop, connections: list[bool]) -> None:
    with serve(servers.until_close, FILES) as server:
        store = shop.store(server.url)
        connections += [False, True, True, True, True, True]
        assert store.manifest() == b"{}"
        with pytest.raises(Unavailable, match="leads into this machine or its own network"):
            store.file("x.bin", SIZE, DIGEST)
        assert [asked.path for asked in server.asked] == ["run.json"]


@pytest.mark.parametrize("addresses", [("93.184.216.34",), ("93.184.216.34", "10.0.0.1"), ("10.0.0.1",)])
def test_who_was_outside_may_not_lead_inside_whatever_its_name_stands_for_now(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, addresses: tuple[str, ...]
) -> None:
    """A publisher's name with a second address inside, or with another than when run.json was fetched."""
    answers = [(2, 1, 6, "", (address, 0)) for address in addresses]
    monkeypatch.setattr("auditkit.store.inside.socket.getaddrinfo", lambda *args, **kwargs: answers)
    asker = http.Http(shop.limits)
    asker._peers._outside.add("evil.example")
    with serve(honest, FILES) as server:
        with (
            pytest.raises(Unavailable, match="names the mirror .*, which lies in this machine"),
            asker.get(server.url + "x.bin", named_by="http://evil.example/run.json"),
        ):
            pass
        assert not server.asked


def test_a_connection_that_is_reset_at_once_is_one_that_failed() -> None:
    class Reset:
        closed = False

        def get_extra_info(self, name: str) -> tuple[str, int]:
            raise OSError(107, "Transport endpoint is not connected")

        def close(self) -> None:
            Reset.closed = True

    hook = Peers(lambda address: False).trace("host", "shown", False, lambda event, info: None)
    with pytest.raises(httpcore.ConnectError, match="not connected"):
        hook("connection.connect_tcp.complete", {"return_value": Reset()})
    assert Reset.closed


def test_a_place_inside_that_was_named_is_asked(shop: Shop, connections: list[bool]) -> None:
    with serve(servers.until_close, FILES) as server:
        connections += [True] * 4
        store = shop.store(server.url)
        assert store.manifest() == b"{}" and store.file("x.bin", SIZE, DIGEST).read_bytes() == DATA


def test_a_redirect_loop_ends(shop: Shop) -> None:
    with serve(redirecting(lambda h: "/x.bin"), FILES) as server, pytest.raises(Unavailable) as error:
        shop.store(server.url).file("x.bin", SIZE, DIGEST)
    assert "more than 5 redirects" in error.value.message
    assert len(server.asked) == 6


@pytest.mark.parametrize("target", ["ftp://127.0.0.1/x", "file:///etc/passwd", "", "data:text/plain,x", "http://[::1"])
def test_redirects_to_anything_but_http_are_refused(shop: Shop, target: str) -> None:
    with serve(redirecting(lambda h: target), FILES) as server, pytest.raises(Unavailable) as error:
        shop.store(server.url).file("x.bin", SIZE, DIGEST)
    assert "redirects to" in error.value.message
    assert len(server.asked) == 1


def test_case_28_credentials_go_to_the_first_origin_only(shop: Shop) -> None:
    with serve(honest, FILES) as other:
        target = other.url.replace("http://", "http://you:other@") + "x.bin?sig=1"
        with serve(redirecting(lambda h: target), FILES) as first:
            assert shop.store(with_user(first.url)).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert "authorization" in first.asked[0].headers
    assert "authorization" not in other.asked[0].headers
    assert other.asked[0].query == "sig=1"


def test_case_28_credentials_are_not_sent_again_after_a_way_round(shop: Shop) -> None:
    with serve(honest, FILES) as first:
        with serve(redirecting(lambda h: f"{first.url}x.bin"), FILES) as other:
            first.behaviour = lambda h, d: (
                honest(h, d) if len(first.asked) > 1 else redirecting(lambda h: f"{other.url}x.bin")(h, d)
            )
            assert shop.store(with_user(first.url)).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert ["authorization" in a.headers for a in first.asked] == [True, False]


def test_a_token_goes_to_the_run_and_not_to_its_mirrors(shop: Shop) -> None:
    with serve(servers.Busy([404] * 9), FILES) as home, serve(honest, FILES) as mirror:
        source = locate(home.url, token=SECRET)
        shop.store(source, mirror.url).file("x.bin", SIZE, DIGEST)
    assert home.asked[0].headers["authorization"] == f"Bearer {SECRET}"
    assert "authorization" not in mirror.asked[0].headers


@pytest.mark.parametrize(
    "behaviour",
    [
        servers.Busy([503] * 99),
        servers.Busy([404] * 99),
        servers.instead(servers.flip),
        servers.instead(lambda d: d[1:]),
        servers.garbage,
        servers.coded,
        servers.Dying([3] * 99),
        redirecting(lambda h: "/x.bin?sig=" + SECRET),
        redirecting(lambda h: f"ftp://u:{SECRET}@127.0.0.1/?{SECRET}"),
    ],
)
def test_case_28_no_message_and_no_log_holds_a_secret(
    shop: Shop, behaviour: servers.Behaviour, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with serve(behaviour, FILES) as server, pytest.raises(AuditkitError) as error:
        shop.store(with_user(server.url) + f"?key={SECRET}").file("x.bin", SIZE, DIGEST)
    assert server.asked[0].query == f"key={SECRET}"
    told = "\n".join([error.value.message, error.value.hint, repr(error.value), shop.story.text, caplog.text])
    assert server.url in told
    assert SECRET not in told and "me:" not in told


def test_netrc_is_not_read(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password x\n", encoding="ascii")
    monkeypatch.setenv("NETRC", str(netrc))
    with serve(honest, FILES) as server:
        shop.store(server.url).file("x.bin", SIZE, DIGEST)
    assert "authorization" not in server.asked[0].headers


def test_a_refused_connection_is_unavailable(shop: Shop) -> None:
    with serve(honest, FILES) as server:
        url = server.url
    with pytest.raises(Unavailable) as error:
        shop.store(url).file("x.bin", SIZE, DIGEST)
    assert error.value.message.startswith(f"x.bin: {url}x.bin: ")
    assert len(shop.clock.waits) == shop.limits.silent_tries - 1


def test_plain_http_behind_a_https_address(shop: Shop) -> None:
    with serve(honest, FILES) as server, pytest.raises(Unavailable):
        shop.store(server.url.replace("http://", "https://")).file("x.bin", SIZE, DIGEST)
    assert server.asked == []


def test_a_certificate_that_is_not_trusted_is_told_at_once(shop: Shop) -> None:
    with serve(honest, FILES, tls=True) as server, pytest.raises(Unavailable) as error:
        shop.store(server.url).file("x.bin", SIZE, DIGEST)
    assert error.value.message == f"x.bin: {server.url}x.bin: the server's certificate is not trusted"
    assert "SSL_CERT_FILE" in error.value.hint and shop.clock.waits == []


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own certificate is trusted."""
    monkeypatch.setenv("SSL_CERT_FILE", str(servers.CERTIFICATE))


def test_https(shop: Shop, trusted: None) -> None:
    with serve(servers.Dying([1000]), FILES, tls=True) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert server.asked[1].range == f"bytes=1000-{SIZE - 1}"


def test_a_redirect_from_https_to_http_is_not_followed(shop: Shop, trusted: None) -> None:
    with serve(honest, FILES) as plain:
        with serve(redirecting(lambda h: f"{plain.url}x.bin"), FILES, tls=True) as server:
            with pytest.raises(Unavailable, match="from https to plain http"):
                shop.store(server.url).file("x.bin", SIZE, DIGEST)
    assert plain.asked == []


def test_a_head_that_never_ends_is_cut_under_tls_and_on_a_used_connection(shop: Shop, trusted: None) -> None:
    limits = dataclasses.replace(shop.limits, answer_seconds=0.5, silent_tries=2)
    with serve(honest, FILES, tls=True) as server:
        store = shop.store(server.url, limits=limits)
        assert store.manifest() == b"{}"
        server.behaviour = servers.slow_head(0.05)
        with pytest.raises(Unavailable, match=r"no complete answer within 0\.5 s"):
            store.file("x.bin", SIZE, DIGEST)


def test_a_certificate_file_that_is_not_there(shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    with serve(honest, FILES) as server, pytest.raises(UsageError, match="SSL_CERT_FILE"):
        shop.store(server.url).file("x.bin", SIZE, DIGEST)


@pytest.mark.parametrize(
    "value", ["socks://127.0.0.1:1", "socks5://u:s3cr3t-tok@h:1", "http://:99999", "ftp://h", "http://"]
)
def test_case_26_a_proxy_that_cannot_be_used(shop: Shop, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("ALL_PROXY", value)
    with serve(honest, FILES) as server:
        with pytest.raises(UsageError) as error:
            shop.store(server.url).file("x.bin", SIZE, DIGEST)
        assert "ALL_PROXY" in error.value.message and SECRET not in error.value.message + error.value.hint
        monkeypatch.setenv("NO_PROXY", "127.0.0.0/8")
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA


def test_case_26_a_proxy_that_is_not_there_is_named(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(honest, FILES) as server:
        nobody = server.url
    monkeypatch.setenv("HTTP_PROXY", nobody.replace("http://", f"http://u:{SECRET}@"))
    with serve(honest, FILES) as server, pytest.raises(Unavailable) as error:
        shop.store(server.url).file("x.bin", SIZE, DIGEST)
    assert "(through the proxy of HTTP_PROXY)" in error.value.message
    assert SECRET not in error.value.message + shop.story.text


def test_a_proxy_is_used(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def proxy(handler: servers.Handler, data: bytes | None) -> None:
        honest(handler, DATA)

    with serve(proxy, FILES) as server:
        monkeypatch.setenv("HTTP_PROXY", server.url)
        assert shop.store("http://127.0.0.2:9/").file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert server.asked[0].headers["host"] == "127.0.0.2:9"


def test_the_real_limits_are_bounded() -> None:
    assert STORE_LIMITS.retry_after_seconds * STORE_LIMITS.tries < 600
    assert STORE_LIMITS.rate_window_seconds >= STORE_LIMITS.silence_seconds
