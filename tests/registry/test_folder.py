"""A registry is made once, in a folder of its own, whose key stays private and belongs to its database."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from auditkit.errors import Unavailable, Unsupported, Untrusted, UsageError
from auditkit.registry import folder as folders
from auditkit.registry.folder import Folder, init, open_database, open_engine
from auditkit.trust.keys import load_private, save_private
from tests.registry.inprocess import ORIGIN
from tests.registry.makers import key


def test_what_is_made(tmp_path: Path) -> None:
    public = init(tmp_path / "registry", ORIGIN)
    place = Folder(tmp_path / "registry")
    assert sorted(path.name for path in place.path.iterdir()) == ["log.key", "log.vkey", "registry.db"]
    assert place.public.read_text(encoding="utf-8") == f"{public.text}\n"
    assert public.name == ORIGIN
    if os.name != "nt":
        assert stat.S_IMODE(place.private.stat().st_mode) == 0o600
    origin, private = place.key()
    assert (origin, private.public.raw) == (ORIGIN, public.public)
    database = open_database(place)
    assert (database.meta["vkey"], database.size()) == (public.text, 0)
    database.close()


def test_a_key_that_was_kept_is_used(tmp_path: Path) -> None:
    public = init(tmp_path / "registry", ORIGIN, private=key(5))
    assert public.public == key(5).public.raw


def test_it_is_made_once(tmp_path: Path) -> None:
    init(tmp_path / "registry", ORIGIN)
    before = Folder(tmp_path / "registry").private.read_bytes()
    with pytest.raises(UsageError, match="exists"):
        init(tmp_path / "registry", ORIGIN)
    assert Folder(tmp_path / "registry").private.read_bytes() == before


def test_a_database_is_used_once(tmp_path: Path) -> None:
    place = str(tmp_path / "shared.db")
    init(tmp_path / "a", ORIGIN, address=place)
    with pytest.raises(UsageError, match="holds a registry already"):
        init(tmp_path / "b", ORIGIN, address=place)
    assert not Folder(tmp_path / "b").private.exists()


@pytest.mark.parametrize("origin", ["", "a b", "a+b", "x" * 300, "a\nb"])
def test_a_name_that_no_log_can_have(tmp_path: Path, origin: str) -> None:
    with pytest.raises(UsageError):
        init(tmp_path / "registry", origin)
    assert not (tmp_path / "registry").exists()


def test_a_folder_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="not the folder of a registry"):
        Folder(tmp_path).key()


def test_keys_that_are_no_pair(tmp_path: Path) -> None:
    init(tmp_path / "registry", ORIGIN)
    place = Folder(tmp_path / "registry")
    place.private.unlink()
    save_private(place.private, key(5))
    assert load_private(place.private).public.raw == key(5).public.raw
    with pytest.raises(Untrusted, match="is not the public key"):
        place.key()


@pytest.mark.optional("Windows has no modes")
@pytest.mark.skipif(os.name == "nt", reason="Windows has no modes")
def test_a_key_that_others_can_read(tmp_path: Path) -> None:
    init(tmp_path / "registry", ORIGIN)
    Folder(tmp_path / "registry").private.chmod(0o644)
    with pytest.raises(Untrusted, match="others have access"):
        Folder(tmp_path / "registry").key()


def test_other_databases_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="mysql:// is not a database"):
        open_engine(Folder(tmp_path), "mysql://localhost/registry")


def test_without_psycopg_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "auditkit.registry.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(Unsupported, match="psycopg") as caught:
        open_engine(Folder(tmp_path), "postgresql://localhost/registry")
    assert "auditkit-verifier[registry]" in caught.value.hint
    assert folders.EXTRA in caught.value.hint
