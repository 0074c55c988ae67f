"""From declared sources to a corpus and ids: every document, in order, the same bytes for any number of processes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from auditkit.formats.data_spec import DataSpec
from auditkit.formats.fields import Fields
from auditkit.numerics.sample import sampled
from tests.ops.oracle import order
from tests.trainer.data import mix
from tests.trainer.data.mix import CONTEXT, VOCAB
from trainer import bpe, cli, prepared
from trainer.batches import open_batches
from trainer.data.declared import Declared, Sources
from trainer.data.options import DataOptions
from trainer.data.sources import MixOptions, prepare_sources
from trainer.work import Work


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both sources; not to be changed."""
    made = tmp_path_factory.mktemp("sources")
    mix.write(made)
    return made


@pytest.fixture(scope="module")
def once(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both sources, prepared; not to be changed."""
    work = tmp_path_factory.mktemp("work") / "work"
    assert mix.prepare(folder, work) == 0
    return work


def test_the_corpus_is_the_documents_in_order(once: Path, tmp_path: Path) -> None:
    want = mix.write(tmp_path / "again")
    found = mix.documents(once)
    assert {name: [(d, text) for d, text, _ in listed] for name, listed in found.items()} == want


def test_the_ids_are_those_of_the_documents(once: Path) -> None:
    encoder = bpe.Encoder((once / "tokenizer.json").read_bytes())
    ids, begin = mix.ids(once), 0
    for listed in mix.documents(once).values():
        for name, text, tokens in listed:
            assert ids[begin : begin + tokens].tolist() == encoder.encode(text, what=name).tolist()
            begin += tokens
    assert begin == len(ids)


def test_the_data_section_says_how_the_stream_follows(once: Path) -> None:
    found = prepared.load(Work(once))
    value = json.loads((once / "prepared.json").read_bytes())
    assert (value["format"], found.vocab_size, found.tokens) == ("auditkit/prepared/v2", VOCAB, len(mix.ids(once)))
    data = DataSpec.from_fields(Fields(value["data"], "data"))
    assert data == found.data
    tokens = [sum(count for _, _, count in listed) for listed in mix.documents(once).values()]
    assert [(s.name, s.weight, s.epochs, s.tokens, s.license) for s in data.sources] == [
        ("web", 3, 0, tokens[0], "CC0-1.0"),
        ("books", 1, 0, tokens[1], "CC0-1.0"),
    ]
    assert (data.corpus.title, data.corpus.text, data.kind, data.dtype) == ("Two sources", "corpus", "frames", "U16")
    assert data.tokenizer.library.startswith("tokenizers ") and data.tokenizer.one_in == 1
    assert data.windows == sum((count - 1) // CONTEXT for count in tokens)


@pytest.mark.parametrize("weights", [(":3", ":1"), (":1", ""), ("", ":1000")])
def test_batches_are_drawn_as_the_oracle_says(weights: tuple[str, str], folder: Path, tmp_path: Path) -> None:
    assert mix.prepare(folder, tmp_path / "work", weights=weights) == 0
    work = Work(tmp_path / "work")
    found = prepared.load(work)
    ids, tokens = mix.ids(work.folder), [source.tokens for source in found.data.sources]
    numbers = [int(weight[1:] or 1) for weight in weights]
    windows = [(count - 1) // CONTEXT for count in tokens]
    batches = open_batches(work, found, 7)
    for step in range(3):
        rows = batches.tokens(step)
        for row in range(7):
            source, _, window = order.sequence(5, numbers, windows, step * 7 + row)
            begin = sum(tokens[:source]) + window * CONTEXT
            assert rows[row].tolist() == ids[begin : begin + CONTEXT + 1].tolist()
        assert batches.part(step, 2, 5).tolist() == rows[2:5].tolist()


def test_three_sources_of_equal_weight(folder: Path, tmp_path: Path) -> None:
    """Each epoch of a source shows every window once, and the three take turns."""
    names = {"a": folder / "web/a.jsonl", "b": folder / "books/c.parquet", "c": folder / "books/d.txt"}
    options = [f"--source={name}={path}" for name, path in names.items()]
    sizes = ["--vocab-size=300", "--context-length=16", "--title=t", "--license=l"]
    assert cli.main(["prepare", *options, str(tmp_path / "work"), *sizes]) == 0
    work = Work(tmp_path / "work")
    found = prepared.load(work)
    batches = open_batches(work, found, 3)
    offsets = np.cumsum([0, *(source.tokens for source in found.data.sources)])
    ids = mix.ids(work.folder)
    for number, source in enumerate(found.data.sources):
        windows = found.data.windows_of(source)
        seen = sorted(batches.tokens(step)[number].tolist() for step in range(windows))
        begins = offsets[number] + np.arange(windows) * 16
        assert seen == sorted(ids[b : b + 17].tolist() for b in begins)


@pytest.mark.parametrize("processes", ["1", "2", "5"])
def test_any_number_of_processes_gives_the_same_bytes(processes: str, folder: Path, once: Path, tmp_path: Path) -> None:
    assert mix.prepare(folder, tmp_path / "work", f"--processes={processes}") == 0
    assert mix.files(tmp_path / "work") == mix.files(once)


def small_pieces(folder: Path, work: Path, processes: int) -> None:
    """Prepare with blocks and shards of a few documents."""
    declared = Sources("Two sources", "CC0-1.0", tuple(
        Declared(name, folder / name, "Two sources", "CC0-1.0", weight) for name, weight in (("web", 3), ("books", 1))
    ))  # fmt: skip
    options = DataOptions(VOCAB, CONTEXT, 5, "Two sources", "CC0-1.0", processes=processes)
    prepare_sources(declared, work, options, MixOptions(shard_bytes=1500, block_bytes=300))


def test_the_cut_into_blocks_and_shards_changes_neither_ids_nor_documents(
    folder: Path, once: Path, tmp_path: Path
) -> None:
    small_pieces(folder, tmp_path / "a", 1)
    small_pieces(folder, tmp_path / "b", 3)
    assert mix.files(tmp_path / "a") == mix.files(tmp_path / "b")
    assert len(list((tmp_path / "a/corpus/web").glob("*.zst"))) > 3
    assert all(path.stat().st_size <= 1500 for path in (tmp_path / "a/corpus").rglob("*.zst"))
    assert mix.documents(tmp_path / "a") == mix.documents(once)
    for file in ("ids.bin", "ids.chk", "tokenizer.json"):
        assert (tmp_path / "a" / file).read_bytes() == (once / file).read_bytes()


def test_a_file_of_sources_gives_the_same_as_options(folder: Path, once: Path, tmp_path: Path) -> None:
    file = folder / "sources.toml"
    rows = "".join(
        f'[[source]]\nname = "{name}"\npath = "{name}"\ntitle = "Two sources"\nlicense = "CC0-1.0"\nweight = {weight}\n'
        for name, weight in (("web", 3), ("books", 1))
    )
    file.write_text(f'title = "Two sources"\nlicense = "CC0-1.0"\n{rows}', encoding="utf-8")
    sizes = ["--vocab-size=300", "--context-length=16", "--seed=5"]
    assert cli.main(["prepare", str(file), str(tmp_path / "work"), *sizes]) == 0
    assert mix.files(tmp_path / "work") == mix.files(once)


def test_the_tokenizer_can_be_trained_again_on_its_sample(folder: Path, tmp_path: Path) -> None:
    """What the manifest declares is enough: which documents, by the seed, in the order of the corpus."""
    assert mix.prepare(folder, tmp_path / "work", "--tokenizer-sample=2", "--vocab-size=280") == 0
    found = prepared.load(Work(tmp_path / "work"))
    assert found.data.tokenizer.one_in == 2
    sample, left = [], 0
    for number, listed in enumerate(mix.documents(tmp_path / "work").values()):
        flags = sampled(found.data.seed, number, 0, len(listed), 2)
        sample += [text for (_, text, _), chosen in zip(listed, flags, strict=True) if chosen]
        left += np.count_nonzero(~flags)
    assert left > 10
    assert bpe.train(sample, 280) == (tmp_path / "work/tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("size", "dtype", "bytes_each"), [("300", "U16", 2), ("65536", "U16", 2), ("65537", "U32", 4), ("100277", "U32", 4)]
)
def test_a_tokenizer_may_be_taken_as_it_is(
    size: str, dtype: str, bytes_each: int, folder: Path, once: Path, tmp_path: Path
) -> None:
    """Case 65: and the vocabulary may be larger than its ids, as models pad it."""
    taken = once / "tokenizer.json"
    assert mix.prepare(folder, tmp_path / "work", f"--tokenizer={taken}", f"--vocab-size={size}") == 0
    found = prepared.load(Work(tmp_path / "work"))
    assert (found.vocab_size, found.data.dtype, found.data.tokenizer.one_in) == (int(size), dtype, 0)
    assert (tmp_path / "work/tokenizer.json").read_bytes() == taken.read_bytes()
    ids = mix.ids(tmp_path / "work", "<u2" if bytes_each == 2 else "<u4")
    assert ids.tolist() == mix.ids(once).tolist()


def test_without_a_size_the_vocabulary_is_that_of_the_tokenizer(folder: Path, once: Path, tmp_path: Path) -> None:
    command = [word for word in mix.arguments(folder, tmp_path / "work") if not word.startswith("--vocab-size")]
    assert cli.main([*command, f"--tokenizer={once / 'tokenizer.json'}"]) == 0
    assert prepared.load(Work(tmp_path / "work")).vocab_size == VOCAB


BYTES = (8, 9, 10, 17)  # cases 66 and 68: ids of a document, its end of text included


@pytest.mark.parametrize("width", [4, 8])
def test_windows_at_their_boundaries(width: int, tmp_path: Path) -> None:
    """Case 66: B = 2, T = 4 and other shapes; a document may be empty, or end where a window does."""
    folder = tmp_path / "s"
    folder.mkdir()
    rows = ["x" * (count - 1) for count in BYTES] + ["", "y"]
    (folder / "a.jsonl").write_bytes(mix.lines(rows, "text"))
    (folder / "b.txt").write_bytes(b"z" * (3 * width))  # exactly three windows with its end of text
    options = DataOptions(257, width, 0, "t", "l")
    declared = [Declared("a", folder / "a.jsonl", "t", "l", 1), Declared("b", folder / "b.txt", "t", "l", 1)]
    prepare_sources(
        Sources("t", "l", tuple(declared)), tmp_path / "work", options, MixOptions(shard_bytes=200, block_bytes=12)
    )
    work = Work(tmp_path / "work")
    found = prepared.load(work)
    assert [found.data.windows_of(source) for source in found.data.sources] == [(sum(BYTES) + 2) // width, 3]
    batches = open_batches(work, found, 2)
    ids, offset = mix.ids(work.folder), found.data.sources[0].tokens
    seen = np.concatenate([batches.tokens(step) for step in range(2 * (sum(BYTES) + 2) // width)])
    for source, begin, windows in ((0, 0, (sum(BYTES) + 2) // width), (1, offset, 3)):
        first = [row.tolist() for row in seen[source::2][:windows]]
        assert sorted(first) == sorted(
            ids[begin + w * width : begin + w * width + width + 1].tolist() for w in range(windows)
        )


@pytest.mark.parametrize(("count", "code"), [(16, 2), (17, 0)])
def test_a_source_without_a_window_is_refused_by_name(
    count: int, code: int, folder: Path, once: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = tmp_path / "short.txt"
    short.write_bytes(b"\x01" * (count - 1))  # a byte that is merged with none
    more = [f"--source=short={short}", f"--tokenizer={once / 'tokenizer.json'}"]
    assert mix.prepare(folder, tmp_path / "work", *more) == code
    if code:
        assert "source short has 16 tokens, one window needs 17" in capsys.readouterr().err
        assert [path.name for path in (tmp_path / "work").iterdir()] == [".lock"]


def test_an_empty_source_is_refused_by_name(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none.jsonl").write_bytes(b"")
    assert mix.prepare(folder, tmp_path / "work", f"--source=none={tmp_path / 'none.jsonl'}") == 2
    assert "source none has 0 tokens" in capsys.readouterr().err
