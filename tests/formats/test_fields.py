"""Typed fields: exact types, ranges, and no key that nobody asked for."""

from __future__ import annotations

from typing import Any

import pytest

from auditkit.errors import BadArtifact, Unsupported
from auditkit.formats.fields import Fields, check_text

SAMPLE: dict[str, Any] = {
    "digest": "a" * 64,
    "f32": "f32:3f800000",
    "f64": "f64:3ff0000000000000",
    "flag": True,
    "format": "auditkit/x/v1",
    "integer": 5,
    "items": [1, 2],
    "kind": "b",
    "path": "a/b",
    "rows": [{"n": 1}, {"n": 2}],
    "text": "caf\u00e9",
}


def test_every_getter_returns_its_value() -> None:
    fields = Fields(SAMPLE, "x")
    fields.format("auditkit/x/v1")
    assert fields.digest("digest") == "a" * 64
    assert (fields.f32("f32"), fields.f32_bits("f32"), fields.f64("f64")) == (1.0, 0x3F800000, 1.0)
    assert (fields.flag("flag"), fields.integer("integer", 5, 5), fields.items("items", 2, 2)) == (True, 5, [1, 2])
    assert (fields.choice("kind", "a", "b"), fields.path("path"), fields.text("text")) == ("b", "a/b", "caf\u00e9")
    assert [row.integer("n") for row in fields.rows("rows", 0, 2)] == [1, 2]
    fields.done()


def test_keys_that_were_not_asked_for_are_refused() -> None:
    fields = Fields({"a": 1, "z": 1, "b": 1}, "x")
    fields.integer("a")
    with pytest.raises(BadArtifact, match='x: unknown key "b"'):
        fields.done()


def test_errors_name_the_way_to_the_field() -> None:
    fields = Fields({"a": {"list": [{"n": -1}]}}, "x")
    with pytest.raises(BadArtifact, match=r"x\.a\.list\[0\]\.n: -1 is outside 0 to 9 steps"):
        fields.fields("a").rows("list", 1, 1)[0].integer("n", 0, 9, "steps")


@pytest.mark.parametrize("getter", ["digest", "f32", "f32_bits", "f64", "flag", "fields", "integer", "path", "text"])
@pytest.mark.parametrize("value", [[], {"a": []}, None, 1.5, b"a", "\n"])
def test_no_getter_takes_another_type(getter: str, value: Any) -> None:
    if (getter, value) == ("fields", {"a": []}):
        return
    with pytest.raises(BadArtifact, match="^x.k"):
        getattr(Fields({"k": value}, "x"), getter)("k")


@pytest.mark.parametrize("value", [True, False, 1.0, "1"])
def test_an_integer_is_exactly_an_integer(value: Any) -> None:
    with pytest.raises(BadArtifact, match=r"x\.k: not an integer"):
        Fields({"k": value}, "x").integer("k")


@pytest.mark.parametrize("value", [[], {}, 5, None, "a"])
def test_a_choice_is_one_of_the_texts(value: Any) -> None:
    with pytest.raises(BadArtifact, match='is not "b" or "c"'):
        Fields({"k": value}, "x").choice("k", "b", "c")


@pytest.mark.parametrize("value", [[], [1] * 4, "ab", {"a": 1}])
def test_a_list_has_its_number_of_items(value: Any) -> None:
    with pytest.raises(BadArtifact, match=r"^x\.k"):
        Fields({"k": value}, "x").items("k", 1, 3)


def test_a_newer_version_says_that_a_newer_program_may_help() -> None:
    with pytest.raises(Unsupported) as newer:
        Fields({"format": "auditkit/x/v2"}, "x").format("auditkit/x/v1")
    assert newer.value.message == 'x.format: "auditkit/x/v2" is newer than "auditkit/x/v1", which this verifier knows'
    assert newer.value.hint == "update auditkit-verifier"


@pytest.mark.parametrize("name", ["other/x/v1", "auditkit/y/v2", "auditkit/x/v02", "auditkit/x/v0", "auditkit/x/v2 "])
def test_another_format_is_no_newer_version(name: str) -> None:
    with pytest.raises(BadArtifact) as caught:
        Fields({"format": name}, "x").format("auditkit/x/v1")
    assert caught.value.hint == ""


@pytest.mark.parametrize(
    "text", ["", "a" * 201, "\x00", "a\nb", "\x7f", "\x9b31m", "\u202e", "\u2028", "\ufeff", "\ud800"]
)
def test_text_can_be_shown_in_a_terminal(text: str) -> None:
    with pytest.raises(BadArtifact) as caught:
        check_text(text, "title")
    assert caught.value.message.isascii()


@pytest.mark.parametrize("value", [[], None, "text", 5])
def test_an_object_is_an_object(value: Any) -> None:
    with pytest.raises(BadArtifact, match="x: not an object"):
        Fields(value, "x")


def test_a_key_that_may_be_left_out_is_still_refused_if_nobody_reads_it() -> None:
    fields = Fields({"a": 1}, "x")
    assert fields.has("a")
    assert not fields.has("b")
    with pytest.raises(BadArtifact, match='x: unknown key "a"'):
        fields.done()
