"""Files that no manifest lists: one place at a time, judged by the reader, bounded, and kept for use offline."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditkit.errors import AuditkitError, BadArtifact, Unavailable, Untrusted, UsageError
from auditkit.store.loose import Fetch
from tests.store import servers
from tests.store.conftest import Shop
from tests.store.servers import honest, serve
from tests.store.tools import cached

GOOD = {"run.json": b"{}", "log/checkpoint": b"two files", "log/tile/0/000.p/2": b"that belong together"}
BAD = {**GOOD, "log/tile/0/000.p/2": b"of another log"}
LACKING = {"run.json": b"{}", "log/checkpoint": b"two files"}


def pair(fetch: Fetch) -> tuple[bytes, bytes]:
    """Two files of one place, which must fit each other."""
    found = fetch("log/checkpoint", 100), fetch("log/tile/0/000.p/2", 100)
    if found != (b"two files", b"that belong together"):
        raise BadArtifact(f"{found[1].decode()} does not fit")
    return found


RIGHT = (GOOD["log/checkpoint"], GOOD["log/tile/0/000.p/2"])


def folder(path: Path, files: dict[str, bytes]) -> Path:
    """A run folder with these files."""
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


@pytest.mark.parametrize("first", [BAD, LACKING, {"run.json": b"{}"}])
def test_another_place_is_tried_with_all_its_files(shop: Shop, tmp_path: Path, first: dict[str, bytes]) -> None:
    with serve(honest, dict(first)) as one, serve(honest, dict(GOOD)) as two:
        assert shop.store(one.url, two.url).loose("log", pair) == RIGHT
        assert [asked.path for asked in two.asked] == ["log/checkpoint", "log/tile/0/000.p/2"]
        assert shop.store(str(folder(tmp_path / "run", first)), two.url).loose("log", pair) == RIGHT
    assert "trying the next place" in shop.story.text


def test_the_own_folder_comes_first_and_needs_no_network(shop: Shop, tmp_path: Path) -> None:
    with serve(honest, dict(GOOD)) as server:
        store = shop.store(str(folder(tmp_path / "run", GOOD)), server.url)
        assert store.loose("log", pair) == RIGHT
    assert server.asked == []
    assert cached(shop.cache) == []


def refuse(kind: type[AuditkitError]) -> AuditkitError:
    """An error of a reader."""
    return kind("not that one", hint="look there")


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([BadArtifact, BadArtifact], BadArtifact),
        ([Untrusted, BadArtifact], Untrusted),
        ([BadArtifact, Untrusted], Untrusted),
        ([Untrusted, Unavailable], Unavailable),
        ([Unavailable, BadArtifact], Unavailable),
    ],
)
def test_the_verdict_when_no_place_is_right(
    shop: Shop, kinds: list[type[AuditkitError]], expected: type[AuditkitError]
) -> None:
    left = list(kinds)

    def read(fetch: Fetch) -> None:
        raise refuse(left.pop(0))

    with serve(honest, GOOD) as one, serve(honest, GOOD) as two, pytest.raises(AuditkitError) as caught:
        shop.store(one.url, two.url).loose("log", read)
    assert (type(caught.value), caught.value.message, left) == (expected, "log: not that one", [])
    assert caught.value.hint == "look there"


def test_any_other_error_ends_it_at_once(shop: Shop) -> None:
    def read(fetch: Fetch) -> None:
        raise UsageError("a wrong question")

    with serve(honest, GOOD) as one, serve(honest, GOOD) as two, pytest.raises(UsageError):
        shop.store(one.url, two.url).loose("log", read)


def test_a_folder_without_the_files_is_no_failure_of_its_own(shop: Shop, tmp_path: Path) -> None:
    """The bytes are wrong wherever there are any: that the folder has none does not leave hope."""
    home = str(folder(tmp_path / "run", {"run.json": b"{}"}))
    with serve(honest, BAD) as server, pytest.raises(BadArtifact, match="of another log does not fit"):
        shop.store(home, server.url).loose("log", pair)
    with pytest.raises(Unavailable, match=r"there is no .*checkpoint"):
        shop.store(home).loose("log", pair)


def test_what_was_accepted_is_there_offline(shop: Shop) -> None:
    with serve(honest, BAD) as bad, serve(honest, dict(GOOD)) as good:
        online, offline = shop.store(bad.url, good.url), shop.store(bad.url, good.url, offline=True)
        with pytest.raises(Unavailable, match="not here, and offline"):
            offline.loose("log", pair)
        online.loose("log", pair)
        asked = len(good.asked)
        assert offline.loose("log", pair) == RIGHT
        assert len(good.asked) == asked
        # another run has files of its own
        with pytest.raises(Unavailable):
            shop.store(good.url, offline=True).loose("log", pair)
        # a file that changes is fetched anew, never taken from the cache
        good.files["log/checkpoint"] = b"newer"
        with pytest.raises(BadArtifact):
            online.loose("log", pair)
        assert offline.loose("log", pair) == RIGHT


def test_damaged_copies_are_not_used(shop: Shop) -> None:
    with serve(honest, GOOD) as server:
        shop.store(server.url).loose("log", pair)
    for path in cached(shop.cache):
        (shop.cache / "blake3" / path[:2] / path).write_bytes(b"two filez")
    with pytest.raises(Unavailable, match="offline"):
        shop.store(server.url, offline=True).loose("log", pair)


@pytest.mark.parametrize("local", [True, False])
def test_files_are_bounded(shop: Shop, tmp_path: Path, local: bool) -> None:
    files = {"run.json": b"{}", "log/checkpoint": b"x" * 101}
    with serve(servers.chunked(bytes), files) as server:
        store = shop.store(str(folder(tmp_path / "run", files)) if local else server.url)
        with pytest.raises(BadArtifact, match="more than 100 bytes"):
            store.loose("log", lambda fetch: fetch("log/checkpoint", 100))


@pytest.mark.parametrize("path", ["../run.json", "/etc/passwd", "log/../../x", "log\\x", ""])
def test_paths_stay_within_the_run(shop: Shop, tmp_path: Path, path: str) -> None:
    with serve(honest, GOOD) as server:
        for run in (server.url, str(folder(tmp_path / "run", GOOD))):
            with pytest.raises(BadArtifact):
                shop.store(run).loose("log", lambda fetch: fetch(path, 100))
    assert server.asked == []


def test_a_web_page_in_place_of_a_file_is_told(shop: Shop) -> None:
    with serve(servers.web_page, GOOD) as server, pytest.raises(BadArtifact) as caught:
        shop.store(server.url).loose("log", pair)
    assert "web page" in caught.value.hint


def test_a_folder_in_place_of_a_file_is_unavailable(shop: Shop, tmp_path: Path) -> None:
    home = folder(tmp_path / "run", {"run.json": b"{}", "log/checkpoint/x": b""})
    with pytest.raises(Unavailable, match="checkpoint"):
        shop.store(str(home)).loose("log", pair)


def test_a_cache_that_cannot_be_written_is_no_reason_to_fail(shop: Shop, tmp_path: Path) -> None:
    shop.cache.parent.mkdir(parents=True, exist_ok=True)
    shop.cache.write_bytes(b"a file in its place")
    with serve(honest, GOOD) as server:
        assert shop.store(server.url).loose("log", pair) == RIGHT
    assert "not kept for offline use" in shop.story.text
