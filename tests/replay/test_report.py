"""Reports: the worst verdict wins, and nothing verified is never a match."""

from __future__ import annotations

import json

import pytest

from auditkit.replay.report import Report, StepReport, overall
from auditkit.verdict import Verdict


def steps(**verdicts: str) -> list[StepReport]:
    return [StepReport(int(name[1:]), Verdict[verdict], 0) for name, verdict in verdicts.items()]


@pytest.mark.parametrize(
    ("found", "wanted", "verdict"),
    [
        (steps(s1="MATCH", s2="MATCH"), (1, 2), Verdict.MATCH),
        (steps(s1="MATCH"), (1, 2), Verdict.INCOMPLETE),
        ([], (), Verdict.INCOMPLETE),
        ([], (1,), Verdict.INCOMPLETE),
        (steps(s1="MATCH", s2="MISMATCH", s3="UNAVAILABLE"), (1, 2, 3), Verdict.MISMATCH),
        (steps(s1="MATCH", s2="UNAVAILABLE"), (1, 2), Verdict.UNAVAILABLE),
        (steps(s1="MISMATCH", s2="MACHINE_FAULT"), (1, 2), Verdict.MACHINE_FAULT),
        (steps(s1="MATCH", s0="MISMATCH"), (1,), Verdict.MISMATCH),
    ],
)
def test_overall(found: list[StepReport], wanted: tuple[int, ...], verdict: Verdict) -> None:
    """Case 57: several steps, and the worst class decides."""
    assert overall(found, wanted) is verdict


def test_json_is_one_ascii_line() -> None:
    report = Report(run="l\u00e4uft\n", selection="step 1", verdict=Verdict.UNAVAILABLE)
    text = report.to_json()
    assert text.isascii()
    assert "\n" not in text
    assert json.loads(text)["run"] == "l\u00e4uft\n"
