"""The command line: how fast it answers, and what a verification of the bundled run takes."""

from __future__ import annotations

import statistics

from bench.process import Measured, python
from bench.rows import Row

HELP_SECONDS = 0.3
RUN, STEP = "manifests/sotu-tiny", "500"
TRIES = 9


def rows() -> list[Row]:
    """Start-up of `auditkit --help`, then time and peak memory of `auditkit verify`."""
    helped = [auditkit("--help") for _ in range(TRIES)]
    start = statistics.median(run.seconds for run in helped)
    verified = auditkit("verify", "--run", RUN, "--step", STEP)
    found = [
        Row("`auditkit --help`", start, "s", f"median of {TRIES}", f"under {HELP_SECONDS} s", start < HELP_SECONDS),
        Row(f"`auditkit verify --step {STEP}`, bundled run", verified.seconds, "s", "whole command"),
    ]
    if verified.peak_bytes is not None:
        found.append(Row("its peak memory", verified.peak_bytes / 1e6, "MB"))
    return found


def auditkit(*arguments: str) -> Measured:
    """Run the command; RuntimeError with its last words when it fails."""
    run = python("-c", "from auditkit.cli.main import main; main()", *arguments)
    if run.code != 0:
        raise RuntimeError(f"auditkit {' '.join(arguments)} ended with code {run.code}: {run.stderr[-500:]}")
    return run
