"""Which run a name, a path or an address means."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditkit.errors import Unavailable, UsageError
from auditkit.store.locate import BUNDLED, known, locate
from auditkit.store.source import Folder, Remote


@pytest.fixture
def bundled(tmp_path: Path) -> Path:
    """Two bundled runs and something that is none."""
    for name in ("tiny", "small"):
        (tmp_path / "manifests" / name).mkdir(parents=True)
        (tmp_path / "manifests" / name / "run.json").write_bytes(b"{}")
    (tmp_path / "manifests" / "draft").mkdir()
    (tmp_path / "manifests" / "README.md").write_bytes(b"")
    return tmp_path / "manifests"


def test_a_name(bundled: Path) -> None:
    source = locate("tiny", bundled=bundled)
    assert source.bases == (Folder(bundled / "tiny"),)
    assert (source.name, source.manifest) == ("tiny", "run.json")


def test_an_unknown_name_lists_the_known_ones(bundled: Path) -> None:
    with pytest.raises(UsageError) as error:
        locate("tinny", bundled=bundled)
    assert error.value.message == "run: tinny is not the name of a bundled run, and there is no such path"
    assert error.value.hint == "bundled runs: small, tiny"


@pytest.mark.parametrize("name", ["draft", "README.md"])
def test_what_lies_beside_the_runs_is_no_run(bundled: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(bundled.parent)
    with pytest.raises(UsageError):
        locate(name, bundled=bundled)


def test_outside_a_checkout(tmp_path: Path) -> None:
    assert known(tmp_path / "none") == ()
    with pytest.raises(UsageError) as error:
        locate("tiny", bundled=tmp_path / "none")
    assert error.value.hint == "bundled runs exist in a source checkout only"


def test_the_checkouts_own_folder_is_found() -> None:
    assert (BUNDLED.parent / "pyproject.toml").is_file()


def test_a_name_wins_over_a_folder_and_a_dot_over_a_name(bundled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = bundled.parent / "here"
    (here / "tiny").mkdir(parents=True)
    (here / "tiny" / "run.json").write_bytes(b"{}")
    monkeypatch.chdir(here)
    assert locate("tiny", bundled=bundled).home == Folder(bundled / "tiny")
    assert locate("./tiny", bundled=bundled).home == Folder(here / "tiny")
    monkeypatch.chdir(here / "tiny")
    assert locate(".", bundled=bundled).home == Folder(here / "tiny")


def test_paths_and_file_addresses(bundled: Path) -> None:
    folder = bundled / "tiny"
    for text in (str(folder), str(folder / "run.json"), folder.as_uri(), (folder / "run.json").as_uri()):
        source = locate(text, bundled=bundled)
        assert (source.home, source.manifest) == (Folder(folder), "run.json")


def test_another_manifest_name_and_odd_folder_names(tmp_path: Path) -> None:
    folder = tmp_path / "a b#ü%20"
    folder.mkdir()
    (folder / "other.json").write_bytes(b"{}")
    for text in (str(folder / "other.json"), (folder / "other.json").as_uri()):
        source = locate(text)
        assert (source.home, source.manifest) == (Folder(folder), "other.json")


def test_a_home_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    (tmp_path / "run.json").write_bytes(b"{}")
    assert locate("~").home == Folder(tmp_path)


def test_addresses() -> None:
    source = locate("https://u:p@h.org/runs/x/run.json?sig=1")
    assert source.name == "https://h.org/runs/x/run.json"
    assert isinstance(source.home, Remote) and source.home.url == "https://h.org/runs/x/"
    assert source.bases == (source.home,)


def test_artifacts_come_first_and_the_manifest_from_the_run(bundled: Path) -> None:
    source = locate("tiny", "https://h.org/files", bundled=bundled)
    assert source.home == Folder(bundled / "tiny")
    assert source.bases == (Remote("https://h.org/files/"), source.home)
    assert locate("tiny", str(bundled), bundled=bundled).bases[0] == Folder(bundled)


def test_a_token_goes_to_one_place(bundled: Path) -> None:
    first = locate("https://a.org/", "https://b.org/", token="t").bases
    assert [getattr(b, "authorization", None) for b in first] == ["", "Bearer t"]
    second = locate("tiny", "https://b.org/", token="t", bundled=bundled).bases
    assert getattr(second[0], "authorization", None) == "Bearer t"


def test_a_folder_without_manifest(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"there is no run\.json in"):
        locate(str(tmp_path))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a\0b",
        "ftp://h/",
        "file://other.host/x",
        "file:relative",
        "file:///no/such/place",
        "file:///tmp?x=1",
        "https://",
    ],
)
def test_nonsense(text: str) -> None:
    with pytest.raises(UsageError):
        locate(text)
    with pytest.raises(UsageError):
        locate("https://h.org/", text)
