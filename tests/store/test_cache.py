"""The cache: names, damage, disks that refuse (case 25), places that do not exist."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from auditkit.errors import Unavailable, Unsupported
from auditkit.formats.digest import content_digest
from auditkit.store import STORE_LIMITS, cache
from auditkit.store.cache import Cache, default_dir
from tests.store import servers
from tests.store.conftest import Shop
from tests.store.servers import honest, serve
from tests.store.tools import blob, cached, leave_part, named

DATA = blob(300_000)
SIZE, DIGEST = named(DATA)
FILES = {"run.json": b"{}", "x.bin": DATA}
ROOT = Path(__file__).resolve().parents[2]


def test_objects_are_written_and_read_back(tmp_path: Path) -> None:
    store = Cache.at(tmp_path / "c", STORE_LIMITS)
    assert not store.has(DIGEST) and store.read(DIGEST, SIZE) is None
    store.put(DATA, DIGEST)
    assert store.has(DIGEST, SIZE) and not store.has(DIGEST, SIZE - 1)
    assert store.read(DIGEST, SIZE) == DATA
    assert store.read(DIGEST, SIZE - 1) is None
    store.object(DIGEST).write_bytes(servers.flip(DATA))
    assert store.read(DIGEST, SIZE) is None


def test_names_are_remembered_whole_or_not_at_all(tmp_path: Path) -> None:
    store = Cache.at(tmp_path / "c", STORE_LIMITS)
    assert store.recall("key") is None
    store.remember("key", DIGEST)
    store.remember("other", content_digest(b""))
    assert store.recall("key") == DIGEST
    name = next(p for p in (tmp_path / "c" / "names").glob("*/*") if DIGEST.encode() in p.read_bytes())
    for bad in (
        b"",
        DIGEST.encode()[:-1] + b"\n",
        DIGEST.encode(),
        DIGEST.upper().encode() + b"\n",
        b"\xff" * 64 + b"\n",
    ):
        name.write_bytes(bad)
        assert store.recall("key") is None


def test_the_default_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AUDITKIT_CACHE", str(tmp_path / "mine"))
    assert default_dir() == tmp_path / "mine"
    monkeypatch.setenv("AUDITKIT_CACHE", "")
    assert default_dir().name in ("auditkit", "Cache") and default_dir().is_absolute()


def test_case_25_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUDITKIT_CACHE")
    monkeypatch.setattr(cache.platformdirs, "user_cache_dir", lambda *a, **k: "~/.cache/auditkit")
    with pytest.raises(Unsupported) as error:
        default_dir()
    assert error.value.hint == "set AUDITKIT_CACHE to a folder"

    def refuse(*names: str, **options: object) -> str:
        raise RuntimeError("could not determine the home directory")

    monkeypatch.setattr(cache.platformdirs, "user_cache_dir", refuse)
    with pytest.raises(Unsupported, match="no home folder"):
        default_dir()


def test_case_25_home_unset_and_another_tmpdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Nothing goes through TMPDIR, so a rename never crosses file systems.
    monkeypatch.setenv("TMPDIR", str(tmp_path / "no such folder"))
    monkeypatch.delenv("HOME", raising=False)
    store = Cache.at(tmp_path / "c", STORE_LIMITS)
    store.put(DATA, DIGEST)
    assert {p.parent for p in (tmp_path / "c").rglob("*") if p.is_file()} == {tmp_path / "c" / "blake3" / DIGEST[:2]}


def refused(shop: Shop, where: Path) -> Unsupported:
    """The error of a fetch into a cache at `where`."""
    shop.cache = where
    with serve(honest, FILES) as server, pytest.raises(Unsupported) as error:
        shop.store(server.url).file("x.bin", SIZE, DIGEST)
    assert all(a.path == "run.json" for a in server.asked)  # refused before a byte was fetched
    return error.value


def test_case_25_a_file_in_the_way(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    error = refused(shop, tmp_path / "file" / "cache")
    assert error.message.startswith(f"cannot write {tmp_path / 'file' / 'cache'}")
    assert "bytes free" in error.message
    assert "AUDITKIT_CACHE" in error.hint


def test_case_29_a_path_too_long_for_the_system(shop: Shop, tmp_path: Path) -> None:
    error = refused(shop, tmp_path / ("x" * 300))
    assert "cannot write" in error.message and "AUDITKIT_CACHE" in error.hint


def test_case_29_a_long_cache_path(shop: Shop, tmp_path: Path) -> None:
    shop.cache = tmp_path.joinpath(*["y" * 50] * 5)
    with serve(honest, FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA


def test_case_25_too_little_room_is_seen_before_a_byte_is_fetched(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("auditkit.store.disk.free_bytes", lambda path: 1000)
    error = refused(shop, tmp_path / "small")
    assert "300,000 more bytes are needed (1,000 bytes free)" in error.message
    assert cached(tmp_path / "small") == []
    assert list((tmp_path / "small").rglob("*.part")) == []


def strange(place: Path, kind: str) -> None:
    """Put something at `place` that is no regular file, or one without end."""
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        place.mkdir()
        (place / "mine").write_bytes(b"x")
    elif kind == "sparse":
        with place.open("wb") as file:
            file.truncate(1 << 40)
    elif kind == "zeros":
        place.symlink_to("/dev/zero")
    else:
        os.mkfifo(place)


KINDS = ["folder"] if os.name == "nt" else ["folder", "sparse", "zeros", "pipe"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_small_regular_file_is_no_entry(tmp_path: Path, kind: str) -> None:
    store = Cache.at(tmp_path / "c", STORE_LIMITS)
    store.remember("key", DIGEST)
    name = next((tmp_path / "c" / "names").glob("*/*"))
    strange(name, kind)
    strange(store.object(DIGEST), kind)
    assert store.recall("key") is None
    assert store.read(DIGEST, SIZE) is None and not store.has(DIGEST, SIZE)
    store.remember("key", DIGEST)
    store.put(DATA, DIGEST)
    assert store.recall("key") == DIGEST
    assert store.read(DIGEST, SIZE) == DATA


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_under_a_final_name_is_fetched_again(shop: Shop, kind: str) -> None:
    place = shop.cache / "blake3" / DIGEST[:2] / DIGEST
    strange(place, kind)
    with serve(honest, FILES) as server:
        offline = shop.store(server.url, offline=True)
        with pytest.raises(Unavailable):
            offline.file("x.bin", SIZE, DIGEST)
        store = shop.store(server.url)
        assert store.range("x.bin", 5, 9, size=SIZE, file_digest=DIGEST, check=lambda data: None) == DATA[5:14]
        assert store.file("x.bin", SIZE, DIGEST).read_bytes() == DATA
    assert "the cached copy is damaged and not used" in shop.story.text
    kept = [p.read_bytes() for p in place.parent.rglob("mine")]
    assert kept == ([b"x"] if kind == "folder" else [])


FETCH = """
import os, sys
from auditkit.errors import AuditkitError
from auditkit.store import Store, locate
url, size, digest, kind, *caches = sys.argv[1:]
for number, cache in enumerate(caches):
    try:
        print(Store(locate(url), cache_dir=cache).read("x.bin", int(size), digest) != b"", flush=True)
    except AuditkitError as error:
        print(type(error).__name__, error.message, flush=True)
    if kind == "full" and number == 0:
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    if kind == "user" and number == 0 and os.getuid() == 0:
        os.setuid(65534)  # permissions do not stop root; everything was imported for the first cache
"""


def fetches(url: str, kind: str, *caches: Path) -> list[str]:
    """What a process says that fetches into each cache; after the first it is short of room, or another user."""
    command = [sys.executable, "-c", FETCH, url, str(SIZE), DIGEST, kind, *map(str, caches)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, text=True, encoding="utf-8")
    assert done.stderr == ""
    return done.stdout.splitlines()


POSIX = pytest.mark.skipif(os.name == "nt", reason="needs limits and users of POSIX")
ELSEWHERE = pytest.mark.optional("the same code is reached by a file in the way and by too little room on every system")


@ELSEWHERE
@POSIX
def test_case_25_a_disk_that_fills_up_meanwhile(shop: Shop, tmp_path: Path) -> None:
    with serve(honest, FILES) as server:
        first, said = fetches(server.url, "full", tmp_path / "first", shop.cache)
        assert first == "True"
        assert said.startswith(f"Unsupported cannot write {shop.cache}") and "bytes free" in said
        assert cached(shop.cache) == []
        assert shop.store(server.url).read("x.bin", SIZE, DIGEST) == DATA
        assert cached(shop.cache) == [DIGEST]


@ELSEWHERE
@POSIX
def test_case_25_a_read_only_cache_serves_what_it_has() -> None:
    # Not tmp_path, whose parents let nobody in but their owner.
    with serve(honest, FILES) as server, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        warm, cold = folder / "warm", folder / "cold"
        cold.mkdir()
        assert fetches(server.url, "", warm) == ["True"]
        set_modes(folder, 0o555, 0o444)
        try:
            said = fetches(server.url, "user", warm, warm, cold)
        finally:
            set_modes(folder, 0o755, 0o644)
    assert said[:2] == ["True", "True"]
    assert said[2].startswith(f"Unsupported cannot write {cold}")
    assert "writing is not allowed" in said[2] and "bytes free" in said[2]
    assert len(server.asked) == 1


def set_modes(folder: Path, folders: int, files: int) -> None:
    """The permissions of everything in a folder and of itself."""
    for path in [folder, *folder.rglob("*")]:
        path.chmod(folders if path.is_dir() else files)


def test_a_range_is_handed_out_even_if_the_cache_refuses_it(shop: Shop, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    shop.cache = tmp_path / "file" / "cache"
    with serve(honest, FILES) as server:
        store = shop.store(server.url)
        assert store.manifest() == b"{}"
        assert store.range("x.bin", 5, 9, size=SIZE, digest=content_digest(DATA[5:14])) == DATA[5:14]
    assert "not kept for later: cannot write" in shop.story.text


def test_case_29_no_link_is_ever_made(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(1314, "a privilege is missing")

    monkeypatch.setattr(os, "symlink", refuse)
    monkeypatch.setattr(os, "link", refuse)
    leave_part(shop.cache, DIGEST, DATA[:9])
    with serve(honest, FILES) as server:
        assert shop.store(server.url).file("x.bin", SIZE, DIGEST).read_bytes() == DATA


def test_a_final_name_that_windows_holds_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Cache.at(tmp_path / "c", STORE_LIMITS)
    store.put(DATA, DIGEST)

    def refuse(*_: object) -> None:
        raise PermissionError(13, "the file is used by another process")

    monkeypatch.setattr(os, "replace", refuse)
    part = store.new_part(DIGEST)
    part.write_bytes(DATA)
    assert store.commit(part, DIGEST) == store.object(DIGEST)
    assert not part.exists()
    store.object(DIGEST).write_bytes(b"damaged")
    part.write_bytes(DATA)
    with pytest.raises(PermissionError):
        store.commit(part, DIGEST)
