"""PyTorch's training step of the same model beside ours, where it is installed: in a process of its own, whose errors
are one line here. This process never loads it.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import dataclass, replace

from auditkit.errors import Unavailable

MODULE = "auditkit.measure.torch_side"
SECONDS = 300.0  # compiling a large model takes a minute or two
_LAST_WORDS = 300


@dataclass(frozen=True)
class TorchTimes:
    """Seconds of a micro-batch (forward, backward, gradient added) and of an update, as one kind computes them.

    said: precision and way of compiling, in words
    """

    kind: str
    said: str
    version: str
    micro_batch: float
    update: float
    warm_up: float
    peak_bytes: int | None

    def step(self, micro_batches: int) -> float:
        """Seconds of a step of so many micro-batches, computed from these parts."""
        return micro_batches * self.micro_batch + self.update


@dataclass(frozen=True)
class Asked:
    """What torch is asked for; kind: float32, bfloat16 or autocast; compiled: whole, layer or off."""

    model: str
    micro_batch: int
    kind: str
    compiled: str
    device: str
    threads: int
    repeats: int = 5

    def command(self) -> list[str]:
        """The process that measures it."""
        named = {
            "--model": self.model,
            "--micro-batch": self.micro_batch,
            "--kind": self.kind,
            "--compile": self.compiled,
            "--device": self.device,
            "--threads": self.threads,
            "--repeats": self.repeats,
        }
        return [sys.executable, "-P", "-m", MODULE, *(str(word) for pair in named.items() for word in pair)]


def installed() -> bool:
    """Whether torch can be found, without loading it."""
    return importlib.util.find_spec("torch") is not None


def measure_any(asked: Asked, timeout: float = SECONDS) -> tuple[TorchTimes, str]:
    """As `measure_torch`; where compiling fails, without it, and why. Raises Unavailable where that fails, too."""
    try:
        return measure_torch(asked, timeout), ""
    except Unavailable as error:
        if asked.compiled == "off":
            raise
        return measure_torch(replace(asked, compiled="off"), timeout), f"not compiled: {error.message}"


def measure_torch(asked: Asked, timeout: float = SECONDS) -> TorchTimes:
    """Measure one kind. Raises Unavailable, with torch's last words, where it does not run here."""
    if not installed():
        raise Unavailable("torch is not installed", hint="install torch to see its times beside")
    try:
        done = subprocess.run(
            asked.command(), capture_output=True, encoding="utf-8", errors="replace", timeout=timeout, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"torch was not done after {timeout:.0f} s") from error
    except OSError as error:
        raise Unavailable(f"torch could not be started: {error.strerror or error}") from error
    if done.returncode:
        raise Unavailable(f"torch ended with code {done.returncode}: {_last_line(done.stderr)}")
    return _parsed(done.stdout)


def _parsed(text: str) -> TorchTimes:
    try:
        found = json.loads(text.strip().splitlines()[-1])
        return TorchTimes(
            kind=str(found["kind"]),
            said=str(found["said"]),
            version=str(found["torch"]),
            micro_batch=float(found["micro_batch"]),
            update=float(found["update"]),
            warm_up=float(found["warm_up"]),
            peak_bytes=None if found["peak_bytes"] is None else int(found["peak_bytes"]),
        )
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise Unavailable(f"torch said no times: {text[-_LAST_WORDS:]!r}") from error


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_LAST_WORDS] if lines else "no message"
