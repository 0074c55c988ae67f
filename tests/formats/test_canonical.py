"""Canonical JSON: equal to an independent writer, strict about everything else, bounded on bombs."""

from __future__ import annotations

import json
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
import rfc8785
from hypothesis import given

from auditkit.errors import BadArtifact
from auditkit.formats import canonical
from tests.formats.strategies import json_values


@given(json_values)
def test_it_writes_what_rfc8785_writes(value: Any) -> None:
    assert canonical.dumps(value) == rfc8785.dumps(value)


def test_every_ascii_character_is_written_as_rfc8785_writes_it() -> None:
    value = {chr(code): [chr(code), "a" + chr(code) + "b", code, code % 2 == 0] for code in range(128)}
    assert canonical.dumps(value) == rfc8785.dumps(value)


@given(json_values)
def test_it_reads_what_the_standard_library_reads(value: Any) -> None:
    data = canonical.dumps(value)
    assert canonical.loads(data, what="document", limit=len(data)) == value == json.loads(data)


def test_keys_are_sorted_by_utf16_units_not_by_code_points() -> None:
    data = canonical.dumps({"\uff61": 1, "\U0001f600": 2})
    assert data == '{"\U0001f600":2,"\uff61":1}'.encode()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1.0, "document: float is not allowed"),
        (None, "document: null is not allowed"),
        (b"x", "document: bytes is not allowed"),
        (np.int64(1), "document: int64 is not allowed"),
        ({1: 2}, "document: a key is not text"),
        ({"a": {1, 2}}, "document: set is not allowed"),
        (1 << 53, "document: integer 9007199254740992 is outside +-(2^53-1)"),
        ("\ud800", "document: text with a lone surrogate has no canonical form"),
    ],
)
def test_it_writes_nothing_outside_the_subset(value: Any, message: str) -> None:
    with pytest.raises(BadArtifact) as caught:
        canonical.dumps(value)
    assert caught.value.message == message


def test_numbers_that_writers_spell_in_two_ways_are_refused() -> None:
    for number in (1e-7, 1e-8, 0.0, 1.0, 10.0, -0.0, 5e-324):
        with pytest.raises(BadArtifact):
            canonical.dumps({"lr": number})
        with pytest.raises(BadArtifact):
            canonical.loads(json.dumps({"lr": number}).encode(), what="document", limit=100)


def test_the_limit_is_checked_before_anything_is_read() -> None:
    with pytest.raises(BadArtifact, match="document: 11 bytes, at most 10 are allowed"):
        canonical.loads(b"x" * 11, what="document", limit=10)


@pytest.mark.parametrize(
    "bomb",
    [b"[" * 5_000_000, b'{"a":' * 1_000_000, b"[" + b"[]," * 3_000_000 + b"[]]", b"9" * 5_000_000, b'"' * 5_000_001],
    ids=["brackets", "objects", "many values", "digits", "quotes"],
)
def test_bombs_end_in_an_error_soon_and_in_bounded_memory(bomb: bytes) -> None:
    tracemalloc.start()
    began = time.process_time()
    with pytest.raises(BadArtifact):
        canonical.loads(bomb, what="document", limit=1 << 25)
    seconds, peak = time.process_time() - began, tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seconds < 5
    assert peak < 100_000_000


def test_names_in_messages_cannot_drive_a_terminal() -> None:
    assert canonical.shown("\x1b[2J\u202e\n") == '"\\u001b[2J\\u202e\\n"'
    assert len(canonical.shown("x" * 1000)) == 80


def test_relaxed_reading_is_as_strict_about_meaning() -> None:
    assert canonical.loads_relaxed(b' { "b" : 1,\r\n"a" : "\\u00e9" } \n', what="x", limit=99) == {
        "b": 1,
        "a": "\u00e9",
    }
    for data in (b'{"a":1,"a":1}', b"\xef\xbb\xbf{}", b"[1.5]", b"[null]", b'"\\ud800"', b"[-0]"):
        with pytest.raises(BadArtifact):
            canonical.loads_relaxed(data, what="x", limit=99)
