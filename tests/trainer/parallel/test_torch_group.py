"""What does not need several processes; `test_gloo.py` and `test_gpu.py` have the rest."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from trainer.parallel.torch_group import tells_errors  # noqa: E402


@pytest.mark.parametrize(
    ("version", "tells"),
    [("2.4.1", False), ("2.5.1+cu124", False), ("2.6.0", True), ("2.11.0+cu130", True), ("3.0.0a0+git1", True)],
)
def test_versions_of_torch_that_tell_what_went_wrong(version: str, tells: bool) -> None:
    assert tells_errors(version) is tells
