"""Some micro-batches of a step as text, "0-3,7": ascending ranges with both ends, in their one shortest form."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Self

from auditkit.errors import BadArtifact
from auditkit.formats.canonical import shown
from auditkit.formats.limits import LIMITS

_RANGE = re.compile(r"(0|[1-9][0-9]{0,6})(?:-([1-9][0-9]{0,6}))?")


@dataclass(frozen=True, slots=True)
class MicroBatches:
    """Micro-batches of a step that has `count`: half-open ranges, ascending, with gaps between them, at least one."""

    ranges: tuple[tuple[int, int], ...]
    count: int

    @classmethod
    def of(cls, numbers: Iterable[int], count: int) -> Self:
        """These numbers, each below `count`, in any order."""
        ranges: list[tuple[int, int]] = []
        for number in sorted(set(numbers)):
            if ranges and ranges[-1][1] == number:
                ranges[-1] = (ranges[-1][0], number + 1)
            else:
                ranges.append((number, number + 1))
        return cls(tuple(ranges), count)

    @classmethod
    def parse(cls, text: object, count: int, what: str) -> Self:
        """The set of a text in its one form; BadArtifact naming `what`."""
        if type(text) is not str or len(text) > LIMITS.micro_batches_characters:
            raise BadArtifact(f"{what}: not text of at most {LIMITS.micro_batches_characters} characters")
        found = cls(tuple(_ranges(text, what)), count)
        if found.text != text or any(first >= stop for first, stop in found.ranges) or not found._apart():
            raise BadArtifact(f"{what}: {shown(text)} is not the shortest form of ascending ranges, such as 0-3,7")
        if found.ranges[-1][1] > count:
            raise BadArtifact(f"{what}: {shown(text)} leads out of the step's {count} micro-batches")
        return found

    @property
    def text(self) -> str:
        """The ranges with both ends: "0-3,7"."""
        return ",".join(str(a) if b == a + 1 else f"{a}-{b - 1}" for a, b in self.ranges)

    @property
    def all(self) -> bool:
        """Whether these are all micro-batches of the step."""
        return self.ranges == ((0, self.count),)

    @property
    def others(self) -> MicroBatches:
        """The micro-batches of the step that are not among these; may be none."""
        edges = [0, *(edge for pair in self.ranges for edge in pair), self.count]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return MicroBatches(tuple((first, stop) for first, stop in pairs if first < stop), self.count)

    def __len__(self) -> int:
        return sum(stop - first for first, stop in self.ranges)

    def __iter__(self) -> Iterator[int]:
        return (number for first, stop in self.ranges for number in range(first, stop))

    def describe(self) -> str:
        """In words: `micro-batches 0-3,7 of 16`."""
        word = "micro-batch" if len(self) == 1 else "micro-batches"
        return f"{word} {self.text} of {self.count}"

    def _apart(self) -> bool:
        return all(a[1] < b[0] for a, b in zip(self.ranges, self.ranges[1:], strict=False))


def _ranges(text: str, what: str) -> Iterator[tuple[int, int]]:
    for item in text.split(","):
        found = _RANGE.fullmatch(item)
        if found is None:
            raise BadArtifact(f"{what}: {shown(item)} is not a number or a range such as 0-3")
        yield int(found[1]), int(found[2] or found[1]) + 1
