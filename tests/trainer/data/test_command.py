"""The arguments of `prepare`: ways to name sources, what options are for, and what is refused before any work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trainer import tiny
from tests.trainer.data import mix
from trainer import cli

SIZES = ["--vocab-size=300", "--context-length=16"]
TOLD = ["--title=t", "--license=l"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both sources, a folder of texts, and a file of sources; not to be changed."""
    made = tmp_path_factory.mktemp("sources")
    mix.write(made)
    tiny.write_texts(made / "texts")
    (made / "s.toml").write_text(
        'title = "t"\nlicense = "l"\n[[source]]\nname = "w"\npath = "web"\ntitle = "t"\nlicense = "l"\n',
        encoding="utf-8",
    )
    return made


def refused(arguments: list[str], work: Path, capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """The error of a command that makes nothing."""
    assert cli.main(["prepare", *arguments, str(work), *SIZES]) == code
    assert not (work / "prepared.json").exists() and not (work / "corpus").exists()
    return capsys.readouterr().err


@pytest.mark.parametrize("option", ["--title", "--license"])
@pytest.mark.parametrize("form", ["texts", "--source=w=web"])
def test_title_and_licence_are_needed(
    form: str, option: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    word = str(folder / "texts") if form == "texts" else f"--source=w={folder / 'web'}"
    told = [text for text in TOLD if not text.startswith(option)]
    assert f"{option} is needed" in refused([word, *told], tmp_path / "work", capsys)


@pytest.mark.parametrize(
    "option",
    [
        "--text-key=a",
        "--epochs=1",
        "--source-title=w=x",
        "--source-license=w=x",
        "--tokenizer-sample=2",
        "--shard-bytes=9",
    ],
)
def test_options_of_sources_are_refused_for_a_folder_of_texts(
    option: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused([str(folder / "texts"), *TOLD, option], tmp_path / "work", capsys)
    assert f"{option.split('=')[0]} has no effect here: it is for --source, or a file of sources" in error


@pytest.mark.parametrize("option", ["--title=t", "--license=l", "--text-key=a", "--epochs=1", "--source-title=w=x"])
def test_what_a_file_of_sources_says_itself_is_refused(
    option: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = refused([str(folder / "s.toml"), option], tmp_path / "work", capsys)
    assert f"{option.split('=')[0]} has no effect here: " in error and "says it itself" in error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--source=a/b=web"], 'options.sources[0].name: unsafe name "a/b"'),
        (["--source=w=web:0"], "options.sources[0].weight: 0 is outside 1 to 65536"),
        (["--source=w=web:999999999999"], "options.sources[0].weight: 1073741824 is outside"),
        (["--source=w=web:65536", "--source=b=books"], "weights sum to 65537, at most 65536"),
        (["--source=w=web", "--source=W=books"], '"W" and "w" are one name where case is ignored'),
        (["--source=w=web", "--source-title=w=" + "x" * 201], "options.sources[0].title: 201 characters"),
        (["--source=w=web", "--source-title=v=x"], "--source-title: there is no source 'v'"),
        (["--source=w=web", "--source-title=w"], "--source-title 'w' is not NAME=TEXT"),
        (["--source=w=web", "--source-license=w=a", "--source-license=w=b"], "or the name was given before"),
        (["--source=w=web", "--tokenizer-sample=1048577"], "options.tokenizer.one_in: 1048577 is outside"),
        (["--source=w=web", "--max-document=999999999"], "--max-document 999999999 is outside 1 to"),
        (["--source=w=web", "--vocab-size=1048577"], "--vocab-size 1048577 is above 1048576"),
        (["--source=w=web", "--end-of-text=x"], "--end-of-text names a token of --tokenizer FILE"),
        (["--source=w=web", "--tokenizer=t", "--tokenizer-sample=2"], "--tokenizer-sample is of no use with"),
        (["--source=w="], "--source 'w=' is not NAME=PATH"),
    ],
)
def test_what_cannot_be_declared_is_refused_before_any_work(
    options: list[str], words: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    assert cli.main(["prepare", str(tmp_path / "work"), *SIZES, *TOLD, *options]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


def test_a_vocabulary_or_a_tokenizer_is_needed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["prepare", f"--source=w={folder / 'web'}", str(tmp_path / "work"), "--context-length=16", *TOLD]
    assert cli.main(command) == 2
    assert "--vocab-size is needed, or --tokenizer FILE" in capsys.readouterr().err


def test_a_vocabulary_smaller_than_the_tokenizer_is_refused(
    prepared_once: Path, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = f"--tokenizer={prepared_once / 'tokenizer.json'}"
    for form in ([str(folder / "texts")], [f"--source=w={folder / 'web'}"]):
        assert cli.main(["prepare", *form, str(tmp_path / "work"), *SIZES, *TOLD, taken, "--vocab-size=299"]) == 2
        assert "--vocab-size 299: the tokenizer has ids up to 299" in capsys.readouterr().err


def test_bad_tokenizers_are_refused_before_any_work(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_bytes(b"{}")
    for path, code in ((tmp_path / "bad.json", 4), (tmp_path / "none.json", 5)):
        form = [f"--source=w={folder / 'web'}", *TOLD, f"--tokenizer={path}"]
        refused(form, tmp_path / "work", capsys, code)
        assert not (tmp_path / "work").exists()


def test_a_folder_of_texts_takes_a_tokenizer_and_processes_as_well(
    prepared_once: Path, folder: Path, tmp_path: Path
) -> None:
    command = ["prepare", str(folder / "texts"), str(tmp_path / "work"), *SIZES, "--seed=5"]
    told = ["--title=tiny texts", "--license=CC0-1.0"]
    taken = f"--tokenizer={prepared_once / 'tokenizer.json'}"
    assert cli.main([*command, *told, taken, "--processes=2"]) == 0
    for file in ("prepared.json", "corpus.json", "corpus.txt.zst", "tokenizer.json", "ids.bin"):
        assert (tmp_path / "work" / file).read_bytes() == (prepared_once / file).read_bytes(), file


def test_a_text_beyond_the_limit_is_refused(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = refused([str(folder / "texts"), *TOLD, "--max-document=100"], tmp_path / "work", capsys, 4)
    assert "0.txt: a document of 216 bytes or more, at most 100 are allowed" in error
    assert "--max-document allows up to" in error


def test_other_files_of_a_source_are_told(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "s"
    source.mkdir()
    (source / "a.txt").write_bytes(b"the cat sat on the mat " * 40)
    (source / "notes.md").write_bytes(b"x")
    command = [
        "prepare",
        f"--source=s={source}",
        str(tmp_path / "work"),
        "--vocab-size=260",
        "--context-length=16",
        *TOLD,
    ]
    assert cli.main(command) == 0
    assert "source s: left out 1 files of other kinds" in capsys.readouterr().err


def test_a_prepared_folder_is_not_prepared_again(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mix.prepare(folder, tmp_path / "work") == 0
    before = mix.files(tmp_path / "work")
    assert mix.prepare(folder, tmp_path / "work") == 2
    assert "already prepared" in capsys.readouterr().err
    assert mix.files(tmp_path / "work") == before
