"""Shared by all tests: no network, no skip in CI, a cache of their own, the same Hypothesis examples every time."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

from hypothesis import HealthCheck, settings

pytest_plugins = [f"tests.plugins.{name}" for name in ("required", "cache", "longest", "wide", "known_answers")]

ROOT = Path(__file__).resolve().parent.parent
GUARD = ROOT / "tests" / "guard"

# This process, then every Python that a test starts. By path: some systems bring a sitecustomize of their own.
runpy.run_path(str(GUARD / "sitecustomize.py"))
os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (str(GUARD), os.environ.get("PYTHONPATH", "")) if p)

# A failure must be the same for everybody; slow machines must not fail for being slow.
settings.register_profile("same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")
