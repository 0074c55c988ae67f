"""Ranges over HTTP: no more is read than needed, lines that break, servers that forget or lie."""

from __future__ import annotations

import dataclasses

import pytest

from auditkit.errors import BadArtifact, Unavailable, Unsupported
from auditkit.formats.digest import content_digest
from tests.store import servers
from tests.store.conftest import Shop
from tests.store.servers import Busy, Dying, flip, honest, serve
from tests.store.tools import blob

DATA = blob(5_000_000)
SIZE = len(DATA)
FILES = {"run.json": b"{}", "x.bin": DATA}


def require(start: int, length: int) -> dict[str, str]:
    return {"digest": content_digest(DATA[start : start + length])}


@pytest.mark.parametrize("behaviour", [honest, servers.forgetful, servers.chunked(bytes)])
@pytest.mark.parametrize(("start", "length"), [(0, 1), (0, 3000), (1000, 70_000), (SIZE - 1, 1), (0, SIZE), (7, 0)])
def test_a_range(shop: Shop, behaviour: servers.Behaviour, start: int, length: int) -> None:
    with serve(behaviour, FILES) as server:
        data = shop.store(server.url).range("x.bin", start, length, size=SIZE, digest=require(start, length)["digest"])
    assert data == DATA[start : start + length]


def test_a_range_asks_for_no_more_than_it_needs(shop: Shop) -> None:
    with serve(honest, FILES) as server:
        shop.store(server.url).range("x.bin", 1000, 500, size=SIZE)
    assert (server.asked[0].range, server.asked[0].sent) == ("bytes=1000-1499", 500)


def test_a_server_that_forgets_ranges_is_left_when_the_range_is_complete(shop: Shop) -> None:
    with serve(servers.slow(65536, 0.002), FILES) as server:
        server.behaviour = lambda h, d: (h.asked.headers.pop("range", ""), servers.slow(65536, 0.002)(h, d))[1]
        assert shop.store(server.url).range("x.bin", 1000, 500, size=SIZE) == DATA[1000:1500]
    assert server.asked[0].sent < SIZE // 2


def test_a_broken_range_goes_on_where_it_broke(shop: Shop) -> None:
    with serve(Dying([100, 200]), FILES) as server:
        assert shop.store(server.url).range("x.bin", 1000, 500, size=SIZE, **require(1000, 500)) == DATA[1000:1500]
    assert [a.range for a in server.asked] == ["bytes=1000-1499", "bytes=1100-1499", "bytes=1300-1499"]


def test_a_refused_range_is_taken_out_of_the_whole_file(shop: Shop) -> None:
    def refuse(handler: servers.Handler, data: bytes | None) -> None:
        return handler.whole(b"", 416) if handler.asked.range else honest(handler, data)

    with serve(refuse, FILES) as server:
        assert shop.store(server.url).range("x.bin", 1000, 500, size=SIZE) == DATA[1000:1500]
    assert len(server.asked) == 2


@pytest.mark.parametrize("content_range", ["bytes 0-499/5000000", "bytes 1000-1500/5000000", "bytes 1000-1499", "x"])
def test_a_range_that_is_another_is_not_taken(shop: Shop, content_range: str) -> None:
    with serve(servers.ranged(lambda *_: content_range, shift=3), FILES) as server:
        assert shop.store(server.url).range("x.bin", 1000, 500, size=SIZE) == DATA[1000:1500]
    assert [bool(a.range) for a in server.asked] == [True, False]


def test_another_total_is_a_bad_artifact(shop: Shop) -> None:
    with serve(servers.instead(lambda d: d + b"x"), FILES) as server, pytest.raises(BadArtifact) as error:
        shop.store(server.url).range("x.bin", 1000, 500, size=SIZE)
    assert "5,000,001 bytes, but the manifest declares 5,000,000" in error.value.message


def test_an_unasked_206_is_refused(shop: Shop) -> None:
    def always(handler: servers.Handler, data: bytes | None) -> None:
        assert data is not None
        handler.whole(data[:500], 206, Content_Range=f"bytes 0-499/{len(data)}")

    with serve(always, FILES) as server, pytest.raises(Unavailable) as error:
        shop.store(server.url).range("x.bin", 1000, 500, size=SIZE)
    assert "the server answered 206 partial content" in error.value.message
    assert len(server.asked) == 2


def test_a_wrong_range_is_skipped_for_the_next_mirror(shop: Shop) -> None:
    with serve(servers.instead(lambda d: flip(d, 1200)), FILES) as bad, serve(honest, FILES) as good:
        store = shop.store(bad.url, good.url)
        assert store.range("x.bin", 1000, 500, size=SIZE, **require(1000, 500)) == DATA[1000:1500]
    assert "; trying the next place" in shop.story.text


def test_a_check_of_the_caller_counts_as_the_digest_does(shop: Shop) -> None:
    def check(data: bytes) -> None:
        if data[200:201] != DATA[1200:1201]:
            raise BadArtifact("the token frame is no token frame", hint="look")

    with serve(servers.instead(lambda d: flip(d, 1200)), FILES) as bad:
        with serve(honest, FILES) as good:
            assert shop.store(bad.url, good.url).range("x.bin", 1000, 500, size=SIZE, check=check) == DATA[1000:1500]
        with pytest.raises(BadArtifact) as error:
            shop.store(bad.url).range("x.bin", 1000, 500, size=SIZE, check=check)
    assert error.value.message == f"x.bin: {bad.url}x.bin: the token frame is no token frame"
    assert error.value.hint == "look"


@pytest.mark.parametrize(("start", "length"), [(-1, 5), (5, -1), (SIZE, 1), (SIZE - 4, 5)])
def test_a_range_that_leads_out_is_a_bad_artifact(shop: Shop, start: int, length: int) -> None:
    with serve(honest, FILES) as server, pytest.raises(BadArtifact, match="leads out of its"):
        shop.store(server.url).range("x.bin", start, length, size=SIZE)
    assert server.asked == []


def test_a_range_above_the_limit_is_unsupported(shop: Shop) -> None:
    limits = dataclasses.replace(shop.limits, range_bytes=99)
    with serve(honest, FILES) as server, pytest.raises(Unsupported, match="above the limit of 99"):
        shop.store(server.url, limits=limits).range("x.bin", 0, 100, size=SIZE)
    assert server.asked == []


def test_a_short_answer_to_a_range_is_completed(shop: Shop) -> None:
    def miserly(handler: servers.Handler, data: bytes | None) -> None:
        asked = servers.span(handler, SIZE)
        assert asked is not None and data is not None
        first, last = asked[0], min(asked[1], asked[0] + 199)
        handler.whole(data[first : last + 1], 206, Content_Range=f"bytes {first}-{last}/{SIZE}")

    with serve(miserly, FILES) as server:
        assert shop.store(server.url).range("x.bin", 1000, 500, size=SIZE, **require(1000, 500)) == DATA[1000:1500]
    assert [a.range for a in server.asked] == ["bytes=1000-1499", "bytes=1200-1499", "bytes=1400-1499"]


def test_busy_servers_are_asked_again(shop: Shop) -> None:
    with serve(Busy([429] * 5), FILES) as server:
        assert shop.store(server.url).range("x.bin", 1000, 500, size=SIZE) == DATA[1000:1500]
    assert len(shop.clock.waits) == 5
