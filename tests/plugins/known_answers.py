"""Known answers are remembered where a verification is what a test begins with, and not what it is about.

The self-test before each verification computes the known answers of every op again, which takes longer than a step of
the tiny runs. In the folders below those of the reference's ops are taken from the last time, as long as no function of
auditkit.numerics has been replaced since; the arithmetic of each thread is tested every time, and a program that a test
starts tests all. Whether a self-test finds what is wrong is tested elsewhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FOLDERS = ("audit", "cli", "explain", "registry", "replay", "store", "story", "trainer", "trust")
TESTS = Path(__file__).resolve().parent.parent


class Remembered:
    """A check of known answers, left out where it has passed with the same functions; they are held, so none is new."""

    def __init__(self, check: Callable[..., None]) -> None:
        self.check = check
        self.active = False
        self.calls = 0  # that computed
        self._passed: dict[tuple[Any, ...], list[Any]] = {}

    def __call__(self, *arguments: Any, **more: Any) -> None:
        if not self.active or more or not _is_reference(arguments):
            self.calls += 1
            return self.check(*arguments, **more)
        functions = list(_functions())
        key = (*arguments, *map(id, functions))
        if key not in self._passed:
            self.calls += 1
            self.check(*arguments)
            self._passed[key] = functions


def _is_reference(arguments: tuple[Any, ...]) -> bool:
    from auditkit.numerics import reference

    return reference in arguments and all(isinstance(x, str) or x is reference or x is np.asarray for x in arguments)


def _functions() -> Iterator[Any]:
    """All that the modules of the arithmetic have, and their classes."""
    for name in sorted(name for name in sys.modules if name.startswith("auditkit.numerics")):
        for value in list(vars(sys.modules[name]).values()):
            yield value
            if isinstance(value, type):
                yield from list(vars(value).values())


REMEMBERED: list[Remembered] = []


def pytest_configure() -> None:
    """Put them in the place of the checks."""
    from auditkit.numerics import self_test

    if not REMEMBERED:
        for name in ("check_known_answers", "check_wide_answer"):
            REMEMBERED.append(Remembered(getattr(self_test, name)))
            setattr(self_test, name, REMEMBERED[-1])


def applies(path: Path) -> bool:
    """Whether the tests of a file begin with verifications."""
    return path.is_relative_to(TESTS) and path.relative_to(TESTS).parts[0] in FOLDERS


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[Any]:
    """Remember for the time of a test."""
    for check in REMEMBERED:
        check.active = applies(item.path)
    try:
        return (yield)
    finally:
        for check in REMEMBERED:
            check.active = False
