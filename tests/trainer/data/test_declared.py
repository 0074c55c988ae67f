"""Sources as the user declares them, by options or in a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from auditkit.errors import Unavailable, UsageError
from trainer.data.declared import Declared, from_options, from_toml

NOTHING: dict[str, Any] = {"title": "T", "license": "L", "titles": {}, "licenses": {}, "epochs": 0, "text_key": "text"}


@pytest.mark.parametrize(
    ("text", "name", "path", "weight"),
    [
        ("web=a/b", "web", "a/b", 1),
        ("web=a/b:3", "web", "a/b", 3),
        ("web=a:b", "web", "a:b", 1),
        ("web=a:b:12", "web", "a:b", 12),
        (r"web=C:\texts", "web", r"C:\texts", 1),
        (r"web=C:\texts:2", "web", r"C:\texts", 2),
        ("web=a=b", "web", "a=b", 1),
        ("web=:5", "web", ":5", 1),
        ("web=a:", "web", "a:", 1),
        ("web=a:-1", "web", "a:-1", 1),
    ],
)
def test_an_option_is_name_path_and_weight(text: str, name: str, path: str, weight: int) -> None:
    (found,) = from_options([text], **NOTHING).sources
    assert found == Declared(name, Path(path), "T", "L", weight, 0, "text")


@pytest.mark.parametrize("text", ["", "web", "=a", "web="])
def test_other_options_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"is not NAME=PATH or NAME=PATH:WEIGHT"):
        from_options([text], **NOTHING)


def test_titles_and_licences_of_some() -> None:
    more = {"titles": {"b": "B"}, "licenses": {"a": "MIT"}, "epochs": 2, "text_key": "body"}
    found = from_options(["a=x", "b=y"], **NOTHING | more)
    assert [(s.title, s.license, s.epochs, s.text_key) for s in found.sources] == [
        ("T", "MIT", 2, "body"),
        ("B", "L", 2, "body"),
    ]
    with pytest.raises(UsageError, match="--source-title: there is no source 'c'"):
        from_options(["a=x"], **NOTHING | {"titles": {"c": "C"}})


FILE = """
title = "Two sources"
license = "MIT AND CC0-1.0"
[[source]]
name = "web"
path = "pages"
title = "Pages"
license = "MIT"
weight = 3
text_key = "body"
[[source]]
name = "books"
path = "/books"
title = "Books"
license = "CC0-1.0"
epochs = 4
"""


def written(folder: Path, text: str | bytes) -> Path:
    """A file of sources."""
    path = folder / "s.toml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_a_file_of_sources(tmp_path: Path) -> None:
    found = from_toml(written(tmp_path, FILE))
    assert (found.title, found.license) == ("Two sources", "MIT AND CC0-1.0")
    assert found.sources == (
        Declared("web", tmp_path / "pages", "Pages", "MIT", 3, 0, "body"),
        Declared("books", Path("/books"), "Books", "CC0-1.0", 1, 4, "text"),
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('title = "Two sources"', "", r"s\.toml: title must be a text"),
        ('license = "MIT"', "", "source 1: license must be a text"),
        ('name = "books"', 'name = ""', "source 2: name must be a text"),
        ("weight = 3", "weight = 1.5", "source 1: weight must be a whole number"),
        ("weight = 3", "weight = true", "source 1: weight must be a whole number"),
        ("epochs = 4", "epochs = -1", "source 2: epochs must be a whole number"),
        ("epochs = 4", "epoch = 4", 'source 2: unknown key "epoch"'),
        ('title = "Two sources"', 'title = "x"\nseed = 3', r's\.toml: unknown key "seed"'),
        ("[[source]]", "[[sources]]", r"s\.toml: there is no \[\[source\]\]"),
        ("weight = 3", "weight = ", "not TOML in UTF-8"),
    ],
)
def test_a_bad_file_is_refused_with_its_place(old: str, new: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        from_toml(written(tmp_path, FILE.replace(old, new)))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(Unavailable):
        from_toml(tmp_path / "none.toml")
    with pytest.raises(UsageError, match="not TOML in UTF-8"):
        from_toml(written(tmp_path, b'title = "\xff"'))
