"""One document a file, a line or a row, from files of every kind."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from auditkit.errors import BadArtifact, Unsupported
from trainer.data.document import Limit
from trainer.data.inputs import find
from trainer.data.readers import documents

ROWS = ["one", "", "zwei\r\n", "三 \u0002"]


def read(path: Path, key: str = "text", limit: int = 1000) -> list[tuple[str, bytes]]:
    """All documents of a file or folder."""
    seen: list[int] = []
    found = find(path, "s")
    scratch = path.parent / "scratch"
    scratch.mkdir(exist_ok=True)
    listed = [
        (document.name, document.data)
        for file in found.files
        for document in documents(file, key, Limit(limit), scratch, seen.append)
    ]
    assert sum(seen) == found.size
    assert list(scratch.iterdir()) == []
    return listed


def table(rows: list[object], kind: pyarrow.DataType | None = None, name: str = "text") -> pyarrow.Table:
    """A table with a column of texts and one of numbers."""
    return pyarrow.table({name: pyarrow.array(rows, kind), "n": list(range(len(rows)))})


def parquet(path: Path, made: pyarrow.Table, **options: object) -> Path:
    """A Parquet file."""
    pyarrow.parquet.write_table(made, path, **options)
    return path


def pack(path: Path) -> Path:
    """The file compressed, in place of the file."""
    data = zstandard.ZstdCompressor().compress(path.read_bytes())
    path.unlink()
    packed = path.with_name(path.name + ".zst")
    packed.write_bytes(data)
    return packed


@pytest.mark.parametrize("packed", [False, True])
def test_all_kinds_give_the_same_texts(packed: bool, tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    made = [parquet(folder / "a.parquet", table(ROWS), row_group_size=3), folder / "b.jsonl", folder / "c.txt"]
    made[1].write_bytes(b"".join(json.dumps({"text": text}).encode() + b"\n" for text in ROWS))
    made[2].write_bytes(ROWS[3].encode())
    names = [(pack(path) if packed else path).name for path in made]
    want = [(f"{name}:{row}", text.encode()) for name in names[:2] for row, text in enumerate(ROWS, start=1)]
    assert read(folder) == [*want, (names[2], ROWS[3].encode())]


@pytest.mark.parametrize("kind", [pyarrow.string(), pyarrow.large_string(), pyarrow.string_view()])
@pytest.mark.parametrize("options", [{"use_dictionary": False}, {"compression": "zstd"}, {"row_group_size": 1}])
def test_columns_of_texts(kind: pyarrow.DataType, options: dict[str, object], tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", table(ROWS * 100, kind), **options)
    assert [data for _, data in read(path)] == [text.encode() for text in ROWS * 100]
    folded = table(ROWS * 100, kind).set_column(0, "text", pyarrow.array(ROWS * 100).dictionary_encode())
    assert [data for _, data in read(parquet(tmp_path / "b.parquet", folded))] == [t.encode() for t in ROWS * 100]


def test_rows_are_numbered_over_row_groups_and_batches(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", table([str(n) for n in range(1000)], name="body"), row_group_size=300)
    assert read(path, "body") == [(f"a.parquet:{n + 1}", str(n).encode()) for n in range(1000)]


def not_utf8() -> pyarrow.Array:
    """A column of texts, the second of which is no UTF-8: Parquet itself does not look."""
    return pyarrow.array([b"good", b"ab\xffc"], pyarrow.binary()).view(pyarrow.string())


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (table(["a"], name="body"), "a.parquet: there is no column 'text', or more than one"),
        (table([1, 2]), "a.parquet: column 'text' holds int64, not texts"),
        (table([b"a"], pyarrow.binary()), "a.parquet: column 'text' holds binary, not texts"),
        (table([["a"]]), "a.parquet: column 'text' holds list"),
        (table(["a", None]), r"a\.parquet, row 2: column 'text' has no text \(null\)"),
        (table(["a", "x" * 1001]), r"a\.parquet, row 2: a document of 1001 bytes or more"),
        (table(["a", "b\0"]), r"a\.parquet, row 2: U\+0000 at byte 1"),
        (pyarrow.table({"text": not_utf8()}), r"a\.parquet, row 2: not UTF-8 at byte 2 \(0xff"),
    ],
)
def test_a_bad_column_or_row_is_named(made: pyarrow.Table, words: str, tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", made, store_schema=False)
    with pytest.raises(BadArtifact, match=words):
        read(path)
    with pytest.raises(BadArtifact, match=words.replace("parquet", r"parquet\.zst")):
        read(pack(path))


@pytest.mark.parametrize("damage", ["head", "tail", "middle", "empty"])
def test_a_damaged_parquet_file_is_refused(damage: str, tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", table([str(n) * 50 for n in range(900)]), compression="zstd")
    data = bytearray(path.read_bytes())
    if damage == "middle":
        data[len(data) // 3 : len(data) // 3 + 40] = bytes(40)
    path.write_bytes({"head": b"", "empty": b"", "tail": bytes(data[:-5])}.get(damage, bytes(data)))
    with pytest.raises(BadArtifact, match=r"a\.parquet, after row \d+: not a Parquet file|row \d+: "):
        read(path)


def test_without_pyarrow_it_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(tmp_path / "a.parquet", table(["a"]))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(Unsupported, match="need the pyarrow library") as caught:
        read(path)
    assert "pip install pyarrow" in caught.value.hint


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"abc\xff", r"a\.txt: not UTF-8 at byte 3 \(0xff"),
        (b"ab\0c", r"a\.txt: U\+0000 at byte 2"),
        (b"x" * 1001, r"a\.txt: a document of 1001 bytes or more, at most 1000 are allowed"),
        ("text".encode("utf-16"), r"a\.txt: not UTF-8 at byte 0"),
    ],
)
def test_a_bad_text_is_named(data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(data)
    with pytest.raises(BadArtifact, match=words):
        read(tmp_path / "a.txt")
    with pytest.raises(BadArtifact, match=words.replace(r"a\.txt", r"a\.txt\.zst")):
        read(pack(tmp_path / "a.txt"))


def test_bytes_of_a_text_are_kept_as_they_are(tmp_path: Path) -> None:
    data = b"\xef\xbb\xbfBOM\r\nCRLF\rCR\x1b\x7f\xc2\x85\n"
    (tmp_path / "a.txt").write_bytes(data)
    assert read(tmp_path / "a.txt") == [("a.txt", data)]
