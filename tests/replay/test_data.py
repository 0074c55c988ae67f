"""The documents behind a step, and whether its tokens follow from them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from auditkit.errors import BadArtifact, UsageError
from auditkit.formats.corpus import CorpusIndex
from auditkit.formats.digest import content_digest
from auditkit.replay.data import inspect
from auditkit.replay.run import open_run
from auditkit.replay.sources import corpus_index, sequences
from auditkit.verdict import Verdict
from tests.replay.make_run import CONTEXT, Parts, publish


def test_every_step_follows_from_the_corpus(honest: Path) -> None:
    with open_run(str(honest)) as run:
        for step in range(run.size):
            report = inspect(run, step)
            assert report.verdict is Verdict.MATCH
            assert report.derived is not None
            assert report.derived.library.startswith("tokenizers ")


def test_text_and_passages_are_those_of_the_documents(honest: Path, parts: Parts) -> None:
    """Case 66: each passage, cut out of its document by token positions, has the text that is shown."""
    with open_run(str(honest)) as run:
        for step in range(run.size):
            for source, text in zip(inspect(run, step).sequences, inspect(run, step).texts, strict=True):
                assert sum(p.end - p.begin for p in source.passages) == CONTEXT + 1
                whole = b"".join(parts.texts[p.document] for p in source.passages).decode()
                for piece in text.split("<|endoftext|>"):
                    assert piece in whole or "\\x" in piece


def test_sequences_visit_every_window_once_an_epoch(honest: Path) -> None:
    with open_run(str(honest)) as run:
        index = corpus_index(run, run.manifest.data)
        windows = run.manifest.data.windows
        steps = windows // run.recipe.batch.sequences
        seen = [s.window for step in range(steps) for s in sequences(run.segment(0), index, step)]
        assert sorted(seen) == list(range(windows))
        assert {s.epoch for s in sequences(run.segment(0), index, steps)} == {1}


def test_other_documents_are_a_bad_artifact(parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.texts["part-0.txt"] = lie.texts["part-0.txt"].replace(b"the", b"The")
    with open_run(str(publish(lie, tmp_path / "lie"))) as run:
        report = inspect(run, 0)
    assert report.verdict is Verdict.BAD_ARTIFACT
    assert "document part-0.txt has digest" in report.message


def test_other_text_with_an_index_that_fits_is_a_mismatch(parts: Parts, tmp_path: Path) -> None:
    """Case 67: same lengths and token counts, other tokens."""
    lie = parts.copy()
    lie.texts = {name: text.replace(b"have", b"evah") for name, text in parts.texts.items()}
    documents = tuple(replace(d, digest=content_digest(lie.texts[d.name])) for d in parts.corpus.documents)
    lie.corpus = CorpusIndex(documents)
    corpus = replace(parts.data.corpus, digest=content_digest(lie.corpus.encode()))
    lie.data = replace(parts.data, corpus=corpus)
    with open_run(str(publish(lie, tmp_path / "lie"))) as run:
        report = inspect(run, 0)
    assert report.verdict is Verdict.MISMATCH
    assert "has" in report.message and "tokens with tokenizers" in report.message


def test_a_document_that_claims_a_petabyte_is_not_read(parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    large = replace(parts.corpus.documents[0], size=1 << 49)
    lie.corpus = CorpusIndex((large, *parts.corpus.documents[1:]))
    corpus = replace(parts.data.corpus, digest=content_digest(lie.corpus.encode()))
    lie.data = replace(parts.data, corpus=corpus)
    with open_run(str(publish(lie, tmp_path / "lie"))) as run:
        report = inspect(run, 0)
    assert report.verdict is Verdict.UNSUPPORTED
    assert "bytes, at most 268435456 are read here" in report.message


def test_number_of_windows_must_follow(parts: Parts, tmp_path: Path) -> None:
    lie = parts.copy()
    lie.data = replace(parts.data, windows=parts.data.windows + 1)
    with open_run(str(publish(lie, tmp_path / "lie"))) as run, pytest.raises(BadArtifact, match="85"):
        inspect(run, 0)


def test_without_the_library_it_is_incomplete_but_shown(honest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with open_run(str(honest)) as run:
        report = inspect(run, 0)
    assert report.verdict is Verdict.INCOMPLETE
    assert "auditkit-verifier[data]" in report.hint
    assert len(report.texts) == 3


def test_no_such_step(honest: Path) -> None:
    with open_run(str(honest)) as run, pytest.raises(UsageError):
        inspect(run, 8)
