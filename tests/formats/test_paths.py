"""Names of files: safe and distinct on every file system."""

from __future__ import annotations

from pathlib import PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given

from auditkit.errors import BadArtifact
from auditkit.formats.paths import check_distinct, check_path, check_segment
from tests.formats.strategies import paths


@given(paths)
def test_an_accepted_path_is_relative_and_the_same_on_every_system(path: str) -> None:
    for kind in (PurePosixPath, PureWindowsPath):
        assert not kind(path).is_absolute()
        assert list(kind(path).parts) == path.split("/")
    assert ".." not in path.split("/")


@pytest.mark.parametrize("name", ["con", "CON", "Prn.txt", "nul", "com0", "COM9.x.y", "lpt1"])
def test_names_of_devices_are_refused_with_any_extension(name: str) -> None:
    with pytest.raises(BadArtifact, match="is reserved on Windows"):
        check_segment(name, "path")


@pytest.mark.parametrize("name", ["console", "com10", "nullable", "auxiliary.txt", "_con", "a.con"])
def test_names_that_only_resemble_devices_are_fine(name: str) -> None:
    assert check_segment(name, "path") == name


@pytest.mark.parametrize("value", [None, 5, b"a", ["a"]])
def test_a_path_is_text(value: object) -> None:
    with pytest.raises(BadArtifact, match="path: not text"):
        check_path(value, "path")
    with pytest.raises(BadArtifact, match="path: not text"):
        check_segment(value, "path")


@pytest.mark.parametrize(
    "together",
    [["a", "a"], ["a", "A"], ["x/Readme", "X/README"], ["a", "a/b"], ["A/b/c", "a/B"], ["a/b", "c", "A"]],
)
def test_paths_that_are_one_file_somewhere_are_refused(together: list[str]) -> None:
    with pytest.raises(BadArtifact):
        check_distinct(together, "artifacts")
    with pytest.raises(BadArtifact):
        check_distinct(together[::-1], "artifacts")


def test_distinct_paths_may_share_folders_and_prefixes() -> None:
    check_distinct(["a/b", "a/c", "ab", "a-b/c", "d"], "artifacts")
