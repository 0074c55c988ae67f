"""Declared fields: rules check exact types and ranges, and a section reads, checks and writes itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import pytest

from auditkit.errors import BadArtifact
from auditkit.formats.fields import Fields
from auditkit.formats.schema import Choice, Flag, Int, Ints, Real, Rule, Section


@dataclass(frozen=True, slots=True)
class Example(Section):
    """Two fields and a rule between them."""

    section = "example"

    low: Annotated[int, Int(0, 9, "steps")]
    high: Annotated[float, Real(64, high=9.0)]

    def check(self) -> None:
        """low is not above high."""
        if self.low > self.high:
            raise BadArtifact("example: low exceeds high")


def test_a_section_is_written_and_read() -> None:
    example = Example(3, 4.5)
    assert example.to_value() == {"low": 3, "high": "f64:4012000000000000"}
    assert Example.from_fields(Fields(example.to_value(), "example")) == example


def test_a_section_cannot_be_made_wrong() -> None:
    with pytest.raises(BadArtifact, match="^example.low: 10 is outside 0 to 9 steps$"):
        Example(10, 9.0)
    with pytest.raises(BadArtifact, match="^example: low exceeds high$"):
        Example(5, 4.0)
    with pytest.raises(BadArtifact, match='^example: unknown key "x"$'):
        Example.from_fields(Fields({**Example(3, 4.5).to_value(), "x": 1}, "example"))


@pytest.mark.parametrize(
    ("rule", "good", "bad"),
    [
        (Int(1, 3), [1, 3], [0, 4, True, 1.0, "1", None]),
        (Ints(2, 4, 2), [(), (2,), (4, 3)], [(1,), (5,), (2, 2, 2), [2], (True,), (2.0,), 2, None]),
        (Flag(), [True, False], [0, 1, "true", None]),
        (Choice((14, 21)), [14, 21], [16, "14", 14.0, True, [14]]),
        (Choice((1,)), [1], [True, 1.0]),
        (Choice(("a",)), ["a"], ["b", "", None, ["a"]]),
        (Real(64), [0.0, math.ulp(0.0), 1e308], [-0.0, -1.0, math.inf, math.nan, 1, "1", None]),
        (Real(64, high=1.0, high_open=True), [0.0, math.nextafter(1.0, 0.0)], [1.0, 2.0]),
        (Real(64, low_open=True), [math.ulp(0.0)], [0.0, -0.0]),
        (Real(32), [0.5, 2.0**-149, 2.0**127], [0.1, 2.0**-150, 2.0**128]),
        (Real(32, low=1.0, high=2.0), [1.0, 2.0], [0.5, 2.5]),
    ],
)
def test_a_rule_takes_exactly_its_values(rule: Rule, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        rule.check(value, "x")
        written = rule.write(value)
        fields = Fields({} if written is None else {"x": written}, "document")
        assert rule.read(fields, "x") == value
    for value in bad:
        with pytest.raises(BadArtifact, match=r"^x(\[\d\])?: "):
            rule.check(value, "x")
