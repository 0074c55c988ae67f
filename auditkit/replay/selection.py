"""Which steps of a run: one, ranges, or a random sample that a seed makes repeatable; of those, one part of several."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, replace

from blake3 import blake3

from auditkit.errors import UsageError
from auditkit.replay.parts import share
from auditkit.store.progress import Progress

SAMPLE_CONTEXT = "auditkit random steps v1"
MAX_STEP = 2**53 - 1
MAX_SEED = 2**64 - 1
MAX_PARTS = 1_000_000
MAX_RANGES = 1_000_000
SHOWN_RANGES = 12  # in reports


@dataclass(frozen=True)
class Selection:
    """The steps asked for, before the length of the run is known.

    Exactly one of `step`, `ranges` (each first, stop; half-open) and `random` (a count, with `seed`) is set. `part` is
    (number, count): of the steps asked for, those of one of several machines. `drawn`: the seed was drawn here.
    """

    step: int | None = None
    ranges: tuple[tuple[int, int], ...] = ()
    random: int | None = None
    seed: int = 0
    part: tuple[int, int] | None = None
    drawn: bool = False

    def resolve(self, size: int, published: Iterable[int] = ()) -> tuple[int, ...]:
        """The selected steps of a run of `size` steps, ascending, each once.

        `published` are the steps whose start state is published, on which parts depend. UsageError: a step outside
        0..size-1, more random steps than the run has, or fewer steps than parts.
        """
        wanted = self._wanted(size)
        return wanted if self.part is None else share(wanted, published, *self.part)

    def tell(self, progress: Progress) -> None:
        """Say which seed was drawn, before anything long begins: the same steps can then be asked for again."""
        if self.drawn:
            progress.note(f"drawn with --seed {self.seed}, which names the same steps again")

    def _wanted(self, size: int) -> tuple[int, ...]:
        if self.step is not None:
            _inside(self.step, self.step + 1, size)
            return (self.step,)
        if self.random is not None:
            return sample(size, self.random, self.seed)
        for first, stop in self.ranges:
            _inside(first, stop, size)
        if len(self.ranges) == 1:
            return tuple(range(*self.ranges[0]))
        return tuple(sorted({step for first, stop in self.ranges for step in range(first, stop)}))

    def describe(self) -> str:
        """The selection in words, for reports: `step 5`, `steps 5:9 (5 to 8)`, `3 random steps (seed 7)`."""
        if self.part is not None:
            return f"part {self.part[0]} of {self.part[1]} of {replace(self, part=None).describe()}"
        if self.step is not None:
            return f"step {self.step}"
        if self.random is not None:
            return f"{self.random} random step{'' if self.random == 1 else 's'} (seed {self.seed})"
        if len(self.ranges) == 1:
            first, stop = self.ranges[0]
            return f"steps {first}:{stop} ({first} to {stop - 1})"
        said = in_words(self.ranges[:SHOWN_RANGES])
        more = len(self.ranges) - SHOWN_RANGES
        return f"steps {said}" + (f" and {more} more ranges" if more > 0 else "")


def in_words(ranges: Iterable[tuple[int, int]]) -> str:
    """Ranges as `select` reads them: `5`, `7:9`, joined by commas."""
    return ",".join(str(first) if stop == first + 1 else f"{first}:{stop}" for first, stop in ranges)


def select(
    *,
    step: int | None = None,
    steps: str | tuple[int, int] | range | None = None,
    random: int | None = None,
    seed: int | None = None,
    part: str | tuple[int, int] | None = None,
) -> Selection:
    """A Selection from what a user gave: one of `step`, `steps` and `random`.

    `steps` is "A:B", a pair or a range, or several "A:B" and "N" joined by commas. A sample without a seed takes a
    fresh one from the operating system, so that nobody can foresee it; reports name it. `part` is "I/N" or a pair: the
    I-th of N parts.

    UsageError: none or several given, a seed without `random`, a part of something that other machines cannot know, or
    a number out of bounds.
    """
    chosen = _select(step, steps, random, seed)
    if part is None:
        return chosen
    if random is not None and seed is None:
        raise UsageError("--part of --random needs a --seed: each machine would draw other steps", hint="--seed 7")
    return replace(chosen, part=_part(part))


def _select(
    step: int | None, steps: str | tuple[int, int] | range | None, random: int | None, seed: int | None
) -> Selection:
    given = [name for name, value in (("step", step), ("steps", steps), ("random", random)) if value is not None]
    if len(given) != 1:
        said = "none of them given" if not given else "given: " + ", ".join("--" + name for name in given)
        raise UsageError(f"choose exactly one of --step, --steps and --random ({said})", hint="for example: --step 0")
    if seed is not None and random is None:
        raise UsageError("--seed belongs to --random", hint="for example: --random 3 --seed 7")
    if step is not None:
        return Selection(step=_bounded("step", step, 0, MAX_STEP))
    if steps is not None:
        return Selection(ranges=_ranges(steps))
    count = _bounded("random", random, 1, MAX_STEP)
    chosen = _bounded("seed", secrets.randbits(32) if seed is None else seed, 0, MAX_SEED)
    return Selection(random=count, seed=chosen, drawn=seed is None)


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


def _ranges(steps: str | tuple[int, int] | range) -> tuple[tuple[int, int], ...]:
    if isinstance(steps, str):
        return _parse(steps)
    if isinstance(steps, range):
        if steps.step != 1:
            raise UsageError(f"{steps!r} does not count by one")
        return (_checked(steps.start, steps.stop),)
    if isinstance(steps, tuple) and len(steps) == 2:
        return (_checked(*steps),)
    raise UsageError(f"steps must be 'A:B', a pair or a range, not {steps!r}")


def _parse(text: str) -> tuple[tuple[int, int], ...]:
    """The ranges of "A:B" or of a list; a single number is left to --step, lest 5 be taken for the first five."""
    items = text.split(",", MAX_RANGES)
    found = []
    for item in items:
        first, colon, stop = item.partition(":")
        if not _decimal(first) or (colon and not _decimal(stop)) or (not colon and len(items) == 1):
            shown = text if len(text) <= 80 else text[:76] + "..."
            raise UsageError(f"--steps {shown!r} is not A:B", hint="A:B means A, A+1, ... B-1; for example 10:13")
        found.append(_checked(int(first), int(stop) if colon else int(first) + 1))
    return tuple(found)


def _checked(first: int, stop: int) -> tuple[int, int]:
    first_step = _bounded("steps", first, 0, MAX_STEP)
    stop_step = _bounded("steps", stop, 0, MAX_STEP)
    if stop_step <= first_step:
        hint = f"the end is not included: {first_step}:{first_step + 1} is step {first_step} alone"
        raise UsageError(f"--steps {first_step}:{stop_step} is empty", hint=hint)
    return first_step, stop_step


def _part(part: str | tuple[int, int]) -> tuple[int, int]:
    if isinstance(part, str):
        number, slash, count = part.partition("/")
        if not slash or not _decimal(number) or not _decimal(count):
            raise UsageError(f"--part {part!r} is not I/N", hint="2/4 is the second of four parts")
        pair = int(number), int(count)
    elif isinstance(part, tuple) and len(part) == 2:
        pair = part
    else:
        raise UsageError(f"part must be 'I/N' or a pair, not {part!r}")
    many = _bounded("part: the number of parts", pair[1], 1, MAX_PARTS)
    return _bounded("part", pair[0], 1, many), many


def _decimal(text: str) -> bool:
    # str.isdigit alone accepts superscripts and other scripts' digits; 16 digits hold every step below 2^53
    return text.isascii() and text.isdigit() and len(text) <= 16


def _bounded(name: str, value: int | None, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"{name} must be an integer, not {value!r}")
    if not low <= value <= high:
        raise UsageError(f"{name} {value} is outside {low}..{high}")
    return value
