"""With several workers the files that take longest begin first, so that none of them is left to one worker at the end.

pytest-xdist would order files by their number of tests, and the longest ones have few.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

# By what a sample of their tests took.
LONGEST = (
    "tests/kernels/test_sources.py",
    "tests/trainer/parallel/test_run.py",
    "tests/cli/test_scripts.py",
    "tests/kernels/test_attention_backward_sm90.py",
    "tests/trainer/test_segments.py",
    "tests/trainer/parallel/test_gloo.py",
    "tests/compare/test_training.py",
    "tests/kernels/test_attention.py",
    "tests/trainer/parallel/test_faults.py",
    "tests/replay/test_memory.py",
    "tests/replay/test_planned.py",
    "tests/kernels/test_backend.py",
    "tests/faults/test_campaign.py",
    "tests/registry/test_crash.py",
    "tests/kernels/test_faults.py",
    "tests/kernels/test_exact_dot_planes.py",
    "tests/kernels/test_exact_dot_choice.py",
    "tests/kernels/test_exact_dot_sm90.py",
    "tests/trainer/test_run.py",
    "tests/registry/test_server.py",
    "tests/trainer/live/test_kills.py",
    "tests/trainer/parallel/test_live.py",
    "tests/measure/test_bench.py",
    "tests/kernels/test_plan_memory.py",
    "tests/kernels/test_planned.py",
    "tests/story/test_story.py",
    "tests/kernels/test_exact_dot.py",
    "tests/trainer/parallel/test_launchers.py",
    "tests/trainer/live/test_publisher.py",
    "tests/explain/test_faults.py",
    "tests/audit/test_segments.py",
    "tests/kernels/test_main_memory.py",
    "tests/fuzz/test_runs.py",
    "tests/trainer/test_change.py",
    "tests/registry/test_commands.py",
    "tests/audit/test_recheck.py",
    "tests/replay/test_bundled.py",
    "tests/replay/test_steps.py",
    "tests/trainer/parallel/test_step.py",
    "tests/cli/test_signing.py",
    "tests/explain/test_page.py",
    "tests/trainer/test_skips.py",
    "tests/trainer/parallel/test_nccl_matrix.py",
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
