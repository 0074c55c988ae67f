"""The documents behind a step of declared sources, and whether its tokens follow from them, block by block."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from auditkit.errors import BadArtifact, Unavailable
from auditkit.formats.run import RunManifest
from auditkit.replay.block_corpus import BlockCorpus
from auditkit.replay.data import inspect
from auditkit.replay.run import open_run
from auditkit.replay.verify import verify
from auditkit.store import Store
from auditkit.verdict import Verdict
from tests.replay import make_run, make_sources
from tests.replay.make_run import CONTEXT, Parts
from tests.replay.make_sources import Documents

Made = tuple[Parts, Documents]


@pytest.fixture(scope="module")
def made() -> Made:
    """The honest run in parts; copy before changing anything."""
    return make_sources.train()


@pytest.fixture(scope="module")
def mixed(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The honest run, published; do not write into it."""
    return make_sources.publish(*made, tmp_path_factory.mktemp("mixed") / "tiny")


def lying(made: Made, name: str, text: bytes, *, tokens: int | None = None) -> Made:
    """The run with another text of a document, in a corpus that is consistent in itself."""
    parts, documents = made[0], copy.deepcopy(made[1])
    source = next(source for source, named in documents.texts.items() if name in named)
    documents.texts[source][name] = text
    if tokens is not None:
        documents.tokens[source][name] = tokens
    return make_sources.with_documents(parts, documents), documents


def seen_by(run_folder: Path, step: int) -> set[str]:
    """The documents behind a step."""
    with open_run(str(run_folder)) as run:
        return {p.document for s in BlockCorpus(run, run.segment(0)).sequences(step) for p in s.passages}


@pytest.mark.parametrize("compact", [False, True])
def test_every_step_follows_from_the_corpus(made: Made, compact: bool, tmp_path: Path) -> None:
    folder = make_sources.publish(*made, tmp_path / "run", compact=compact)
    with open_run(str(folder)) as run:
        for step in range(run.size):
            report = inspect(run, step)
            assert report.verdict is Verdict.MATCH, report.message
            assert report.derived is not None and report.derived.documents < 20
            assert "did not see" in report.not_checked[1]


def test_the_steps_themselves_are_verified(mixed: Path) -> None:
    report = verify(str(mixed), steps="0:2", device="cpu")
    assert report.verdict is Verdict.MATCH


def test_passages_are_the_documents_tokens(mixed: Path, made: Made) -> None:
    texts = {name: text for named in made[1].texts.values() for name, text in named.items()}
    with open_run(str(mixed)) as run:
        for step in range(run.size):
            report = inspect(run, step)
            for sequence, text in zip(report.sequences, report.texts, strict=True):
                assert sum(p.end - p.begin for p in sequence.passages) == CONTEXT + 1
                names = [p.document for p in sequence.passages]
                assert set(names) <= set(made[1].texts[sequence.source])
                whole = "<|endoftext|>".join(texts[name].decode() for name in names)
                assert text.strip("\ufffd") in whole + "<|endoftext|>" or "\\x" in text


def test_sources_come_by_weight_and_with_their_licences(mixed: Path) -> None:
    with open_run(str(mixed)) as run:
        reports = [inspect(run, step) for step in range(run.size)]
        names = [s.source for report in reports for s in report.sequences]
    assert names[:8] == ["web", "web", "web", "books"] * 2
    found = reports[1].to_dict()
    assert found["sources"] == [
        {"name": "web", "title": "The web", "license": "CC0-1.0", "weight": 3},
        {"name": "books", "title": "The books", "license": "MIT", "weight": 1},
    ]


def test_a_document_of_other_words_is_a_mismatch_for_the_steps_that_saw_it(made: Made, tmp_path: Path) -> None:
    name = "book-0.txt"
    text = made[1].texts["books"][name]
    lie = make_sources.publish(*lying(made, name, text.replace(b"have", b"evah")), tmp_path / "lie")
    with open_run(str(lie)) as run:
        verdicts = {}
        for step in range(run.size):
            report = inspect(run, step)
            saw = name in {p.document for s in report.sequences for p in s.passages}
            verdicts.setdefault(saw, set()).add(report.verdict)
    assert verdicts == {True: {Verdict.MISMATCH}, False: {Verdict.MATCH}}


def test_a_wrong_number_of_tokens_is_a_mismatch(made: Made, tmp_path: Path) -> None:
    """It shifts windows of later documents, so that their steps do not match either."""
    name = "pages.jsonl:8"
    count = made[1].tokens["web"][name]
    parts, documents = lying(made, name, made[1].texts["web"][name], tokens=count - 1)
    web, books = parts.data.sources
    parts.data = replace(parts.data, sources=(replace(web, tokens=web.tokens - 1), books))
    lie = make_sources.publish(parts, documents, tmp_path / "lie")
    with open_run(str(lie)) as run:
        messages = [inspect(run, step) for step in range(run.size)]
    found = [report.message for report in messages if f"document {name} has" in report.message]
    assert found and all(f"has {count} tokens with tokenizers" in message for message in found)
    assert {report.verdict for report in messages} == {Verdict.MISMATCH}


def test_a_damaged_block_is_a_bad_artifact_for_the_steps_that_need_it(made: Made, tmp_path: Path) -> None:
    folder = make_sources.publish(*made, tmp_path / "run")
    shard = folder / "corpus/books/00000.zst"
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    with open_run(str(folder)) as run:
        for step in range(run.size):
            if step % 4 == 0:  # its three sequences are drawn from the web
                assert inspect(run, step).verdict is Verdict.MATCH
            elif "books" in {s.source for s in BlockCorpus(run, run.segment(0))._drawn(step)}:
                with pytest.raises(BadArtifact, match=r"corpus/books/00000\.zst, block 0"):
                    inspect(run, step)


def test_a_missing_shard_is_unavailable_for_the_steps_that_need_it(made: Made, tmp_path: Path) -> None:
    """Case 71: every other step can still be shown."""
    folder = make_sources.publish(*made, tmp_path / "run")
    needing = [step for step in range(8) if any(n.startswith("book") for n in seen_by(folder, step))]
    (folder / "corpus/books/00000.zst").unlink()
    assert needing and len(needing) < 8
    with open_run(str(folder)) as run:
        for step in range(8):
            if step in needing:
                with pytest.raises(Unavailable):
                    inspect(run, step)
            else:
                assert inspect(run, step).verdict is Verdict.MATCH


def test_only_what_a_step_needs_is_read(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_sources.publish(*made, tmp_path / "run")
    seen: list[tuple[str, int]] = []
    ranges, whole = Store.range, Store.read

    def read_range(self: Store, path: str, offset: int, length: int, **more: Any) -> bytes:
        seen.append((path, length))
        return ranges(self, path, offset, length, **more)

    def read(self: Store, path: str, size: int, digest: str) -> bytes:
        seen.append((path, size))
        return whole(self, path, size, digest)

    monkeypatch.setattr(Store, "range", read_range)
    monkeypatch.setattr(Store, "read", read)
    blocks = [path.stat().st_size for path in (folder / "corpus").rglob("*.zst")]
    with open_run(str(folder)) as run:
        assert inspect(run, 2).verdict is Verdict.MATCH
    found = [(path, length) for path, length in seen if path.startswith("corpus/")]
    texts = {(path, length) for path, length in found if path.endswith(".zst")}
    assert sum(length for _, length in texts) < sum(blocks) / 2
    assert len([path for path, _ in found if path.endswith(".idx")]) <= 4  # of six shards, each once


def edited_run(made: Made, folder: Path, files: dict[str, bytes]) -> Path:
    """A run folder some of whose files are others, which its manifest lists as they are."""
    make_sources.publish(*made, folder)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    manifest = RunManifest.parse((folder / "run.json").read_bytes())
    (folder / "run.json").write_bytes(replace(manifest, artifacts=make_run.artifacts(folder)).encode())
    return folder


def test_an_index_that_the_corpus_does_not_name_is_refused(made: Made, tmp_path: Path) -> None:
    _, files = make_sources.shards(made[1])
    other = files["corpus/web/00001.idx"]
    with open_run(str(edited_run(made, tmp_path / "a", {"corpus/web/00000.idx": other}))) as run:
        with pytest.raises(BadArtifact, match=r"web/00000\.idx: not the shard that corpus\.json names"):
            for step in range(run.size):
                inspect(run, step)
    longer = files["corpus/web/00000.zst"] + b"more"
    with open_run(str(edited_run(made, tmp_path / "b", {"corpus/web/00000.zst": longer}))) as run:
        with pytest.raises(BadArtifact, match=r"web/00000\.idx describes \d+ bytes, corpus/web/00000\.zst has"):
            for step in range(run.size):
                inspect(run, step)


def test_text_that_is_not_utf8_is_refused_with_its_place(made: Made, tmp_path: Path) -> None:
    name = "book-1.txt"
    text = made[1].texts["books"][name]
    lie = make_sources.publish(*lying(made, name, text[:9] + b"\xff" + text[10:]), tmp_path / "lie")
    with open_run(str(lie)) as run:
        reports = [inspect(run, step) for step in range(run.size) if name in seen_by(lie, step)]
    assert reports and {r.verdict for r in reports} == {Verdict.BAD_ARTIFACT}
    assert 'document "book-1.txt" is not UTF-8 at byte 9' in reports[0].message


def test_a_run_beyond_the_declared_end_is_refused_when_it_is_opened(made: Made, tmp_path: Path) -> None:
    parts = made[0].copy()
    web, books = parts.data.sources
    parts.data = replace(parts.data, sources=(web, replace(books, epochs=1, tokens=CONTEXT * 5 + 1)))
    parts.data = replace(parts.data, windows=parts.data.windows_of(web) + 5)
    folder = make_sources.publish(parts, made[1], tmp_path / "run")
    with pytest.raises(BadArtifact, match='the data end after 23 sequences, when source "books" has been used for 1'):
        open_run(str(folder))
