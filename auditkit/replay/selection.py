"""Which steps of a run: one, a half-open range, or a random sample that a seed makes repeatable."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from blake3 import blake3

from auditkit.errors import UsageError

SAMPLE_CONTEXT = "auditkit random steps v1"
MAX_STEP = 2**53 - 1
MAX_SEED = 2**64 - 1


@dataclass(frozen=True)
class Selection:
    """The steps asked for, before the length of the run is known.

    Exactly one of `step`, `steps` (first, stop; half-open) and `random` (a count, with `seed`) is set.
    """

    step: int | None = None
    steps: tuple[int, int] | None = None
    random: int | None = None
    seed: int = 0

    def resolve(self, size: int) -> tuple[int, ...]:
        """The selected steps of a run of `size` steps, ascending, each once.

        UsageError: a step outside 0..size-1, an empty range, or more random steps than the run has.
        """
        if self.step is not None:
            _inside(self.step, self.step + 1, size)
            return (self.step,)
        if self.steps is not None:
            first, stop = self.steps
            _inside(first, stop, size)
            return tuple(range(first, stop))
        return sample(size, self.random or 0, self.seed)

    def describe(self) -> str:
        """The selection in words, for reports: `step 5`, `steps 5:9 (5 to 8)`, `3 random steps (seed 7)`."""
        if self.step is not None:
            return f"step {self.step}"
        if self.steps is not None:
            return f"steps {self.steps[0]}:{self.steps[1]} ({self.steps[0]} to {self.steps[1] - 1})"
        return f"{self.random} random step{'' if self.random == 1 else 's'} (seed {self.seed})"


def select(
    *,
    step: int | None = None,
    steps: str | tuple[int, int] | range | None = None,
    random: int | None = None,
    seed: int | None = None,
) -> Selection:
    """A Selection from what a user gave: one of `step`, `steps` ("A:B", a pair or a range) and `random`.

    A sample without a seed takes a fresh one from the operating system, so that nobody can foresee it; reports name it.

    UsageError: none or several given, a seed without `random`, or a number out of bounds.
    """
    given = [name for name, value in (("step", step), ("steps", steps), ("random", random)) if value is not None]
    if len(given) != 1:
        said = "none of them given" if not given else "given: " + ", ".join("--" + name for name in given)
        raise UsageError(f"choose exactly one of --step, --steps and --random ({said})", hint="for example: --step 0")
    if seed is not None and random is None:
        raise UsageError("--seed belongs to --random", hint="for example: --random 3 --seed 7")
    if step is not None:
        return Selection(step=_bounded("step", step, 0, MAX_STEP))
    if steps is not None:
        return Selection(steps=_range(steps))
    count = _bounded("random", random, 1, MAX_STEP)
    return Selection(random=count, seed=_bounded("seed", secrets.randbits(32) if seed is None else seed, 0, MAX_SEED))


def sample(size: int, count: int, seed: int) -> tuple[int, ...]:
    """`count` different steps out of `size`, ascending, the same for a seed on every machine.

    A partial Fisher-Yates shuffle: place i takes what lies at place i + h(seed, i) mod (size - i), h being the first
    16 bytes (little-endian) of BLAKE3 under SAMPLE_CONTEXT of both numbers as 8 little-endian bytes; the modulo bias is
    below 2^-64 for any run that fits 2^53 steps.

    UsageError: more steps than the run has.
    """
    if count > size:
        raise UsageError(f"{count} random steps asked for, but the run has {size}", hint=f"--random {size} takes all")
    moved: dict[int, int] = {}
    chosen = []
    for i in range(count):
        word = seed.to_bytes(8, "little") + i.to_bytes(8, "little")
        draw = int.from_bytes(blake3(word, derive_key_context=SAMPLE_CONTEXT).digest(length=16), "little")
        j = i + draw % (size - i)
        chosen.append(moved.get(j, j))
        moved[j] = moved.get(i, i)
    return tuple(sorted(chosen))


def _inside(first: int, stop: int, size: int) -> None:
    if stop > size:
        asked = f"step {first}" if stop == first + 1 else f"steps {first}:{stop}"
        last = f"its last step is {size - 1}" if size else "it has none"
        raise UsageError(f"{asked} not in this run: it has {size} steps, counted from 0", hint=last)


def _range(steps: str | tuple[int, int] | range) -> tuple[int, int]:
    if isinstance(steps, str):
        first, colon, stop = steps.partition(":")
        if not colon or not _decimal(first) or not _decimal(stop):
            raise UsageError(f"--steps {steps!r} is not A:B", hint="A:B means A, A+1, ... B-1; for example 10:13")
        pair = int(first), int(stop)
    elif isinstance(steps, range):
        if steps.step != 1:
            raise UsageError(f"{steps!r} does not count by one")
        pair = steps.start, steps.stop
    elif isinstance(steps, tuple) and len(steps) == 2:
        pair = steps
    else:
        raise UsageError(f"steps must be 'A:B', a pair or a range, not {steps!r}")
    first_step = _bounded("steps", pair[0], 0, MAX_STEP)
    stop_step = _bounded("steps", pair[1], 0, MAX_STEP)
    if stop_step <= first_step:
        hint = f"the end is not included: {first_step}:{first_step + 1} is step {first_step} alone"
        raise UsageError(f"--steps {first_step}:{stop_step} is empty", hint=hint)
    return first_step, stop_step


def _decimal(text: str) -> bool:
    # str.isdigit alone accepts superscripts and other scripts' digits; 16 digits hold every step below 2^53
    return text.isascii() and text.isdigit() and len(text) <= 16


def _bounded(name: str, value: int | None, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{name} must be an integer, not {value!r}")
    if not low <= value <= high:
        raise UsageError(f"{name} {value} is outside {low}..{high}")
    return value
