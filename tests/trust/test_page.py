"""The coverage page as bytes: nothing breaks out of it, its policy fits it, and it holds what the coverage holds."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from auditkit.trust import page_data as page_data_module
from auditkit.trust.coverage import Status, share, span
from auditkit.trust.page import page, script_json
from auditkit.trust.page_data import page_data, varints
from tests.trust.pages import HOSTILE, KEYS, about, every_status, many


class Elements(HTMLParser):
    """All elements of a page, its text, and the contents of scripts and styles."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.raw: list[str] = []
        self._inside = ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag
        if tag in ("script", "style"):
            self.raw.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style"):
            self.raw[-1] += data
        else:
            self.text += data


@pytest.fixture(scope="module")
def source() -> str:
    """A page full of hostile texts."""
    return page(every_status(40), about()).decode("utf-8")


def test_hostile_texts_make_no_elements_and_no_attributes(source: str) -> None:
    tame = Elements(
        page(every_status(40), about(run="x", policy="x", program="x", names={}, refused=[("x", 1)] * 8)).decode()
    )
    found = Elements(source)
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in tame.tags]
    assert [sorted(attributes) for _, attributes in found.tags] == [sorted(attributes) for _, attributes in tame.tags]
    assert HOSTILE[0] in found.text
    assert "\\u2028" in found.text
    assert "\\x1b[31m" in found.text


def test_the_page_is_one_file_that_reaches_nowhere(source: str) -> None:
    found = Elements(source)
    assert {tag for tag, _ in found.tags}.isdisjoint({"link", "img", "iframe", "object", "embed", "form", "a", "base"})
    for tag, attributes in found.tags:
        assert not {name for name in attributes if name.startswith("on") or name in ("src", "href", "action")}, tag
    style, data, script = found.raw
    assert not re.search(r"url\(|@import|https?:", style)
    assert not re.findall(
        r"\b(?:fetch|XMLHttpRequest|WebSocket|import|eval|innerHTML|outerHTML|document\.write)\b", script
    )
    json.loads(data)


def test_the_policy_allows_exactly_the_script_and_the_style_of_the_page(source: str) -> None:
    found = Elements(source)
    policy = next(a["content"] for tag, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    style, _, script = (base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in found.raw)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules == {
        "default-src": "'none'",
        "script-src": f"'sha256-{script}'",
        "style-src": f"'sha256-{style}'",
        "base-uri": "'none'",
        "form-action": "'none'",
    }
    head = source[: source.index("<style>")]
    assert "Content-Security-Policy" in head


def test_everything_the_map_shows_is_in_the_tables_too(source: str) -> None:
    text = Elements(source).text
    coverage = every_status(40)
    covered = coverage.totals[Status.COVERED]
    assert f"{share(covered, 40)} of 40 steps are covered, 1 mismatch, 1 disputed step." in " ".join(text.split())
    for first, stop in coverage.gaps:
        assert span(first, stop) in text
    assert "step 4an auditor could not get what the publisher should serve" in text
    assert "automation (nightly)" in text
    assert sum(count for _, count in about().refused) == 36
    assert "36 refused" in text


def decode(text: str) -> Iterator[int]:
    """LEB128, the plain way."""
    value = shift = 0
    for byte in base64.b64decode(text):
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            yield value
            value = shift = 0


@given(st.lists(st.integers(0, 2**63 - 1), max_size=40))
def test_numbers_come_back_from_their_variable_length(values: list[int]) -> None:
    encoded = varints(np.array(values, np.int64))
    assert list(decode(base64.b64encode(encoded).decode())) == values
    assert len(encoded) == sum(max(1, -(-value.bit_length() // 7)) for value in values)


def column(data: dict[str, Any], name: str, width: int) -> list[int]:
    """One column of attestations."""
    return np.frombuffer(base64.b64decode(data[name]), f"<u{width}").tolist()


@pytest.mark.parametrize("count", [0, 1, 5000])
def test_the_data_is_the_coverage(count: int) -> None:
    coverage = many(count, 700, 40)
    data = page_data(coverage, {}).value
    statuses = [run % 8 for run in decode(data["runs"]) for _ in range(run // 8)]
    assert statuses == coverage.status.tolist()
    pairs = list(decode(data["steps"]))
    steps = np.repeat(np.cumsum(pairs[::2]), pairs[1::2]) if pairs else np.zeros(0)
    kinds = [data["kinds"][kind] for kind in column(data, "kind", data["kind_width"])]
    keys = [data["keys"][key][0] for key in column(data, "key", data["key_width"])]
    found = sorted(zip(steps.tolist(), keys, [kind[0] for kind in kinds], [kind[1] for kind in kinds], strict=True))
    rows = coverage.rows
    said = {0: "MATCH", 3: "MISMATCH"}
    assert found == sorted(
        (int(rows.step[i]), rows.keys[rows.key[i]], said[int(rows.verdict[i])], rows.families[rows.family[i]])
        for i in range(count)
    )
    times = [data["time_base"] + data["time_unit"] * t for t in column(data, "time", 2)]
    order = np.argsort(steps, kind="stable")
    assert len(order) == count
    assert all(abs(t - base) <= data["time_unit"] for t, base in zip(sorted(times), sorted(rows.finished), strict=True))


def test_notes_say_what_does_not_count_and_what_was_taken_back() -> None:
    data = page_data(every_status(40), {}).value
    notes = {tuple(kind) for kind in data["kinds"]}
    assert ("MATCH", "cpu-arm64", "nightly", "does not count") in notes
    assert ("MATCH", "cuda-sm_90", "", "replaced by what the same key says now") in notes
    assert [KEYS[8], "", "automation (nightly)"] in data["keys"]


def test_a_page_that_grows_too_large_keeps_mismatches_and_says_what_it_leaves_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(page_data_module, "MAX_ATTESTATIONS", 1000)
    monkeypatch.setattr(page_data_module, "MAX_KEYS", 10)
    monkeypatch.setattr(page_data_module, "MAX_FAMILIES", 1)
    coverage = many(5000, 300, 40)
    found = page_data(coverage, {})
    pairs = list(decode(found.value["steps"]))
    kinds = [found.value["kinds"][kind] for kind in column(found.value, "kind", found.value["kind_width"])]
    assert sum(pairs[1::2]) == 5000 - found.attestations_left_out
    assert 600 < sum(pairs[1::2]) < 1010
    mismatches = int((coverage.rows.verdict == 3).sum())
    assert sum(kind[0] == "MISMATCH" for kind in kinds) == mismatches > 0
    assert {kind[1] for kind in kinds} <= {"other hardware", *coverage.rows.families}
    assert len(found.value["keys"]) == 10
    assert found.keys_left_out == 30
    assert found.value["cut"]
    text = Elements(page(coverage, about()).decode("utf-8")).text
    assert f"not every attestation: {found.attestations_left_out:,} are only counted" in text
    assert "not every key: 30" in text


def test_a_million_attestations_stay_below_ten_megabytes() -> None:
    assert len(page(many(1_000_000, 100_000, 1000), about())) < 10_000_000


@pytest.mark.parametrize("text", HOSTILE)
def test_json_in_a_script_holds_nothing_that_html_knows(text: str) -> None:
    encoded = script_json({text: [text]})
    assert encoded.isascii()
    assert not set(encoded) & set("<>&")
    assert json.loads(encoded) == {text: [text]}


@pytest.mark.parametrize("size", [0, 1, 7])
def test_the_shortest_runs_have_a_page(size: int) -> None:
    found = Elements(page(many(0, size, 0), about()).decode("utf-8"))
    assert f"of {size} steps are covered" in " ".join(found.text.split())


@pytest.mark.parametrize(
    ("part", "whole", "said"),
    [
        (0, 0, "0 %"),
        (0, 9, "0 %"),
        (9, 9, "100 %"),
        (9999, 10000, "99.99 %"),
        (99999, 100000, "99.99 %"),
        (1, 10**6, "below 0.01 %"),
        (1, 3, "33.33 %"),
    ],
)
def test_a_share_is_never_rounded_up(part: int, whole: int, said: str) -> None:
    assert share(part, whole) == said
