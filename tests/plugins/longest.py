"""With several workers the files that take longest begin first, so that none of them is left to one worker at the end.

pytest-xdist would order files by their number of tests, and the longest ones have few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

# Those of 40 s of processor time and more.
LONGEST = (
    "tests/kernels/test_sources.py",
    "tests/kernels/test_attention_backward_sm90.py",
    "tests/cli/test_scripts.py",
    "tests/trainer/test_segments.py",
    "tests/kernels/test_attention.py",
    "tests/trainer/test_run.py",
    "tests/explain/test_faults.py",
    "tests/trainer/parallel/test_step.py",
    "tests/kernels/test_exact_dot_sm90.py",
    "tests/kernels/test_attention_forward_sm90.py",
    "tests/audit/test_recheck.py",
    "tests/replay/test_planned.py",
    "tests/formats/test_properties.py",
    "tests/kernels/test_faults.py",
)


def place(files: Sequence[str]) -> dict[str, tuple[int, int]]:
    """What to sort by, by the file of each test: those above in their order, then the others by number of tests."""
    first = {name: number for number, name in enumerate(LONGEST)}
    return {name: (first.get(name, len(first)), -count) for name, count in Counter(files).items()}


def pytest_configure(config: pytest.Config) -> None:
    """Take the order of files from below."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files of a worker; all workers have the same ones."""
    if hasattr(config, "workerinput"):
        places = place([item.nodeid.split("::")[0] for item in items])
        items.sort(key=lambda item: places[item.nodeid.split("::")[0]])
