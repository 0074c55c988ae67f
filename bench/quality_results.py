"""Results of `bench.quality`: a file of one run after the other, and what they say together.

Both sides of a pair begin with the same weights and see the same windows in the same order, so a pair's difference is
free of what a seed makes easy or hard. What is left: two trajectories of one noisy process part from the first rounding
on (training noise), and the held-out windows are a sample (evaluation noise, estimated here within each pair).
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

AUDITKIT, BASE, FLOAT32 = "auditkit fx14/fx21", "torch bfloat16", "torch float32"
SIDES = (BASE, FLOAT32, AUDITKIT)
MARGIN = 0.01  # auditkit's mean loss may exceed bfloat16's by this much
BLOCK = 16  # neighbouring windows are of one document: their mean counts as one observation

# Quantiles of Student's t, one-sided 95 %, for 1, 2, .. degrees of freedom; the last one serves for more.
_T95 = (
    *(6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833, 1.812, 1.796, 1.782, 1.771, 1.761, 1.753),
    *(1.746, 1.740, 1.734, 1.729, 1.725, 1.721, 1.717, 1.714, 1.711, 1.708, 1.706, 1.703, 1.701, 1.699, 1.697),
)


@dataclass(frozen=True)
class Run:
    """One training: the mean loss of every held-out window, in nats, in the order of the corpus."""

    seed: int
    side: str
    seconds: float
    device: str
    losses: list[float]


@dataclass
class Results:
    """Runs of the same settings (data, steps, recipe); those of other settings are refused."""

    settings: dict[str, Any]
    runs: list[Run] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path) -> Results:
        """The results of a file that `save` wrote."""
        value = json.loads(path.read_text(encoding="utf-8"))
        return cls(value["settings"], [Run(**run) for run in value["runs"]])

    def save(self, path: Path) -> None:
        """Write the file whole: a killed command leaves the one before."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(asdict(self)) + "\n", encoding="utf-8", newline="\n")
        os.replace(part, path)

    def has(self, seed: int, side: str) -> bool:
        """Whether this run is done."""
        return any((run.seed, run.side) == (seed, side) for run in self.runs)

    def losses(self, side: str) -> dict[int, np.ndarray]:
        """seed -> losses of the windows (W,)."""
        return {run.seed: np.array(run.losses) for run in self.runs if run.side == side}


def merged(parts: Iterable[Results]) -> Results:
    """All runs of several files. ValueError: their settings differ, or a run is in two of them."""
    first, *others = parts
    found = Results(first.settings, list(first.runs))
    for part in others:
        if part.settings != found.settings:
            raise ValueError(f"results of other settings: {part.settings} and {found.settings}")
        for run in part.runs:
            if found.has(run.seed, run.side):
                raise ValueError(f"seed {run.seed} of {run.side} is there twice")
            found.runs.append(run)
    return found


@dataclass(frozen=True)
class Pair:
    """Mean losses of one seed, and the evaluation error of their difference."""

    seed: int
    base: float
    other: float
    evaluation: float

    @property
    def difference(self) -> float:
        """other - base."""
        return self.other - self.base


def pairs(results: Results, other: str = AUDITKIT, base: str = BASE) -> list[Pair]:
    """The seeds that both sides have finished, ascending."""
    left, right = results.losses(base), results.losses(other)
    found = []
    for seed in sorted(left.keys() & right.keys()):
        difference = right[seed] - left[seed]
        blocks = [float(np.mean(part)) for part in np.array_split(difference, max(2, len(difference) // BLOCK))]
        error = float(np.std(blocks, ddof=1)) / math.sqrt(len(blocks))
        found.append(Pair(seed, float(np.mean(left[seed])), float(np.mean(right[seed])), error))
    return found


@dataclass(frozen=True)
class Estimate:
    """The mean paired difference of n seeds; `spread` is the standard deviation of a difference, `error` of the mean.

    unpaired     the error of the mean if the sides had been given different seeds
    evaluation   the part of `spread` that the choice of the held-out windows explains
    """

    count: int
    mean: float
    spread: float
    unpaired: float
    evaluation: float

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.spread / math.sqrt(self.count)

    @property
    def bound(self) -> float:
        """How far the mean may lie off, one-sided, at 95 %."""
        return _T95[min(self.count - 1, len(_T95)) - 1] * self.error

    def verdict(self) -> str:
        """Whether the difference is at most MARGIN: ok, MISSED, or how many seeds could tell."""
        if self.mean + self.bound <= MARGIN:
            return "ok"
        if self.mean - self.bound > MARGIN:
            return "MISSED"
        gap = abs(MARGIN - self.mean)
        if gap < 0.1 * MARGIN:
            return "undecided, and no number of seeds is likely to tell"
        return f"undecided, about {math.ceil((_T95[9] * self.spread / gap) ** 2) + 1} seeds could tell"


def estimate(found: Sequence[Pair]) -> Estimate:
    """Of two pairs or more."""
    difference, base, other = (np.array([getattr(p, name) for p in found]) for name in ("difference", "base", "other"))
    apart = math.sqrt((np.var(base, ddof=1) + np.var(other, ddof=1)) / len(found))
    evaluation = math.sqrt(np.mean([p.evaluation**2 for p in found]))
    return Estimate(len(found), float(np.mean(difference)), float(np.std(difference, ddof=1)), apart, evaluation)


def summary(results: Results) -> str:
    """A table of the seeds and the estimates, for people."""
    return "\n".join(_lines(results))


def _lines(results: Results) -> Iterator[str]:
    yield f"{'seed':>4}  {BASE:>14}  {FLOAT32:>14}  {AUDITKIT:>18}  {'difference':>10}  evaluation error"
    losses = {side: results.losses(side) for side in SIDES}
    found = {pair.seed: pair for pair in pairs(results)}
    for seed in sorted({run.seed for run in results.runs}):
        cells = [f"{np.mean(losses[side][seed]):.4f}" if seed in losses[side] else "-" for side in SIDES]
        pair = found.get(seed)
        ends = f"{pair.difference:+10.4f}  {pair.evaluation:.4f}" if pair else f"{'-':>10}"
        yield f"{seed:>4}  {cells[0]:>14}  {cells[1]:>14}  {cells[2]:>18}  {ends}"
    for other, base in ((AUDITKIT, BASE), (FLOAT32, BASE), (AUDITKIT, FLOAT32)):
        of_both = pairs(results, other, base)
        if len(of_both) >= 2:
            yield _line(f"{other} - {base}", estimate(of_both), judged=(other, base) == (AUDITKIT, BASE))
    if len(found) < 2:
        yield "fewer than two seeds of auditkit and bfloat16: no estimate"


def _line(what: str, found: Estimate, *, judged: bool) -> str:
    text = (
        f"{what}: {found.mean:+.4f} +- {found.error:.4f} ({found.count} seeds, spread {found.spread:.4f}, of which"
        f" evaluation {found.evaluation:.4f}; unpaired +- {found.unpaired:.4f})"
    )
    return f"{text}, at most {MARGIN:+.2f}: {found.verdict()}" if judged else text
