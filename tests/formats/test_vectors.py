"""The committed vectors: made again byte for byte, every valid one prints itself, every bad one causes its error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from auditkit.errors import AuditkitError
from auditkit.formats.digest import content_digest
from tests.formats.parsers import PARSERS
from tests.vectors import make_formats

MADE = make_formats.make()


def vectors(kind: str) -> list[Any]:
    """The committed vectors of a kind ("good", "bad") as pytest parameters (parser, vector)."""
    found = []
    for path in sorted(make_formats.FOLDER.glob("*.json")):
        file = json.loads(path.read_text(encoding="utf-8"))
        if file["parser"] in PARSERS:
            found += [pytest.param(file["parser"], v, id=f"{file['parser']}: {v['name']}") for v in file[kind]]
    return found


def data_of(vector: dict[str, Any]) -> bytes:
    """The bytes of a vector."""
    return bytes.fromhex(vector["hex"]) if "hex" in vector else vector["text"].encode("utf-8")


def test_every_file_is_committed_and_made_again() -> None:
    assert {path.name for path in make_formats.FOLDER.glob("*")} == set(MADE)
    assert set(PARSERS) == {name.removesuffix(".json") for name in MADE} - {"gradient"}


@pytest.mark.parametrize("name", sorted(MADE))
def test_the_generator_makes_the_committed_bytes(name: str) -> None:
    assert (make_formats.FOLDER / name).read_bytes() == MADE[name]


@pytest.mark.parametrize(("parser", "vector"), vectors("good"))
def test_a_valid_file_prints_back_its_bytes(parser: str, vector: dict[str, Any]) -> None:
    data = data_of(vector)
    assert PARSERS[parser](data) == data
    assert content_digest(data) == vector["digest"]


@pytest.mark.parametrize(("parser", "vector"), vectors("bad"))
def test_a_bad_file_causes_the_error_it_names(parser: str, vector: dict[str, Any]) -> None:
    with pytest.raises(AuditkitError) as caught:
        PARSERS[parser](data_of(vector))
    assert caught.value.verdict.name == vector.get("verdict", "BAD_ARTIFACT")
    expected = vector["error"]
    if expected.endswith("..."):
        assert caught.value.message.startswith(expected.removesuffix("..."))
    else:
        assert caught.value.message == expected


def test_bad_vectors_of_a_format_have_names_of_their_own() -> None:
    for name, data in MADE.items():
        names = [vector["name"] for vector in json.loads(data)["bad"]]
        assert len(names) == len(set(names)), name
