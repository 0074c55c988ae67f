"""The bars of the large model: each can be missed, and what was not measured is no row."""

from __future__ import annotations

from typing import Any

from bench.must_hold import MEASUREMENTS, against_plain, rows, wanted_of
from bench.rows import Row

TIMES = {"step": 150.0, "micro_batch": 0.125, "digest": 0.01, "peak_bytes": 100 << 30}
BATCH = {"sequences": 1152, "micro_batch_sequences": 1}


def found(**changes: Any) -> dict[str, dict[str, Any]]:
    """A run in which all holds."""
    good: dict[str, dict[str, Any]] = {
        "parts": {"times": TIMES, "check": [{"what": "narrow", "same": True, "said": ""}]},
        "torch": {
            "batch": BATCH,
            "torch": [
                {"kind": "bfloat16", "said": "", "micro_batch": 0.08, "update": 0.1},
                {"kind": "float32", "said": "", "micro_batch": 0.5, "update": 0.1},
            ],
        },
        "whole": {"whole": {"seconds": 160.0, "joules": None}},
        "16GiB": {"times": TIMES | {"step": 160.0, "peak_bytes": 15 << 30}, "plan": "pieces"},
        "8GiB": {"times": TIMES | {"step": 290.0, "peak_bytes": 7 << 30}, "plan": "pieces"},
    }
    return good | changes


def missed(value: dict[str, dict[str, Any]]) -> list[str]:
    return [row.name for row in rows(value) if row.passes is False]


def by_name(value: dict[str, dict[str, Any]]) -> dict[str, Row]:
    return {row.name: row for row in rows(value)}


def test_a_good_run_misses_nothing_and_judges_all() -> None:
    made = list(rows(found()))
    assert missed(found()) == []
    assert sum(row.passes is True for row in made) == 9
    assert by_name(found())["ours / torch bfloat16"].value == 150.0 / (1152 * 0.08 + 0.1)


def test_every_bar_can_be_missed() -> None:
    slow = {"times": TIMES | {"step": 400.0, "digest": 10.0}, "check": [{"what": "narrow", "same": False, "said": ""}]}
    assert missed(found(parts=slow)) == [
        "bits: narrow", "digest of the state", "ours / torch bfloat16", "torch float32 / ours",
    ]  # fmt: skip
    assert missed(found(whole={"whole": {"seconds": 241.0, "joules": 7.0}})) == ["whole step"]
    much = {"times": TIMES | {"step": 301.0, "peak_bytes": 17 << 30}, "plan": ""}
    names = ["16GiB: step", "16GiB: held by the pool", "8GiB: step", "8GiB: held by the pool"]
    assert missed(found(**{"16GiB": much, "8GiB": much})) == names


def test_what_was_not_measured_is_no_row() -> None:
    assert list(rows({})) == []
    assert [row.name for row in rows({"whole": found()["whole"]})] == ["whole step"]
    assert "16GiB: step" not in by_name(found(**{"16GiB": {}}))


def test_a_plan_alone_is_compared_with_a_micro_batch_in_all_of_the_memory() -> None:
    assert wanted_of(["16GiB"]) == ["plain", "16GiB"]
    assert wanted_of(["parts", "8GiB"]) == ["parts", "8GiB"]
    assert wanted_of(["torch"]) == ["torch"] and "plain" not in wanted_of(None)
    plan = {"times": TIMES | {"micro_batch": 0.13, "peak_bytes": 15 << 30, "counted": 8}, "predicted": 1.05}
    alone = {"plain": {"times": TIMES}, "16GiB": plan}
    made = {(row.name, row.unit): row for row in against_plain(alone)}
    assert made["16GiB: micro-batch", "times"].passes and made["16GiB: held by the pool", "GiB"].passes
    assert not list(against_plain({"16GiB": plan})) and not list(rows(alone))
    slow = plan | {"times": plan["times"] | {"micro_batch": 0.14, "peak_bytes": 17 << 30}}
    assert [row.passes for row in against_plain(alone | {"16GiB": slow}) if row.bar] == [False, False]


def test_measurements_have_different_names() -> None:
    assert len({one.name for one in MEASUREMENTS}) == len(MEASUREMENTS)
