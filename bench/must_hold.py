"""What must hold on an H200 for the model of 1.6 billion parameters, all in one command; the results come last.

    python -m bench.must_hold [--micro-batch N] [--seconds 480] [--json FILE]
    python -m bench.must_hold --only 16GiB     # that plan's micro-batch against one with all of the card's memory

Each measurement is a process of its own (bench.whole_step), and none is begun that the time left would not suffice for.
The bars: at most twice torch bfloat16's step (aim 1.7) and a third of torch float32's, at equal micro-batches; a whole
step of 4.72 million tokens with all digests in four minutes; the reference's bits, and the same from other kernels; at
most a tenth slower in 16 GiB and twice as slow in 8; the digest of the state under 2 % of a step.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.process import ROOT
from bench.rows import Row

BFLOAT16, AIM, FLOAT32, WHOLE_SECONDS, DIGEST = 2.0, 1.7, 3.0, 240.0, 0.02
MEMORY = {"16GiB": 1.1, "8GiB": 2.0}  # times as long as with all of the card's memory
Found = Mapping[str, dict[str, Any]]


@dataclass(frozen=True)
class Measurement:
    """One process: its name, the arguments of bench.whole_step, and seconds that it is likely to take."""

    name: str
    arguments: tuple[str, ...]
    seconds: float


MEASUREMENTS = (
    Measurement("parts", ("rates", "check", "parts"), 60.0),
    Measurement("plain", ("parts", "--rounds", "8"), 40.0),
    Measurement("torch", ("torch", "--torch", "bfloat16:whole", "--torch", "float32:layer"), 120.0),
    Measurement("whole", ("--whole",), 250.0),
    *(Measurement(memory, ("parts", "--rounds", "3", "--memory", memory), 70.0) for memory in MEMORY),
)


def main() -> int:
    """Measure all, print the rows; exit code 1 when a bar was missed or a measurement is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="1.6b")
    parser.add_argument("--micro-batch", type=int)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--plain", action="store_true", help="all in memory, whatever the planner thinks of it")
    parser.add_argument("--seconds", type=float, default=480.0, help="for everything")
    parser.add_argument("--only", action="append", choices=[one.name for one in MEASUREMENTS], help="repeatable")
    parser.add_argument("--json", type=Path, help="a file for all that was found")
    asked = parser.parse_args()
    until, found, wanted = time.monotonic() + asked.seconds, {}, wanted_of(asked.only)
    common = ["--model", asked.model, "--device", asked.device]
    common += ["--plain"] if asked.plain else []
    common += ["--micro-batch", str(asked.micro_batch)] if asked.micro_batch else []
    for one in MEASUREMENTS:
        if one.name in wanted:
            found[one.name] = measured(one, common, until)
            if asked.json:
                asked.json.write_text(json.dumps(found, indent=1), encoding="utf-8", newline="\n")
    made = [*rows(found), *against_plain(found)]
    print("\nRESULTS")
    for row in made:
        passes = {True: "ok", False: "MISSED", None: ""}[row.passes]
        print(f"{row.name:44} {row.value:12.4g} {row.unit:8} {passes:7} {row.bar}  {row.note}")
    missing = [name for name in wanted if "failed" not in found.get(name, {})]
    print(f"not measured: {', '.join(missing) or 'nothing'}", flush=True)
    return 1 if missing or any(row.passes is False for row in made) else 0


def wanted_of(only: Sequence[str] | None) -> list[str]:
    """The measurements to take, by default all; a plan alone brings a short one with all of the memory."""
    if only is None:
        return [one.name for one in MEASUREMENTS if one.name != "plain"]
    compared = "parts" not in only and any(name in MEMORY for name in only)
    return [one.name for one in MEASUREMENTS if one.name in only or (one.name == "plain" and compared)]


def measured(one: Measurement, common: list[str], until: float) -> dict[str, Any]:
    """What a measurement found; {} where it was not begun, was too slow, or wrote nothing."""
    left = until - time.monotonic()
    if left < one.seconds:
        print(f"=== {one.name}: not begun, {left:.0f} s are left and it needs about {one.seconds:.0f}", flush=True)
        return {}
    print(f"=== {one.name}, {left:.0f} s left", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "found.json"
        given = [word for word in common if word != "--plain" or "--memory" not in one.arguments]
        command = [sys.executable, "-m", "bench.whole_step", *given, *one.arguments, "--json", str(file)]
        try:
            subprocess.run(command, cwd=ROOT, timeout=left, check=False)
        except subprocess.TimeoutExpired:
            print(f"=== {one.name}: stopped, the time is over", flush=True)
        text = file.read_text(encoding="utf-8") if file.exists() else "{}"
    value: dict[str, Any] = json.loads(text)
    return value


def rows(found: Found) -> Iterator[Row]:
    """What was found against the bars; rows that follow from a missing measurement are left out."""
    times = found.get("parts", {}).get("times")
    for one in found.get("parts", {}).get("check", []):
        yield Row(f"bits: {one['what']}", float(one["same"]), "", one["said"], "the same", bool(one["same"]))
    if times:
        yield Row("step, computed from parts", times["step"], "s", f"micro-batch {1e3 * times['micro_batch']:.2f} ms")
        share = times["digest"] / times["step"]
        yield Row("digest of the state", 100 * share, "%", "of the step", f"under {DIGEST:.0%}", share < DIGEST)
        yield from beside_torch(found, times["step"])
    whole = found.get("whole", {}).get("whole")
    if whole:
        seconds = whole["seconds"]
        note = f"{whole['joules']:,.0f} J" if whole["joules"] else ""
        yield Row("whole step", seconds, "s", note, f"at most {WHOLE_SECONDS:.0f} s", seconds <= WHOLE_SECONDS)
        if times:
            yield Row("whole step / computed from parts", seconds / times["step"], "")
    if times:
        for memory, bar in MEMORY.items():
            yield from within(memory, bar, found.get(memory, {}), times["step"])


def beside_torch(found: Found, step: float) -> Iterator[Row]:
    """Our step over torch's at equal micro-batches, both computed from their parts."""
    for one in found.get("torch", {}).get("torch", []):
        theirs = (
            one["micro_batch"] * found["torch"]["batch"]["sequences"] / found["torch"]["batch"]["micro_batch_sequences"]
            + one["update"]
        )
        yield Row(f"torch {one['kind']}", theirs, "s", one["said"])
        if one["kind"] == "bfloat16":
            bar = f"at most {BFLOAT16:g}, aim {AIM:g}"
            yield Row("ours / torch bfloat16", step / theirs, "times", "", bar, step / theirs <= BFLOAT16)
        if one["kind"] == "float32":
            yield Row(
                "torch float32 / ours", theirs / step, "times", "", f"at least {FLOAT32:g}", theirs / step >= FLOAT32
            )


def against_plain(found: Found) -> Iterator[Row]:
    """Plans that were measured alone: a micro-batch against one with all of the card's memory."""
    plain = found.get("plain", {}).get("times")
    if not plain:
        return
    yield Row("micro-batch, all in memory", 1e3 * plain["micro_batch"], "ms", "")
    for memory, bar in MEMORY.items():
        times = found.get(memory, {}).get("times")
        if times:
            ratio, most = times["micro_batch"] / plain["micro_batch"], int(memory.removesuffix("GiB")) << 30
            predicted = f"predicted {found[memory].get('predicted') or 0:.3f}"
            yield Row(f"{memory}: micro-batch", 1e3 * times["micro_batch"], "ms", f"of {times['counted']}")
            yield Row(f"{memory}: micro-batch", ratio, "times", predicted, f"at most {bar:g}", ratio <= bar)
            held = times["peak_bytes"] or 0
            yield Row(f"{memory}: held by the pool", held / 2**30, "GiB", "", f"at most {memory}", held <= most)
            yield Row(
                f"{memory}: in use on the card", (times.get("in_use") or 0) / 2**30, "GiB", "context and kernels too"
            )


def within(memory: str, bar: float, found: dict[str, Any], step: float) -> Iterator[Row]:
    """A step in less memory: how much longer, and how much the pool held."""
    times = found.get("times")
    if not times:
        return
    ratio, most = times["step"] / step, int(memory.removesuffix("GiB")) << 30
    yield Row(f"{memory}: step", ratio, "times", found["plan"], f"at most {bar:g}", ratio <= bar)
    held = times["peak_bytes"] or 0
    yield Row(f"{memory}: held by the pool", held / 2**30, "GiB", "", f"at most {memory}", held <= most)


if __name__ == "__main__":
    sys.exit(main())
