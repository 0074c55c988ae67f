"""The store as its users see it: folders in place, the cache, offline, ranges that are kept for later."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from auditkit.errors import BadArtifact, Unavailable
from auditkit.formats.digest import content_digest
from auditkit.store import Store, locate
from tests.store import servers
from tests.store.conftest import Shop
from tests.store.servers import flip, honest, serve
from tests.store.tools import blob, cached, named

DATA = blob(200_000)
SIZE, DIGEST = named(DATA)
FILES = {"run.json": b"{}", "states/00000500/x.bin": DATA, "x.bin": DATA}


def accept(data: bytes) -> None:
    if data not in DATA:
        raise BadArtifact("not a part of it")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run's folder with the same files as the servers have."""
    for name, data in FILES.items():
        path = tmp_path / "run" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "run"


@pytest.fixture
def no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any socket at all is an error."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was made")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize("offline", [False, True])
def test_a_folder_is_read_in_place_without_network_and_cache(
    shop: Shop, folder: Path, no_socket: None, offline: bool
) -> None:
    store = shop.store(str(folder), offline=offline)
    assert store.manifest() == b"{}"
    assert store.file("states/00000500/x.bin", SIZE, DIGEST) == folder / "states" / "00000500" / "x.bin"
    assert store.read("x.bin", SIZE, DIGEST) == DATA
    assert store.range("x.bin", 10, 20, size=SIZE, digest=content_digest(DATA[10:30])) == DATA[10:30]
    assert store.range("x.bin", 10, 20, size=SIZE, check=accept, file_digest=DIGEST) == DATA[10:30]
    assert not shop.cache.exists()


def test_a_file_url_is_a_folder(shop: Shop, folder: Path) -> None:
    assert shop.store(folder.as_uri()).read("x.bin", SIZE, DIGEST) == DATA
    assert shop.store((folder / "run.json").as_uri()).manifest() == b"{}"


def test_a_folder_needs_no_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AUDITKIT_CACHE", "HOME", "XDG_CACHE_HOME", "LOCALAPPDATA", "USERPROFILE"):
        monkeypatch.delenv(name, raising=False)
    assert Store(locate(str(folder))).read("x.bin", SIZE, DIGEST) == DATA


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (flip, f"digest {content_digest(flip(DATA))}, but {DIGEST} was declared"),
        (lambda d: d[:-1], "199,999 bytes, but the manifest declares 200,000"),
        (lambda d: d + d, "400,000 bytes, but the manifest declares 200,000"),
    ],
    ids=["flipped", "truncated", "doubled"],
)
def test_a_tampered_file_of_a_folder_is_a_bad_artifact(shop: Shop, folder: Path, change: object, words: str) -> None:
    assert callable(change)
    (folder / "x.bin").write_bytes(change(DATA))
    with pytest.raises(BadArtifact) as error:
        shop.store(str(folder)).file("x.bin", SIZE, DIGEST)
    assert error.value.message == f"x.bin: {folder / 'x.bin'}: {words}"


def test_a_file_changed_after_its_check_is_checked_again(shop: Shop, folder: Path) -> None:
    store = shop.store(str(folder))
    store.file("x.bin", SIZE, DIGEST)
    (folder / "x.bin").write_bytes(flip(DATA))
    os.utime(folder / "x.bin", ns=(1, 1))
    with pytest.raises(BadArtifact):
        store.file("x.bin", SIZE, DIGEST)


def test_an_unchanged_file_is_hashed_once(shop: Shop, folder: Path) -> None:
    store = shop.store(str(folder))
    for _ in range(3):
        store.file("x.bin", SIZE, DIGEST)
    assert shop.story.tasks == [("checking x.bin", SIZE)]


def test_a_file_that_is_nowhere(shop: Shop, folder: Path) -> None:
    (folder / "x.bin").unlink()
    with pytest.raises(Unavailable) as error:
        shop.store(str(folder)).file("x.bin", SIZE, DIGEST)
    assert error.value.message == "x.bin: not in the run's folder, and the run names no other place"
    assert "--artifacts" in error.value.hint


def test_a_folder_in_place_of_a_file_is_unavailable(shop: Shop, folder: Path) -> None:
    (folder / "x.bin").unlink()
    (folder / "x.bin").mkdir()
    with pytest.raises(Unavailable, match="is not a regular file"):
        shop.store(str(folder)).file("x.bin", SIZE, DIGEST)


@pytest.mark.parametrize("path", ["../x.bin", "/etc/passwd", "a//b", "a\\b", "C:/x", "x.bin:stream", "con", "", "."])
def test_paths_lead_nowhere_else(shop: Shop, folder: Path, path: str) -> None:
    with serve(honest, FILES) as server:
        for run in (str(folder), server.url):
            with pytest.raises(BadArtifact, match="artifact path"):
                shop.store(run).file(path, SIZE, DIGEST)
    assert server.asked == []


def test_a_run_without_a_file_takes_it_from_its_mirror(shop: Shop, folder: Path) -> None:
    (folder / "x.bin").unlink()
    with serve(honest, FILES) as server:
        assert shop.store(str(folder), server.url).read("x.bin", SIZE, DIGEST) == DATA
        assert shop.store(str(folder), server.url.rstrip("/")).read("x.bin", SIZE, DIGEST) == DATA
    assert len(server.asked) == 1


def test_artifacts_come_before_the_runs_own_place(shop: Shop, folder: Path) -> None:
    with serve(honest, FILES) as own, serve(honest, FILES) as other:
        store = shop.store(locate(own.url, other.url))
        assert store.manifest() == b"{}"
        assert store.read("x.bin", SIZE, DIGEST) == DATA
        store = shop.store(locate(own.url, str(folder)))
        assert store.file("states/00000500/x.bin", SIZE, DIGEST).is_relative_to(folder)
    assert [[a.path for a in s.asked] for s in (own, other)] == [["run.json"], ["x.bin"]]


def test_a_tampered_folder_with_an_honest_mirror_is_noted(shop: Shop, folder: Path) -> None:
    (folder / "x.bin").write_bytes(flip(DATA))
    with serve(honest, FILES) as server:
        found = shop.store(str(folder), server.url).file("x.bin", SIZE, DIGEST)
    assert found.is_relative_to(shop.cache) and found.read_bytes() == DATA
    assert str(folder / "x.bin") in shop.story.notes[0] and "trying the next place" in shop.story.notes[0]


def test_offline_after_fetch_needs_no_socket(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(honest, FILES) as server:
        online = shop.store(server.url)
        online.manifest()
        online.file("x.bin", SIZE, DIGEST)
        online.range("x.bin", 10, 20, size=SIZE, digest=content_digest(DATA[10:30]))
        url = server.url
    monkeypatch.setattr(socket, "socket", None)
    monkeypatch.setenv("ALL_PROXY", "socks://127.0.0.1:1")  # case 26
    store = shop.store(url, offline=True)
    assert store.manifest() == b"{}"
    assert store.read("x.bin", SIZE, DIGEST) == DATA
    assert store.range("x.bin", 50, 20, size=SIZE, file_digest=DIGEST, check=accept) == DATA[50:70]


def test_offline_without_fetch_says_what_to_do(shop: Shop, no_socket: None) -> None:
    store = shop.store("https://example.org/run/", "https://example.net/", offline=True)
    calls = (
        store.manifest,
        lambda: store.file("x.bin", SIZE, DIGEST),
        lambda: store.range("x.bin", 0, 1, size=SIZE),
    )
    for call in calls:
        with pytest.raises(Unavailable) as error:
            call()
        assert "offline" in error.value.message and "without --offline" in error.value.hint


@pytest.mark.parametrize("keyed", ["digest", "check"])
def test_ranges_are_kept_for_later(shop: Shop, keyed: str) -> None:
    known = {"digest": content_digest(DATA[10:30])} if keyed == "digest" else {}
    check = accept if keyed == "check" else None
    with serve(honest, FILES) as server:
        for _ in range(3):
            store = shop.store(server.url)
            before = store.is_range_cached("x.bin", 10, 20, size=SIZE, file_digest=DIGEST, digest=known.get("digest"))
            assert before is (len(server.asked) > 0)
            data = store.range("x.bin", 10, 20, size=SIZE, file_digest=DIGEST, check=check, **known)
            assert data == DATA[10:30]
    assert len(server.asked) == 1
    assert not store.is_cached("x.bin", DIGEST)


def test_a_range_that_nobody_vouches_for_is_not_kept(shop: Shop) -> None:
    with serve(honest, FILES) as server:
        for _ in range(2):
            shop.store(server.url).range("x.bin", 10, 20, size=SIZE, file_digest=DIGEST)
    assert len(server.asked) == 2 and cached(shop.cache) == []


def test_a_range_of_a_cached_file_comes_from_it(shop: Shop) -> None:
    with serve(honest, FILES) as server:
        store = shop.store(server.url)
        store.file("x.bin", SIZE, DIGEST)
        assert store.range("x.bin", 10, 20, size=SIZE, file_digest=DIGEST, check=accept) == DATA[10:30]
    assert len(server.asked) == 1


def damage(shop: Shop) -> None:
    for path in (shop.cache / "blake3").glob("*/*"):
        path.write_bytes(flip(path.read_bytes(), 15))


def test_a_damaged_cache_entry_is_fetched_again(shop: Shop) -> None:
    with serve(honest, FILES) as server:
        first = shop.store(server.url)
        first.file("x.bin", SIZE, DIGEST)
        first.range("x.bin", 10, 20, size=SIZE, digest=content_digest(DATA[10:30]), check=accept)
        damage(shop)
        store = shop.store(server.url)
        assert store.range("x.bin", 10, 20, size=SIZE, digest=content_digest(DATA[10:30])) == DATA[10:30]
        assert store.file("x.bin", SIZE, DIGEST).read_bytes() == DATA
        assert first.read("x.bin", SIZE, DIGEST) == DATA
    assert "the cached copy is damaged and not used" in shop.story.text


@pytest.mark.parametrize("offline", [True, False])
def test_a_damaged_cache_entry_is_never_the_publishers_fault(shop: Shop, offline: bool) -> None:
    with serve(honest, FILES) as server:
        shop.store(server.url).file("x.bin", SIZE, DIGEST)
        damage(shop)
        url = server.url
    with pytest.raises(Unavailable):
        shop.store(url, offline=offline).file("x.bin", SIZE, DIGEST)
    with pytest.raises(Unavailable):
        shop.store(url, offline=offline).range("x.bin", 10, 20, size=SIZE, file_digest=DIGEST, check=accept_exactly)


def accept_exactly(data: bytes) -> None:
    if data != DATA[10:30]:
        raise BadArtifact("wrong")


def test_a_truncated_cache_entry_is_fetched_again(shop: Shop) -> None:
    with serve(honest, FILES) as server:
        path = shop.store(server.url).file("x.bin", SIZE, DIGEST)
        path.write_bytes(DATA[:1000])
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA


def test_bytes_needed(shop: Shop, folder: Path) -> None:
    with serve(honest, FILES) as server:
        store = shop.store(server.url)
        wanted = [("x.bin", SIZE, DIGEST), ("y.bin", SIZE, DIGEST), ("z.bin", 7, content_digest(b"1234567"))]
        assert store.bytes_needed(wanted) == SIZE + 7
        store.file("x.bin", SIZE, DIGEST)
        assert store.bytes_needed(wanted) == 7
        assert store.is_cached("any", DIGEST) and store.is_cached("any", DIGEST, SIZE)
        assert not store.is_cached("any", DIGEST, SIZE + 1)
        assert shop.store(str(folder)).bytes_needed([("x.bin", SIZE, "0" * 64), ("q", 3, "1" * 64)]) == 3
        assert [a.path for a in server.asked] == ["x.bin"]


def test_mirrors_that_are_the_run_itself_are_asked_once(shop: Shop) -> None:
    with serve(servers.Busy([404] * 9), FILES) as server:
        store = shop.store(server.url, server.url, server.url.rstrip("/"))
        with pytest.raises(Unavailable):
            store.file("x.bin", SIZE, DIGEST)
    assert len(server.asked) == 1


def test_a_store_can_be_used_after_close(shop: Shop) -> None:
    with serve(honest, FILES) as server, shop.store(server.url) as store:
        store.range("x.bin", 0, 1, size=SIZE)
        store.close()
        assert store.range("x.bin", 0, 2, size=SIZE) == DATA[:2]


@pytest.mark.parametrize("mirror", ["http://127.0.0.1:99999/x", "http://[:::::]/x", "ftp://h/", "nothing"])
def test_a_mirror_that_is_no_address_is_the_publishers_fault(shop: Shop, folder: Path, mirror: str) -> None:
    with pytest.raises(BadArtifact, match="^mirror: "):
        shop.store(str(folder), mirror)
