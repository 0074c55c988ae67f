"""Under CI=true a skipped test fails, unless it is marked `@pytest.mark.optional(reason)`.

A test that is skipped because a tool is missing proves nothing, and a green run would hide that.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


def in_ci() -> bool:
    """Whether this run is a CI run: the variable CI is set to something other than nothing, 0 or false."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    skipped = report.longrepr
    return str(skipped[2]) if isinstance(skipped, tuple) else str(skipped)


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    report.outcome = "failed"
    report.longrepr = (
        f"a required test was skipped in CI: {_reason(report)}\n"
        "make it run here, or mark it @pytest.mark.optional(reason) (a whole module cannot be optional)"
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of a required test into a failure."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and in_ci() and not item.get_closest_marker("optional"):
        _refuse(report)
    return report


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole module into a failure."""
    report = yield
    if report.skipped and in_ci():
        _refuse(report)
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse an `optional` marker without a reason."""
    for item in items:
        for marker in item.iter_markers("optional"):
            if not marker.args or not str(marker.args[0]).strip():
                raise pytest.UsageError(f"{item.nodeid}: optional needs a reason")
