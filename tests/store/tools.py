"""What the store's tests share: a progress that remembers, a clock that does not wait, bytes that do not repeat."""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path

from auditkit.formats.digest import content_digest


class Story:
    """Progress that is written down and must make sense: never below 0, never above the total."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.tasks: list[tuple[str, int]] = []
        self.done = self.total = 0
        self._lock = threading.Lock()

    def start(self, label: str, total: int, unit: str = "bytes") -> None:
        """A task begins."""
        assert unit == "bytes" and total >= 0
        self.tasks.append((label, total))
        self.done, self.total = 0, total

    def advance(self, n: int) -> None:
        """Count."""
        with self._lock:
            self.done += n
            assert 0 <= self.done <= self.total, f"{self.done} of {self.total}"

    def finish(self) -> None:
        """A task ends."""

    def note(self, text: str) -> None:
        """Remember."""
        self.notes.append(text)

    @property
    def text(self) -> str:
        """All notes."""
        return "\n".join(self.notes)


class FakeClock:
    """Waits take no time and are written down; `tick` seconds pass at each look at the clock."""

    def __init__(self, tick: float = 0.0) -> None:
        self.tick, self.time, self.start = tick, 0.0, time.time()
        self.waits: list[float] = []

    def now(self) -> float:
        """Seconds."""
        self.time += self.tick
        return self.time

    def wall(self) -> float:
        """Unix time."""
        return self.start + self.time

    def sleep(self, seconds: float) -> None:
        """Pass the time."""
        self.waits.append(seconds)
        self.time += seconds


def blob(size: int, seed: str = "") -> bytes:
    """`size` bytes that look random and depend on `seed` only."""
    return hashlib.shake_128(f"{seed}/{size}".encode()).digest(size)


def named(data: bytes) -> tuple[int, str]:
    """Size and digest, as a manifest names them."""
    return len(data), content_digest(data)


def cached(cache: Path) -> list[str]:
    """The names of finished objects in a cache."""
    return sorted(p.name for p in (cache / "blake3").glob("*/*") if not p.name.endswith(".part"))


def parts(cache: Path) -> list[Path]:
    """The partial files in a cache."""
    return sorted((cache / "blake3").glob("*/*.part"))


def leave_part(cache: Path, digest: str, data: bytes, name: str = "0badc0de-1-000000000000") -> Path:
    """Leave a partial file as a killed process of another machine would."""
    folder = cache / "blake3" / digest[:2]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{digest}.{name}.part"
    path.write_bytes(data)
    return path
