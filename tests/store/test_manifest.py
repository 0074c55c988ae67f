"""run.json over HTTP: fetched anew each time, bounded, and kept for offline use."""

from __future__ import annotations

import pytest

from auditkit.errors import BadArtifact, Unavailable
from auditkit.formats.limits import LIMITS
from tests.store import servers
from tests.store.conftest import Shop
from tests.store.servers import Busy, honest, serve

FILES = {"run.json": b'{"a":1}', "big.json": b" " * (LIMITS.manifest_bytes + 1)}


@pytest.mark.parametrize("behaviour", [honest, servers.chunked(bytes), servers.until_close])
def test_it_comes_as_it_is(shop: Shop, behaviour: servers.Behaviour) -> None:
    with serve(behaviour, FILES) as server:
        assert shop.store(server.url).manifest() == b'{"a":1}'
    assert server.asked[0].headers["accept-encoding"] == "identity"


def test_it_is_fetched_anew_and_offline_is_the_last_one(shop: Shop) -> None:
    with serve(honest, dict(FILES)) as server:
        shop.store(server.url).manifest()
        server.files["run.json"] = b'{"a":2}'
        assert shop.store(server.url, offline=True).manifest() == b'{"a":1}'
        assert shop.store(server.url).manifest() == b'{"a":2}'
        assert shop.store(server.url + "run.json", offline=True).manifest() == b'{"a":2}'
    with pytest.raises(Unavailable):  # never silently the old one
        shop.store(server.url).manifest()


def test_a_damaged_copy_is_not_used(shop: Shop) -> None:
    with serve(honest, FILES) as server:
        shop.store(server.url).manifest()
    for path in (shop.cache / "blake3").glob("*/*"):
        path.write_bytes(b'{"a":7}')
    with pytest.raises(Unavailable, match="not in the cache, and offline"):
        shop.store(server.url, offline=True).manifest()


def test_it_is_bounded(shop: Shop) -> None:
    with serve(honest, FILES) as server, pytest.raises(BadArtifact, match=r"more than 16,777,216 bytes"):
        shop.store(server.url + "big.json").manifest()


@pytest.mark.parametrize("behaviour", [servers.coded, servers.labelled("zstd")])
def test_a_coding_is_refused(shop: Shop, behaviour: servers.Behaviour) -> None:
    with serve(behaviour, FILES) as server, pytest.raises(Unavailable, match="Content-Encoding"):
        shop.store(server.url).manifest()


def test_a_web_page_is_told(shop: Shop) -> None:
    with serve(servers.web_page, FILES) as server, pytest.raises(BadArtifact) as error:
        shop.store(server.url).manifest()
    assert "web page" in error.value.hint


def test_busy_servers_and_broken_lines(shop: Shop) -> None:
    answers = iter([Busy([503], "3"), Busy([503], "3"), servers.Dying([2]), honest])
    with serve(lambda handler, data: next(answers)(handler, data), FILES) as server:
        assert shop.store(server.url).manifest() == b'{"a":1}'
    assert len(server.asked) == 4
    assert shop.clock.waits == [3.0, 3.0, 2.0]


def test_not_found(shop: Shop) -> None:
    with serve(honest, FILES) as server, pytest.raises(Unavailable, match="the server answered 404 not found"):
        shop.store(server.url + "other.json").manifest()
