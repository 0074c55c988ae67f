"""Whether this machine is fit to verify: its arithmetic, versions, memory, disk and cache."""

from __future__ import annotations

import importlib.metadata
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from auditkit.errors import AuditkitError, Unsupported
from auditkit.kernels.device import Device
from auditkit.native.ops import load
from auditkit.replay import machine
from auditkit.replay.backend import choose, kernel_cache
from auditkit.store.cache import Cache
from auditkit.store.gc import Usage, usage
from auditkit.store.limits import STORE_LIMITS
from auditkit.verdict import Verdict, worst
from auditkit.version import version

HINT = (
    "local runs and what the cache has can be verified, nothing can be downloaded: choose another folder with "
    "--cache-dir or AUDITKIT_CACHE, or make room"
)
PACKAGES = ("numpy", "blake3", "zstandard", "httpx", "threadpoolctl", "tokenizers")


@dataclass(frozen=True)
class Health:
    """What was found. `self_test` says "passed" or why not; `problems` are (verdict, message, hint), `warnings`, with
    which something still works, (message, hint).

    device: what `--device auto` takes. cuda: card, driver, compiler, and where compiled kernels are kept; or why none.
    native: the ops in C, or how to come by them.
    """

    versions: dict[str, str]
    system: str
    threads: int
    device: str
    cuda: str
    native: str
    self_test: str
    self_test_seconds: float
    total_memory: int | None
    cache: str
    cache_usage: Usage | None
    free_disk: int | None
    problems: tuple[tuple[Verdict, str, str], ...]
    warnings: tuple[tuple[str, str], ...]

    @property
    def verdict(self) -> Verdict:
        """MATCH where nothing is wrong, else the worst problem's."""
        return worst(verdict for verdict, _, _ in self.problems) if self.problems else Verdict.MATCH

    def to_dict(self) -> dict[str, object]:
        """The findings as JSON values."""
        return {
            "format": "auditkit/doctor/v1",
            "verdict": self.verdict.name,
            "code": self.verdict.code,
            "versions": self.versions,
            "system": self.system,
            "threads": self.threads,
            "device": self.device,
            "cuda": self.cuda,
            "native": self.native,
            "self_test": self.self_test,
            "self_test_seconds": round(self.self_test_seconds, 3),
            "total_memory": self.total_memory,
            "cache": self.cache,
            "cache_usage": vars(self.cache_usage) if self.cache_usage else None,
            "free_disk": self.free_disk,
            "warnings": [{"message": message, "hint": hint} for message, hint in self.warnings],
            "problems": [{"verdict": v.name, "message": message, "hint": hint} for v, message, hint in self.problems],
        }


def examine(*, threads: int | None = None, cache_dir: Path | None = None) -> Health:
    """Run the self-test in every worker, look at versions, memory, disk and cache. UsageError for `threads`."""
    backend = choose("auto", threads)
    problems: list[tuple[Verdict, str, str]] = []
    began = time.perf_counter()
    try:
        backend.self_test()
    except AuditkitError as error:
        problems.append((error.verdict, error.message, error.hint))
    seconds = time.perf_counter() - began
    self_test = problems[0][1] if problems else "passed"
    cache: Cache | None = None
    try:
        cache = Cache.at(cache_dir, STORE_LIMITS)
    except AuditkitError as error:
        problems.append((error.verdict, error.message, error.hint))
    return Health(
        versions=_versions(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        threads=backend.threads,
        device=f"{backend.device}, {backend.chosen}",
        cuda=_cuda(),
        native=_native(),
        self_test=self_test,
        self_test_seconds=seconds,
        total_memory=machine.total_memory(),
        cache=str(cache.folder) if cache else "none",
        cache_usage=usage(cache) if cache else None,
        free_disk=machine.free_disk(cache.folder) if cache else None,
        problems=tuple(problems),
        warnings=tuple(_unwritable(cache)) if cache else (),
    )


def _unwritable(cache: Cache) -> Iterator[tuple[str, str]]:
    """Why nothing can be downloaded into the cache, if so: that ends no audit of what is here already."""
    try:
        cache.check_writable()
    except Unsupported as error:
        yield error.message, HINT


def _cuda() -> str:
    try:
        return f"{Device().describe()}; kernels kept in {kernel_cache()}"
    except AuditkitError as error:
        return error.message


def _native() -> str:
    """What there is of the ops in C: the compiled library, or how to come by it."""
    try:
        found = load(kernel_cache(), compile_it=False)
    except AuditkitError as error:
        return error.message
    if found is None:
        return "not compiled, NumPy computes; --device native compiles them"
    return f"library {found.origin}, kept in {kernel_cache()}"


def _versions() -> dict[str, str]:
    found = {"auditkit": version(), "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found
