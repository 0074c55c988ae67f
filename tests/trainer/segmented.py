"""The golden run of four segments as commands of the trainer, on data that need no tokenizer."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

from auditkit.formats import zstd
from auditkit.formats.digest import content_digest
from auditkit.formats.fields import Fields
from auditkit.formats.recipe import Recipe
from auditkit.formats.run import DataSpec
from tests.golden.make_segments import FIRST, LOWER, SHORT, TEXT, TOKENIZER, VOCAB, A, B, Data
from tests.trainer import tiny
from trainer import cli
from trainer.prepared import Prepared

STARTS = (4, 8, 12)
STEPS = 16
KEPT = [0, 1, 3, 4, 6, 8, 9, 12, 15, 16]


def write_prepared(folder: Path, data: Data) -> Path:
    """A work folder as `prepare` leaves it."""
    folder.mkdir(parents=True)
    own = dataclasses.replace(data, folder="")  # the run gives it a folder when it takes it over
    spec = DataSpec.from_fields(Fields(own.value("frames"), "data"))
    ids = data.ids.tobytes()
    files = {
        "corpus.json": own.corpus,
        "corpus.txt.zst": zstd.compress(TEXT),
        "tokenizer.json": TOKENIZER,
        "ids.bin": ids,
        "prepared.json": Prepared(spec, VOCAB, data.tokens, content_digest(ids)).encode(),
    }
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_recipe(path: Path, recipe: Recipe) -> Path:
    """A recipe as people write it."""
    lines = []
    for section in dataclasses.fields(recipe):
        lines.append(f"[{section.name}]")
        part = getattr(recipe, section.name)
        values = {field.name: getattr(part, field.name) for field in dataclasses.fields(part)}
        lines += [f"{name} = {_toml(value)}" for name, value in values.items() if value != ()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8", newline="\n")
    return path


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)


def prepare(folder: Path) -> Path:
    """Both data and the recipes; returns the work folder of the run."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, recipe in (("first", FIRST), ("lower", LOWER), ("short", SHORT)):
        write_recipe(folder / f"{name}.toml", recipe)
    write_prepared(folder / "more", B)
    return write_prepared(folder / "work", A)


def commands(work: Path) -> list[list[str]]:
    """Train, and change, four times."""
    beside = work.parent
    return [
        ["run", f"{beside / 'first.toml'}", f"{work}", "--steps", "4", "--state-every", "3", "--keep-states", "1"],
        ["change", f"{beside / 'lower.toml'}", f"{work}", "--steps", "8"],
        ["resume", f"{work}"],
        ["change", f"{work}", "--data", f"{beside / 'more'}", "--steps", "12"],
        ["resume", f"{work}"],
        ["change", f"{beside / 'short.toml'}", f"{work}"],
        ["resume", f"{work}"],
    ]


def run(work: Path, first: int = 0, stop: int = 7) -> None:
    """Some of the commands, in this process."""
    for command in commands(work)[first:stop]:
        assert cli.main(command) == 0, command


def bits(work: Path) -> dict[str, bytes]:
    """All that the run consists of."""
    files = tiny.bits(work)
    for path in sorted([work / "segments.json", *work.glob("data-*/*")]):
        if path.is_file():
            files[path.relative_to(work).as_posix()] = path.read_bytes()
    return files


def assert_same_run(work: Path, other: Path) -> None:
    """Both folders hold the same run, bit for bit, and no leftovers."""
    found, expected = bits(work), bits(other)
    assert sorted(found) == sorted(expected)
    assert [name for name in expected if found[name] != expected[name]] == []
    assert tiny.metrics(work) == tiny.metrics(other)
    assert [path for path in work.rglob("*") if path.name.startswith(".tmp-")] == []


def copy(along: list[Path], number: int, target: Path) -> Path:
    """The work folder before a command, with its neighbours, of one's own."""
    shutil.copytree(along[number], target / str(number))
    return target / str(number) / "work"
