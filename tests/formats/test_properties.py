"""What holds for every format: what parses prints back its bytes, and an error that names it comes out of the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from auditkit.errors import BadArtifact, Unsupported
from auditkit.formats import canonical
from tests.formats import samples, strategies
from tests.formats.parsers import PARSERS
from tests.formats.test_vectors import data_of, vectors

VALUES = [
    "block", "block_index", "compact_records", "corpus", "leaves", "recipe", "record", "records", "segment", "shards",
    "state", "state_index", "stream_index",
]  # fmt: skip
GOOD: dict[str, list[bytes]] = {name: [] for name in PARSERS}
for parameter in vectors("good"):
    GOOD[parameter.values[0]].append(data_of(parameter.values[1]))


def refused_or_printed_back(name: str, data: bytes) -> None:
    """The whole promise of a parser."""
    try:
        printed = PARSERS[name](data)
    except (BadArtifact, Unsupported) as error:
        assert error.message.isprintable()
        assert error.message.isascii()
        return
    assert printed == data


@pytest.mark.parametrize("name", VALUES)
@settings(max_examples=40)
@given(data=st.data())
def test_a_valid_value_is_printed_and_parsed_back(name: str, data: st.DataObject) -> None:
    encoded = data.draw(strategies.any_value(name)).encode()
    assert PARSERS[name](encoded) == encoded


@given(strategies.safetensors_files())
def test_a_safetensors_file_is_printed_back(data: bytes) -> None:
    assert PARSERS["safetensors"](data) == data


@pytest.mark.parametrize("name", sorted(PARSERS))
@settings(max_examples=80)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_printed_back(name: str, data: st.DataObject) -> None:
    refused_or_printed_back(name, data.draw(strategies.damaged(GOOD[name])))


@pytest.mark.parametrize("name", sorted(PARSERS))
@settings(max_examples=50)
@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_or_printed_back(name: str, data: bytes) -> None:
    refused_or_printed_back(name, data)
    for prefix in GOOD[name]:
        refused_or_printed_back(name, prefix[:16] + data)


DOCUMENTS = (
    "corpus envelope log_entry recipe record run run_segments run_sources segment shards state state_index statement "
    "step_audit svr"
).split()


@pytest.mark.parametrize("name", DOCUMENTS)
@settings(max_examples=80)
@given(data=st.data())
def test_a_document_with_another_value_somewhere_is_refused_or_printed_back(name: str, data: st.DataObject) -> None:
    document = json.loads(GOOD[name][0])
    where: Any = document
    while True:
        keys = list(where) if isinstance(where, dict) else list(range(len(where)))
        key = data.draw(st.sampled_from(keys))
        if not (isinstance(where[key], (dict, list)) and where[key] and data.draw(st.booleans())):
            break
        where = where[key]
    where[key] = data.draw(strategies.json_values | st.sampled_from(["", "\x1b[2J", "a" * 300, 1 << 52, -1, True]))
    refused_or_printed_back(name, canonical.dumps(document))


@given(strategies.json_values)
def test_relaxed_reading_finds_the_same_value_in_any_spelling(value: Any) -> None:
    spelled = json.dumps(value, indent=2).encode("utf-8")
    found = canonical.loads_relaxed(spelled, what="document", limit=1 << 20)
    assert canonical.dumps(found) == canonical.dumps(value)


def test_every_format_has_valid_examples_to_damage() -> None:
    assert all(GOOD.values())
    assert samples.RUN.encode() in GOOD["run"]
