"""Which micro-batches of a step a user asks for: numbers, ranges, lists of them, or all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from auditkit.errors import UsageError
from auditkit.formats.canonical import shown
from auditkit.formats.limits import LIMITS
from auditkit.formats.micro_batches import MicroBatches

ALL = "all"
HINT = "for example: --micro-batch 0-3,7, or --micro-batch all"

Asked = str | int | Sequence[str | int]


def chosen(asked: Asked, count: int) -> MicroBatches:
    """The micro-batches of a step of `count` that were asked for: "3", "0-3,7", "all", numbers, or several of these.

    UsageError: nothing, something else, or a number that the step does not have.
    """
    given = [asked] if isinstance(asked, str | int) else list(asked)
    numbers: set[int] = set()
    for item in given:
        for first, last in _spans(item, count):
            if last >= count:
                raise UsageError(
                    f"micro-batch {last} not in this step: it has {count}, counted from 0", hint=f"0-{count - 1}"
                )
            numbers.update(range(first, last + 1))
    if not numbers:
        raise UsageError("no micro-batch is named", hint=HINT)
    found = MicroBatches.of(numbers, count)
    if len(found.text) > LIMITS.micro_batches_characters:
        raise UsageError(f"{len(found.ranges)} ranges of micro-batches are too many", hint="ask for longer ranges")
    return found


def check(asked: object) -> None:
    """Refuse what no step could have, before anything is opened; UsageError."""
    items: Iterable[object] = [asked] if isinstance(asked, str | int) else asked  # type: ignore[assignment]
    if not isinstance(asked, str | int | Sequence):
        raise UsageError(f"micro_batches must be text, a number, or a list of these, not {asked!r}")
    for item in items:
        for _ in _spans(item, LIMITS.micro_batches_per_step):
            pass


def _spans(item: object, count: int) -> Iterator[tuple[int, int]]:
    """First and last of each range."""
    if isinstance(item, int) and not isinstance(item, bool) and item >= 0:
        yield item, item
        return
    if not isinstance(item, str):
        raise UsageError(f"a micro-batch is a number from 0 on, or text, not {item!r}", hint=HINT)
    if item == ALL:
        yield 0, count - 1
        return
    for span in item.split(","):
        first, dash, last = span.partition("-")
        if not _number(first) or (dash and not _number(last)) or (dash and int(last) < int(first)):
            raise UsageError(f"--micro-batch {shown(span[:80])} is not a number or a range such as 0-3", hint=HINT)
        yield int(first), int(last if dash else first)


def _number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 7
