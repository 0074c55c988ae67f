"""Beacons: what is read, what is refused, and what each kind says of itself."""

from __future__ import annotations

import datetime

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from auditkit.errors import UsageError
from auditkit.trust import beacon
from auditkit.trust.beacon import Beacon, Origin


@given(st.binary(min_size=16, max_size=64))
def test_the_text_of_a_beacon_is_read_back(value: bytes) -> None:
    assert beacon.parse(Beacon(value).text) == Beacon(value)


@pytest.mark.parametrize("text", ["AB" * 16, "0x" + "ab" * 16, "0X" + "aB" * 16])
def test_case_and_prefix_are_free(text: str) -> None:
    assert beacon.parse(text).value == b"\xab" * 16


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0x",
        "ab" * 15,
        "ab" * 65,
        "ab" * 16 + "a",
        " " + "ab" * 16,
        "ab" * 16 + "\n",
        "ag" * 16,
        "\u0661\u0661" * 16,
        "0x0x" + "ab" * 16,
        "-" + "ab" * 16,
    ],
)
def test_anything_else_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError, match="beacon") as caught:
        beacon.parse(text)
    assert caught.value.hint


def test_a_drawn_beacon_is_fresh_and_says_that_nobody_can_check_it() -> None:
    first, second = beacon.draw(), beacon.draw()
    assert first.value != second.value
    assert len(first.value) == 32
    assert first.origin is Origin.DRAWN
    assert "drawn on this machine" in first.caveat


def test_the_beacon_of_a_date_follows_from_its_text_and_says_that_it_was_foreseeable() -> None:
    made = beacon.of_date(datetime.date(2026, 1, 2))
    assert made.value == blake3(b"2026-01-02", derive_key_context="auditkit date beacon v1").digest()
    assert made.text == "0e0b206a77b1989bc97e45458041e63861c18fe5ec27a37158fa857d0f309584"
    assert (made.origin, made.detail) == (Origin.DATE, "2026-01-02")
    assert "foresee" in made.caveat


def test_a_given_beacon_has_no_caveat() -> None:
    assert beacon.parse("ab" * 32).caveat == ""
    assert beacon.parse("ab" * 32).to_dict() == {"value": "ab" * 32, "origin": "given", "detail": "", "caveat": ""}
