"""A cache folder of the tests' own: what a user has compiled or fetched must not decide a test, nor a test change it.

With C ops in it "cpu" would mean other code for every test that follows, so nothing may compile them there.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pytest

from auditkit.native.compile import FOLDER
from auditkit.replay.backend import kernel_cache
from auditkit.store.cache import VARIABLE

OWNER = "AUDITKIT_TESTS_CACHE_OF"  # the process that made the folder, so that its workers use it too


def pytest_configure() -> None:
    """Make the folder, once for all processes of a run."""
    if OWNER not in os.environ:
        os.environ[VARIABLE] = tempfile.mkdtemp(prefix="auditkit-tests-")
        os.environ[OWNER] = str(os.getpid())


def _is_owner() -> bool:
    return os.environ.get(OWNER) == str(os.getpid())


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run in which a test has compiled C ops for all others."""
    if _is_owner() and (kernel_cache() / FOLDER).exists():
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None:
            reporter.write_line(f"a test compiled C ops into {kernel_cache()}: give it a cache of its own", red=True)


def pytest_unconfigure() -> None:
    """Remove the folder."""
    if _is_owner():
        shutil.rmtree(Path(os.environ[VARIABLE]), ignore_errors=True)
        del os.environ[VARIABLE], os.environ[OWNER]
