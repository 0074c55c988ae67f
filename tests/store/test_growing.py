"""Files of a run that is still being published: longer than a manifest says by now, or, in an old copy, shorter."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditkit.errors import BadArtifact, Unavailable
from auditkit.formats.digest import content_digest
from tests.store.conftest import Shop
from tests.store.servers import Behaviour, flip, forgetful, honest, serve
from tests.store.tools import blob, named

GROWN = blob(300_000)
DATA = GROWN[:200_000]
SIZE, DIGEST = named(DATA)
NAME, OTHER = "records.bin", "tokenizer.json"


def folder(tmp_path: Path, name: str, data: bytes) -> str:
    """A run's folder with one file."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_bytes(b"{}")
    (tmp_path / "run" / name).write_bytes(data)
    return str(tmp_path / "run")


def test_in_a_folder_the_first_bytes_count(shop: Shop, tmp_path: Path) -> None:
    store = shop.store(folder(tmp_path, NAME, GROWN))
    assert store.is_cached(NAME, DIGEST, SIZE)
    assert store.read(NAME, SIZE, DIGEST) == DATA
    assert store.range(NAME, 10, 20, size=SIZE, digest=content_digest(DATA[10:30])) == DATA[10:30]
    with (tmp_path / "run" / NAME).open("ab") as file:
        file.write(b"more")
    assert store.read(NAME, SIZE, DIGEST) == DATA


def test_in_a_folder_other_bytes_or_fewer_are_a_bad_artifact(shop: Shop, tmp_path: Path) -> None:
    place = folder(tmp_path, NAME, flip(GROWN, 7))
    with pytest.raises(BadArtifact, match=DIGEST):
        shop.store(place).read(NAME, SIZE, DIGEST)
    (tmp_path / "run" / NAME).write_bytes(DATA[:-1])
    with pytest.raises(BadArtifact, match="199,999 bytes, but the manifest declares 200,000"):
        shop.store(place).read(NAME, SIZE, DIGEST)


def test_no_other_file_may_be_longer(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(BadArtifact, match="300,000 bytes, but the manifest declares 200,000"):
        shop.store(folder(tmp_path, OTHER, GROWN)).read(OTHER, SIZE, DIGEST)
    with serve(honest, {OTHER: GROWN}) as server, pytest.raises(BadArtifact, match="300,000 bytes"):
        shop.store(server.url).read(OTHER, SIZE, DIGEST)


@pytest.mark.parametrize("behaviour", [honest, forgetful])
def test_from_a_server_no_more_than_the_first_bytes_are_taken(shop: Shop, behaviour: Behaviour) -> None:
    with serve(behaviour, {NAME: GROWN}) as server:
        store = shop.store(server.url)
        assert store.range(NAME, 10, 20, size=SIZE, digest=content_digest(DATA[10:30])) == DATA[10:30]
        assert store.read(NAME, SIZE, DIGEST) == DATA
        assert store.file(NAME, SIZE, DIGEST).stat().st_size == SIZE
        later = content_digest(GROWN)
        assert store.read(NAME, len(GROWN), later) == GROWN


@pytest.mark.parametrize("behaviour", [honest, forgetful])
def test_a_copy_that_is_behind_is_unavailable_and_the_next_one_is_tried(shop: Shop, behaviour: Behaviour) -> None:
    with serve(behaviour, {NAME: DATA[:-100]}) as behind, serve(honest, {NAME: GROWN}) as ahead:
        store = shop.store(behind.url)
        for offset in (0, SIZE - 50):
            with pytest.raises(Unavailable, match="199,900 bytes, but the manifest declares 200,000") as error:
                store.range(NAME, offset, 50, size=SIZE, digest=content_digest(DATA[offset : offset + 50]))
            assert "older than the manifest" in error.value.hint
        with pytest.raises(Unavailable, match="199,900 bytes"):
            store.read(NAME, SIZE, DIGEST)
        store.use_mirrors([ahead.url])
        assert store.read(NAME, SIZE, DIGEST) == DATA


def test_a_copy_with_other_bytes_is_a_bad_artifact(shop: Shop) -> None:
    with serve(honest, {NAME: flip(GROWN, 7)}) as server, pytest.raises(BadArtifact, match=DIGEST):
        shop.store(server.url).read(NAME, SIZE, DIGEST)
