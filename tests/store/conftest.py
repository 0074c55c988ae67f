"""Shared by the store's tests: no proxies, no cache of the user, short waits, a clock that does not wait."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from auditkit.store import STORE_LIMITS, Source, Store, StoreLimits, locate
from tests.store.tools import FakeClock, Story

QUICK = dataclasses.replace(
    STORE_LIMITS,
    connect_seconds=5.0,
    silence_seconds=1.0,
    answer_seconds=1.5,
    backoff_first_seconds=0.5,
    gain_bytes=1000,
)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Neither the user's proxies nor the user's cache."""
    for kind in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{kind}_proxy", raising=False)
        monkeypatch.delenv(f"{kind}_proxy".upper(), raising=False)
    monkeypatch.setenv("AUDITKIT_CACHE", str(tmp_path / "cache"))


@pytest.fixture(autouse=True)
def no_thread_stays() -> Iterator[None]:
    """No watch or pool of ours outlives a test."""
    yield
    left = [t.name for t in threading.enumerate() if t.name.startswith("unpack")]
    assert not left


@pytest.fixture
def limits() -> StoreLimits:
    """The real limits, but for shorter time-outs."""
    return QUICK


@pytest.fixture
def story() -> Story:
    """Progress that is written down."""
    return Story()


@pytest.fixture
def clock() -> FakeClock:
    """A clock whose waits take no time and are written down."""
    return FakeClock()


class Shop:
    """Makes stores that share limits, progress, clock and cache."""

    def __init__(self, cache: Path, limits: StoreLimits, story: Story, clock: FakeClock) -> None:
        self.cache, self.limits, self.story, self.clock = cache, limits, story, clock
        self._open: list[Store] = []

    def store(
        self, run: str | Source, *mirrors: str, offline: bool = False, limits: StoreLimits | None = None
    ) -> Store:
        """A store for a run's address and mirrors."""
        source = locate(run) if isinstance(run, str) else run
        store = Store(
            source,
            cache_dir=self.cache,
            offline=offline,
            limits=limits or self.limits,
            progress=self.story,
            clock=self.clock,
        )
        store.use_mirrors(mirrors)
        self._open.append(store)
        return store

    def close(self) -> None:
        """Close all."""
        for store in self._open:
            store.close()


@pytest.fixture
def shop(tmp_path: Path, limits: StoreLimits, story: Story, clock: FakeClock) -> Iterator[Shop]:
    """Where stores come from."""
    shop = Shop(tmp_path / "cache", limits, story, clock)
    yield shop
    shop.close()
