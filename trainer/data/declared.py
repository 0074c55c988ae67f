"""The sources of a corpus as the user declares them: options of the command line, or a TOML file."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from auditkit.errors import UsageError
from auditkit.formats.canonical import shown, words
from trainer.disk import read_bytes

DEFAULT_KEY = "text"

_FORM = "NAME=PATH or NAME=PATH:WEIGHT"


@dataclass(frozen=True)
class Declared:
    """One source: name, files, licence and title, weight, epochs (0: no limit), and the key of a text in a row."""

    name: str
    path: Path
    title: str
    license: str
    weight: int = 1
    epochs: int = 0
    text_key: str = DEFAULT_KEY


@dataclass(frozen=True)
class Sources:
    """All sources in the order that counts, with title and licence of the whole."""

    title: str
    license: str
    sources: tuple[Declared, ...]


def from_options(
    given: Sequence[str],
    *,
    title: str,
    license: str,
    titles: Mapping[str, str],
    licenses: Mapping[str, str],
    epochs: int,
    text_key: str,
) -> Sources:
    """The sources of repeated options `--source`; `titles` and `licenses` are those of some by name.

    Raises UsageError naming the option.
    """
    found = []
    for text in given:
        name, separator, rest = text.partition("=")
        path, colon, weight = rest.rpartition(":")
        weighted = bool(colon and path) and weight.isascii() and weight.isdigit()
        where = path if weighted else rest
        if not (name and separator and where):
            raise UsageError(f"--source {text!r} is not {_FORM}")
        number = int(weight) if weighted and len(weight) < 9 else 1 if not weighted else 1 << 30
        own = titles.get(name, title), licenses.get(name, license)
        found.append(Declared(name, Path(where), *own, number, epochs, text_key))
    for option, named in (("--source-title", titles), ("--source-license", licenses)):
        unknown = set(named) - {source.name for source in found}
        if unknown:
            raise UsageError(f"{option}: there is no source {min(unknown)!r}")
    return Sources(title, license, tuple(found))


def from_toml(path: Path) -> Sources:
    """The sources of a TOML file, whose paths are relative to its folder.

    Raises Unavailable, UsageError naming the key.
    """
    try:
        table = tomllib.loads(read_bytes(path).decode("utf-8"))
    except (ValueError, RecursionError) as error:  # of TOML, UTF-8, and numbers with more digits than Python converts
        raise UsageError(f"{path}: not TOML in UTF-8: {words(error)}") from error
    keys = _Keys(table, str(path))
    title, license = keys.text("title"), keys.text("license")
    rows = keys.tables("source")
    keys.done()
    found = []
    for number, row in enumerate(rows, start=1):
        source = _Keys(row, f"{path}: source {number}")
        found.append(
            Declared(
                name=source.text("name"),
                path=path.parent / source.text("path"),
                title=source.text("title"),
                license=source.text("license"),
                weight=source.number("weight", 1),
                epochs=source.number("epochs", 0),
                text_key=source.text("text_key", DEFAULT_KEY),
            )
        )
        source.done()
    return Sources(title, license, tuple(found))


class _Keys:
    """A table of TOML; UsageError for a missing, wrong or unknown key."""

    def __init__(self, table: dict[str, Any], where: str) -> None:
        self._left, self._where = dict(table), where

    def text(self, key: str, default: str | None = None) -> str:
        value = self._left.pop(key, default)
        if not isinstance(value, str) or not value:
            raise UsageError(f"{self._where}: {key} must be a text")
        return value

    def number(self, key: str, default: int) -> int:
        value = self._left.pop(key, default)
        if type(value) is not int or value < 0:
            raise UsageError(f"{self._where}: {key} must be a whole number")
        return value

    def tables(self, key: str) -> list[dict[str, Any]]:
        value = self._left.pop(key, None)
        if not isinstance(value, list) or not value or not all(isinstance(row, dict) for row in value):
            raise UsageError(f"{self._where}: there is no [[{key}]]")
        return value

    def done(self) -> None:
        if self._left:
            raise UsageError(f"{self._where}: unknown key {shown(min(self._left))}")
