"""From text to tokens: the same bytes every time, and the text comes back whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from auditkit.formats import zstd
from auditkit.formats.corpus import CorpusIndex
from auditkit.formats.digest import content_digest
from tests.trainer import tiny
from trainer import cli, prepared
from trainer.bpe import Encoder
from trainer.work import Work

FILES = ["prepared.json", "corpus.json", "corpus.txt.zst", "tokenizer.json", "ids.bin"]


def _prepare(texts: Path, work: Path, **changed: object) -> int:
    options = {"vocab-size": 300, "context-length": 16, "seed": 5, "title": "t", "license": "CC0-1.0"}
    options |= {key.replace("_", "-"): value for key, value in changed.items()}
    return cli.main(["prepare", str(texts), str(work), *(f"--{key}={value}" for key, value in options.items())])


def test_the_same_text_gives_the_same_files(tmp_path: Path) -> None:
    texts = tiny.write_texts(tmp_path / "texts")
    for name in ("a", "b"):
        assert _prepare(texts, tmp_path / name) == 0
    for file in FILES:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes(), file


def test_the_published_text_and_the_ids_are_the_documents(prepared_once: Path) -> None:
    texts = [text.encode("utf-8") for text in tiny.TEXTS]
    corpus = CorpusIndex.parse((prepared_once / "corpus.json").read_bytes())
    assert [(d.name, d.size, d.digest) for d in corpus.documents] == [
        (f"{number}.txt", len(text), content_digest(text)) for number, text in enumerate(texts)
    ]
    packed = (prepared_once / "corpus.txt.zst").read_bytes()
    assert zstd.decompress(packed, size=corpus.text_size, what="text") == b"".join(texts)
    ids = np.fromfile(prepared_once / "ids.bin", "<u2")
    encoder = Encoder((prepared_once / "tokenizer.json").read_bytes())
    offsets = corpus.token_offsets()
    assert offsets[-1] == len(ids)
    for text, start, end in zip(texts, offsets, offsets[1:], strict=False):
        assert encoder.decode(ids[start : end - 1].tolist()) == text
        assert ids[end - 1] == encoder.end_of_text


def test_the_data_section_says_how_the_stream_follows(prepared_once: Path) -> None:
    work = Work(prepared_once)
    found = prepared.load(work)
    ids = prepared.open_ids(work, found)
    assert (found.data.dtype, found.data.seed, found.data.context_length) == ("U16", 5, 16)
    assert found.data.windows == (len(ids) - 1) // 16
    assert found.data.corpus.license == "CC0-1.0"
    assert json.loads(work.prepared.read_bytes())["vocab_size"] == 300


def test_the_last_window_may_end_with_the_text(tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_bytes(bytes(range(65, 65 + 16)))  # 16 single bytes and the end of text: 17 ids
    assert _prepare(texts, tmp_path / "a", vocab_size=257, context_length=16) == 0
    assert prepared.load(Work(tmp_path / "a")).data.windows == 1
    assert _prepare(texts, tmp_path / "b", vocab_size=257, context_length=8) == 0
    assert prepared.load(Work(tmp_path / "b")).data.windows == 2


def test_too_little_text_is_refused_and_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.txt").write_bytes(b"ABC")
    assert _prepare(texts, tmp_path / "work", vocab_size=257, context_length=16) == 2
    assert "the text has 4 tokens, one window needs 17" in capsys.readouterr().err
    assert not (tmp_path / "work" / "prepared.json").exists()


def test_bad_utf8_is_refused_and_the_same_folder_can_be_used_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = tiny.write_texts(tmp_path / "texts")
    (texts / "bad.txt").write_bytes(b"good \xff")
    assert _prepare(texts, tmp_path / "work") == 4
    assert "bad.txt: not UTF-8 at byte 5" in capsys.readouterr().err
    assert sorted(path.name for path in (tmp_path / "work").iterdir() if path.name != ".lock") == []
    (texts / "bad.txt").unlink()
    assert _prepare(texts, tmp_path / "work") == 0


def test_a_prepared_folder_is_not_prepared_again(
    prepared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (prepared / "prepared.json").read_bytes()
    assert _prepare(tiny.write_texts(tmp_path / "texts"), prepared) == 2
    assert "already prepared" in capsys.readouterr().err
    assert (prepared / "prepared.json").read_bytes() == before


def test_what_a_killed_prepare_left_does_not_matter(tmp_path: Path, prepared_once: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / ".tmp-ids.bin-1").write_bytes(b"half")
    (work / "ids.bin").write_bytes(b"of another text")
    assert _prepare(tiny.write_texts(tmp_path / "texts"), work) == 0
    assert (work / "ids.bin").read_bytes() == (prepared_once / "ids.bin").read_bytes()
    assert not (work / ".tmp-ids.bin-1").exists()


@pytest.mark.parametrize("changed", [{"title": ""}, {"title": "x" * 201}, {"license": ""}, {"seed": 1 << 53}])
def test_values_beyond_the_format_are_refused(changed: dict[str, object], tmp_path: Path) -> None:
    assert _prepare(tiny.write_texts(tmp_path / "texts"), tmp_path / "work", **changed) == 2
    assert not (tmp_path / "work" / "prepared.json").exists()
