"""What docs/trust.md says in numbers and names is what the program says."""

from __future__ import annotations

import math
import re

from auditkit.replay.report import CHECKS
from auditkit.trust import escape
from auditkit.trust.coverage import Status
from auditkit.verdict import Verdict
from tests.conftest import ROOT

TRUST = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")


def table(first: str) -> list[list[str]]:
    """The cells of the table whose head begins with `first`."""
    rows = TRUST.split(f"\n| {first} |")[1].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]


def test_the_chances_of_escape_are_the_programs() -> None:
    rows = table("steps")
    assert len(rows) >= 4
    for size, covered, *chances, caught in rows:
        n, k = int(size), int(covered)
        for tampered, said in zip((1, 10, 100), chances, strict=True):
            assert escape.Escape(tampered, escape.chance(n, k, tampered), tampered > n - k).text == said
        assert str(escape.caught_with(n, k, 99)) == caught


def test_the_other_figures_are_right() -> None:
    assert f"{1 - (1 - 0.01) ** 100:.0%}" == "63%" and "a hundred with 1 % each reach 63 %" in TRUST
    one, two, three = (math.comb(2, x) / math.comb(10, x) for x in (1, 2, 3))
    said = f"{one * 100:.0f} % for X = 1, {two * 100:.1f} % for X = 2, {'none' if not three else three} for X = 3"
    assert said in " ".join(TRUST.split())


def test_every_check_status_and_verdict_is_explained() -> None:
    assert [(int(row[0]), row[1]) for row in table("#")] == list(CHECKS.items())
    assert {row[0] for row in table("status")} == {status.name.lower() for status in Status}
    explained = set(re.findall(r"^\* \*\*([A-Z_]+)\*\* \((\d+)\)", TRUST, flags=re.MULTILINE))
    unexplained = {Verdict.MATCH, Verdict.USAGE, Verdict.UNSUPPORTED, Verdict.INTERNAL, Verdict.INTERRUPTED}
    assert explained == {(verdict.name, str(verdict.code)) for verdict in Verdict if verdict not in unexplained}


def test_nothing_is_left_for_another_version() -> None:
    assert "Not in this version" not in TRUST and "not covered yet" not in TRUST


def test_the_commands_that_are_named_exist() -> None:
    from auditkit.cli.main import app

    commands = {info.name for info in app.registered_commands} | {group.name for group in app.registered_groups}
    named = set(re.findall(r"`auditkit ([a-z]+)", TRUST))
    assert named and named <= commands
