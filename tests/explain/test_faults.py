"""Planted faults: each is trained, published and signed, and explain names its cause or its first quantity."""

from __future__ import annotations

from pathlib import Path

import pytest

from auditkit.replay.backend import choose
from auditkit.verdict import Verdict
from tests.explain import planting
from tests.explain.faults import Fault
from tests.explain.make_table import BEGIN, END, HEAD, PAGE, row
from tests.explain.planted import FAULTS

TABLE = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
NAMES = [f"{fault.name}{', state hidden' if fault.hidden else ''}" for fault in FAULTS]


@pytest.mark.parametrize("fault", FAULTS, ids=NAMES)
def test_the_cause_or_the_first_quantity_is_named(fault: Fault, prepared: Path, tmp_path: Path) -> None:
    found = planting.explained(prepared, fault, tmp_path, choose("numpy", 1))
    assert found.verdict is Verdict.MISMATCH
    assert row(fault, found) in TABLE, "python -m tests.explain.make_table, and look at what changed"
    assert planting.right(fault, found), found.to_dict()


def test_the_table_has_a_row_for_each_fault_and_each_is_right() -> None:
    rows = TABLE.removeprefix("\n" + HEAD).splitlines()
    assert len(rows) == len(FAULTS) >= 20
    assert all(line.endswith("| yes |") for line in rows)


def test_an_honest_run_has_nothing_to_explain(prepared: Path, tmp_path: Path) -> None:
    from contextlib import nullcontext

    honest = Fault("none", lambda now: nullcontext(), "", [])
    found = planting.explained(prepared, honest, tmp_path, choose("numpy", 1))
    assert (found.verdict, found.step, found.causes) == (Verdict.MATCH, None, ())
    assert found.message == "the step matches: nothing to explain"
