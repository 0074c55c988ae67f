"""Which files a source has, and in which order."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from auditkit.errors import BadArtifact, Unavailable, UsageError
from trainer.data.inputs import find


def write(folder: Path, *names: str) -> Path:
    """Files of these names."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


def test_files_at_any_depth_by_the_bytes_of_their_names(tmp_path: Path) -> None:
    names = ["b.txt", "Z.jsonl", "é.parquet", "b/a.txt.zst", "b-c/x.jsonl.zst", "a/b/c.parquet.zst"]
    found = find(write(tmp_path / "s", *names), "s")
    assert [file.name for file in found.files] == sorted(names, key=lambda name: name.encode())
    assert [(f.kind, f.packed) for f in found.files if f.name.startswith("b")] == [
        (".jsonl", True), (".txt", False), (".txt", True)
    ]  # fmt: skip
    assert (found.ignored, found.size) == (0, 6)


def test_one_file_is_a_source(tmp_path: Path) -> None:
    write(tmp_path, "a.jsonl", "b.jsonl")
    assert [file.name for file in find(tmp_path / "b.jsonl", "s").files] == ["b.jsonl"]


def test_other_files_are_counted_and_hidden_ones_are_not(tmp_path: Path) -> None:
    found = find(write(tmp_path / "s", "a.txt", "a.json", "x.zst", "README", ".b.txt", ".git/c.txt", "d/e.gz"), "s")
    assert [file.name for file in found.files] == ["a.txt"]
    assert found.ignored == 4


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="source web: there is no"):
        find(tmp_path / "none", "web")
    with pytest.raises(UsageError, match=r"source web: no \.txt, \.jsonl or \.parquet file"):
        find(write(tmp_path / "s", "a.json"), "web")
    with pytest.raises(UsageError, match="no .txt"):
        find(write(tmp_path / "t", "a.json") / "a.json", "web")


@pytest.mark.optional("needs links and pipes")
@pytest.mark.skipif(sys.platform == "win32", reason="no links or pipes for everyone on Windows")
def test_what_is_no_file_is_refused_by_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "s", "a.txt")
    (folder / "b.jsonl").symlink_to(folder / "none")
    with pytest.raises(BadArtifact, match=r"b\.jsonl: a link that leads to no file"):
        find(folder, "s")
    (folder / "b.jsonl").unlink()
    os.mkfifo(folder / "c.parquet")
    with pytest.raises(BadArtifact, match=r"c\.parquet: not a regular file"):
        find(folder, "s")
    (folder / "c.parquet").unlink()
    (folder / "d").symlink_to(tmp_path)  # would lead round and round
    assert [file.name for file in find(folder, "s").files] == ["a.txt"]


@pytest.mark.skipif(sys.platform in ("darwin", "win32"), reason="no such names there")
@pytest.mark.optional("needs a file system that keeps any bytes")
@pytest.mark.parametrize(
    ("names", "words"),
    [(["\u00e9.txt", "e\u0301.txt"], "one name in Unicode form NFC"), (["a\nb.txt"], "unprintable"),
     (["a\udcff.txt"], "unprintable"), (["x" * 181 + ".txt"], "185 characters")],
)  # fmt: skip
def test_names_that_cannot_name_documents_are_refused(names: list[str], words: str, tmp_path: Path) -> None:
    with pytest.raises(BadArtifact, match=words) as caught:
        find(write(tmp_path / "s", *names), "s")
    assert caught.value.message.isprintable()
