"""A folder of text as documents, byte for byte."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from auditkit.errors import BadArtifact, Unavailable, UsageError
from trainer.texts import open_folder


def _write(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


def test_documents_come_in_the_order_of_their_names_bytes(tmp_path: Path) -> None:
    folder = _write(tmp_path / "t", {"b.txt": b"2", "Z.txt": b"1", "é.txt": b"4", "ba.txt": b"3", "a10.txt": b"0"})
    assert [name for name, _, _ in open_folder(folder).read()] == ["Z.txt", "a10.txt", "b.txt", "ba.txt", "é.txt"]


def test_bytes_are_kept_as_they_are(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbfBOM\r\nCRLF\rCR\x00NUL\x1b\n"
    ((_, found, text),) = open_folder(_write(tmp_path / "t", {"a.txt": data})).read()
    assert found == data
    assert text.encode("utf-8") == data


@pytest.mark.parametrize(
    ("data", "offset", "byte"),
    [(b"abc\xff", 3, "0xff"), (b"\xc3", 0, "0xc3"), (b"ok \xed\xa0\x80", 3, "0xed"), (b"\xc0\xaf", 0, "0xc0")],
)
def test_bad_utf8_names_file_offset_and_byte(tmp_path: Path, data: bytes, offset: int, byte: str) -> None:
    folder = _write(tmp_path / "t", {"good.txt": b"fine", "bad.txt": data})
    with pytest.raises(BadArtifact, match=rf"bad\.txt: not UTF-8 at byte {offset} \({byte}") as caught:
        list(open_folder(folder).read())
    assert "convert" in caught.value.hint


@pytest.mark.optional("needs links and pipes")
@pytest.mark.skipif(sys.platform == "win32", reason="no links or pipes for everyone on Windows")
@pytest.mark.parametrize(("kind", "words"), [("link", "a link that leads to no file"), ("pipe", "not a regular file")])
def test_what_cannot_be_a_document_is_refused_by_name(kind: str, words: str, tmp_path: Path) -> None:
    folder = _write(tmp_path / "t", {"a.txt": b"a"})
    if kind == "link":
        (folder / "b.txt").symlink_to(folder / "none")
    else:
        os.mkfifo(folder / "b.txt")
    with pytest.raises(BadArtifact, match=rf"b\.txt: {words}"):
        open_folder(folder)


def test_other_files_are_counted_and_hidden_ones_are_not(tmp_path: Path) -> None:
    folder = _write(tmp_path / "t", {"a.txt": b"a", "a.json": b"{}", "._a.txt": b"\xff", ".DS_Store": b""})
    (folder / "sub.txt").mkdir()
    texts = open_folder(folder)
    assert [name for name, _ in texts.documents] == ["a.txt"]
    assert texts.ignored == 2


def test_an_empty_document_is_a_document(tmp_path: Path) -> None:
    folder = _write(tmp_path / "t", {"a.txt": b"a", "b.txt": b"", "c.txt": b"c"})
    assert [text for _, _, text in open_folder(folder).read()] == ["a", "", "c"]


def test_a_folder_without_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no \.txt file"):
        open_folder(_write(tmp_path / "t", {"a.md": b"a"}))


def test_what_is_no_folder_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="not a folder"):
        open_folder(tmp_path / "missing")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such names")
@pytest.mark.optional("Windows has no file names with control characters")
@pytest.mark.parametrize("name", ["a\nb.txt", "\x1b[31mred.txt", "\u202etxt.txt", "x" * 210 + ".txt"])
def test_a_name_that_no_corpus_can_have_is_refused_before_anything_is_read(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"text")
    with pytest.raises(BadArtifact, match="name: ") as error:
        open_folder(tmp_path)
    assert "rename it" in error.value.hint and error.value.message.isprintable()


@pytest.mark.skipif(sys.platform == "darwin", reason="this file system normalises names itself")
@pytest.mark.optional("on macOS two such names cannot exist")
def test_two_names_that_are_one_in_nfc_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadArtifact, match="one name in Unicode form NFC"):
        open_folder(_write(tmp_path / "t", {"\u00e9.txt": b"1", "e\u0301.txt": b"2"}))


def test_a_decomposed_name_gives_the_composed_one(tmp_path: Path) -> None:
    folder = _write(tmp_path / "t", {"e\u0301.txt": b"1"})
    assert [name for name, _ in open_folder(folder).documents] == ["\u00e9.txt"]
