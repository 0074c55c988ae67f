"""A headless Chromium for the tests of the coverage page, driven by Playwright; never a browser that it downloads."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ELSEWHERE = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    os.path.expandvars(r"%ProgramFiles%\Google\Chrome\Application\chrome.exe"),
    os.path.expandvars(r"%ProgramFiles(x86)%\Microsoft\Edge\Application\msedge.exe"),
)
# No sandbox: containers lack what it needs, and the only pages are our own.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--no-first-run",
)


def executable() -> str | None:
    """The browser of this machine, if any."""
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    return found or next((path for path in ELSEWHERE if Path(path).is_file()), None)


def launched() -> Iterator[Any]:
    """The body of a fixture: a running browser. Skips without one, which fails in CI (tests/plugins/required.py)."""
    path = executable()
    if path is None:
        pytest.skip("no Chromium or Chrome here; Debian: apt-get install chromium")
    sync = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (extra dev)")
    with sync.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(FLAGS))
        yield browser
        browser.close()
