"""Kernels that the cache lacks, compiled side by side before the first of them is needed.

NVRTC compiles one source at a time in a process, so every worker is one: `python -m auditkit.kernels.ahead ARCHITECTURE
CACHE` compiles each op whose name it reads into the cache, and answers with the name. Whatever goes wrong here is met
again, and told, where the kernel is needed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from auditkit.kernels.compile import Nvrtc, cubin, is_kept
from auditkit.store.lock import in_turn
from auditkit.store.progress import Progress, SystemClock

_ROOT = Path(__file__).resolve().parent.parent.parent  # where this package was found: it need not be installed
WORKERS = 4  # processes, at most: the longest source takes a quarter of the time of all, or more
WAIT = 300.0  # seconds for another process that compiles the same
# What a self-test or a step may launch, what takes longest first.
OPS = (
    "exact_dot",
    "attention",
    "rms_norm",
    "quantise",
    "f32_dot",
    "blake3",
    "exact_sum",
    "cross_entropy",
    "swiglu",
    "layout",
    "embedding",
    "f32_attention",
    "rope",
    "adamw",
    "global_norm",
    "checksum",
)
OPS_SM90 = ("exact_dot_sm90", "attention_backward_sm90", "attention_forward_sm90")


def compile_ahead(architecture: str, version: str, cache: Path, processors: int, progress: Progress) -> None:
    """Compile what the cache lacks of all that an architecture may need. version: of NVRTC, which the cache names.

    Of several processes that find the same cache empty one compiles, and the others wait for it.
    """
    ops = (OPS_SM90 if architecture == "90" else ()) + OPS

    def missing() -> list[str]:
        return [op for op in ops if not is_kept(op, architecture, version, cache)]

    if not missing() or not _is_usable(cache):
        return
    waits = partial(progress.note, "another process compiles the kernels; waiting for it")
    with in_turn(cache, WAIT, SystemClock(), waits):
        left = missing()
        if not left:
            return
        progress.start(f"compiling kernels for sm_{architecture}, kept in {cache}", len(left), "sources")
        try:
            _compile(architecture, cache, left, min(WORKERS, processors, len(left)), progress)
        finally:
            progress.finish()


def _is_usable(cache: Path) -> bool:
    with contextlib.suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        return os.access(cache, os.R_OK | os.W_OK | os.X_OK)
    return False


def _compile(architecture: str, cache: Path, ops: Sequence[str], workers: int, progress: Progress) -> None:
    left, lock = iter(ops), threading.Lock()
    with contextlib.ExitStack() as ending:
        threads = []
        for _ in range(workers):
            with contextlib.suppress(OSError, RuntimeError):  # a process or a thread that cannot be started
                process = ending.enter_context(_worker(architecture, cache))
                thread = threading.Thread(target=_feed, args=(process, left, lock, progress), daemon=True)
                thread.start()
                threads.append(thread)
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def _worker(architecture: str, cache: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that compiles; ended when it is no longer needed, busy or not."""
    command = [sys.executable, "-P", "-m", "auditkit.kernels.ahead", architecture, str(cache)]
    pipe, paths = subprocess.PIPE, [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, encoding="utf-8", env=environment
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def _feed(process: subprocess.Popen[str], left: Iterator[str], lock: threading.Lock, progress: Progress) -> None:
    """Give a worker one op after the other, until there are no more or it does not answer."""
    assert process.stdin is not None and process.stdout is not None
    with contextlib.suppress(OSError, ValueError):
        while True:
            with lock:
                op = next(left, "")
            if not op:
                return
            process.stdin.write(f"{op}\n")
            process.stdin.flush()
            if process.stdout.readline() != f"{op}\n":
                return
            progress.advance(1)


def main() -> None:
    """Compile what is asked for; end with an error at the first source that cannot be compiled."""
    architecture, cache = sys.argv[1:]
    compiler = Nvrtc.load()
    for line in sys.stdin:
        cubin(line.strip(), architecture, compiler, Path(cache))
        sys.stdout.write(line)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
