"""A run of declared sources that goes on with others: prepared with its tokenizer, published, derived again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import auditkit
from auditkit.replay.data import inspect
from auditkit.replay.run import open_run
from auditkit.verdict import Verdict
from tests.trainer import tiny
from trainer import cli

WORDS = "the of and to in a is that it was for on are with as his they be at one have this from or had by".split()


def write(path: Path, *lines: str) -> Path:
    """JSON lines with a text each."""
    path.write_text("".join(f'{{"text":"{line}"}}\n' for line in lines), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run: 6 steps on two sources, 4 on one more with other weights, 4 on one plain corpus."""
    beside = tmp_path_factory.mktemp("sources")
    web = write(beside / "web.jsonl", *(" ".join(WORDS[i:] * 3) for i in range(8)))
    books = write(beside / "books.jsonl", " ".join(WORDS * 9), " ".join(WORDS[::-1] * 7))
    news = write(beside / "news.jsonl", *(" ".join(WORDS[::2] * i) for i in range(2, 9)))
    words = ["--context-length", "16", "--title", "Words", "--license", "CC0-1.0"]
    made, given = beside / "work", ["--tokenizer", str(beside / "work" / "tokenizer.json")]
    first = ["--source", f"web={web}:3", "--source", f"books={books}", str(made)]
    assert cli.main(["prepare", *first, "--vocab-size", "300", "--seed", "5", *words]) == 0
    second = ["--source", f"web={web}", "--source", f"news={news}:2", str(beside / "second")]
    assert cli.main(["prepare", *second, *given, "--seed", "6", *words]) == 0
    texts = tiny.write_texts(beside / "texts")
    assert cli.main(["prepare", str(texts), str(beside / "third"), *given, *words]) == 0
    (beside / "recipe.toml").write_text(tiny.RECIPE, encoding="utf-8")
    assert cli.main(["run", str(beside / "recipe.toml"), str(made), "--steps", "6", "--state-every", "5"]) == 0
    for data, steps in (("second", "10"), ("third", "14")):
        assert cli.main(["change", str(made), "--data", str(beside / data), "--steps", steps]) == 0
        assert cli.main(["resume", str(made)]) == 0
    return made


@pytest.mark.parametrize("options", [[], ["--compact"]], ids=["frames", "windows"])
def test_each_segment_follows_from_its_own_sources(work: Path, tmp_path: Path, options: list[str]) -> None:
    out = tmp_path / "out"
    assert cli.main(["publish", str(work), str(out), "--name", "sources", *options]) == 0
    assert auditkit.verify(out, steps=(0, 14), device="cpu").verdict is Verdict.MATCH
    with open_run(str(out)) as run:
        assert [[s.name for s in segment.data.sources] for segment in run.timeline.segments] == [
            ["web", "books"],
            ["web", "news"],
            [],
        ]
        assert run.manifest.format == "auditkit/run/v3"
        for step, first in ((5, 15), (6, 0), (9, 9), (10, 0), (13, 9)):
            report = inspect(run, step)
            assert report.verdict is Verdict.MATCH, report.message
            assert [sequence.number for sequence in report.sequences] == [first, first + 1, first + 2]
    assert (out / "data-1" / "corpus" / "news" / "00000.zst").is_file()
    assert (out / "data-2" / "corpus.txt.zst").is_file()


def test_more_steps_than_the_sources_have_are_refused(
    work: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A source that may be used once ends the segment, counted from where it begins in its data."""
    work = Path(shutil.copytree(work, tmp_path / "work"))
    web = write(tmp_path / "web.jsonl", " ".join(WORDS * 4))
    given = ["--tokenizer", str(work / "tokenizer.json"), "--context-length", "16", "--title", "T", "--license", "MIT"]
    once = ["--source", f"web={web}", "--epochs", "1", str(tmp_path / "once"), *given]
    assert cli.main(["prepare", *once]) == 0
    capsys.readouterr()
    assert cli.main(["change", str(work), "--data", str(tmp_path / "once"), "--steps", "24"]) == 2
    err = capsys.readouterr().err
    assert "used for 1 epoch; 30 are asked for (10 steps of 3)" in err
    assert not (work / "data-3").exists()


def test_a_run_of_more_steps_than_its_sources_have_is_not_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    web = write(tmp_path / "web.jsonl", *(" ".join(WORDS[i:] * 3) for i in range(8)))
    once = ["--source", f"web={web}", "--epochs", "1", str(tmp_path / "work"), "--vocab-size", "300"]
    words = ["--context-length", "16", "--title", "Words", "--license", "CC0-1.0"]
    assert cli.main(["prepare", *once, *words]) == 0
    (tmp_path / "recipe.toml").write_text(tiny.RECIPE.replace("sequences = 3", "sequences = 9"), encoding="utf-8")
    capsys.readouterr()
    run = ["run", str(tmp_path / "recipe.toml"), str(tmp_path / "work")]
    assert cli.main(run) == 2
    assert "used for 1 epoch; 216 are asked for (24 steps of 9)" in capsys.readouterr().err
    assert not (tmp_path / "work" / "recipe.json").exists()
    assert cli.main([*run, "--steps", "1"]) == 0
    assert cli.main(["resume", str(tmp_path / "work"), "--steps", "24"]) == 2
