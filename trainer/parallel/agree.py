"""What all ranks must know of each other before they go on: what each has found, or that one of them has no result.

An error on one rank alone would leave the others waiting. So ranks catch it, take part in what was begun, and say it at
the next meeting, where every rank raises it.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

from auditkit.errors import AuditkitError, BadArtifact, MachineFault, Unavailable, Unsupported, UsageError
from auditkit.numerics.nonfinite import NonFinite
from trainer.parallel.group import Group, RankLost

# What is raised where ranks have different errors: the first of these kinds. A fault of a machine, or a rank that
# cannot tell, says more than what followed from it.
KINDS: tuple[type[AuditkitError], ...] = (MachineFault, Unsupported, Unavailable, BadArtifact, UsageError, NonFinite)

_FOUND, _ERROR = b"+", b"-"


class Caught:
    """The first error of this rank, until it is said."""

    def __init__(self) -> None:
        self.error: AuditkitError | None = None

    @contextlib.contextmanager
    def catching(self) -> Iterator[None]:
        """Keep an error of the block, and go on behind it; a lost rank is no error of this one."""
        try:
            yield
        except RankLost:
            raise
        except AuditkitError as error:
            self.error = self.error or error.with_traceback(None)  # a traceback would keep its arrays alive


def agree(group: Group, caught: Caught, data: bytes) -> list[bytes]:
    """What each rank has found, in the order of the ranks. Raises on every rank the error that one of them has caught.

    Of several errors the first kind of KINDS counts, of equal ones that of the lowest rank.
    """
    said = group.gather_bytes(_FOUND + data if caught.error is None else _ERROR + _encoded(caught.error))
    failed = [(rank, text) for rank, text in enumerate(said) if text[:1] != _FOUND]
    if failed:
        raise min((_decoded(rank, text) for rank, text in failed), key=lambda error: KINDS.index(type(error)))
    return [text[1:] for text in said]


def _encoded(error: AuditkitError) -> bytes:
    kind = next((number for number, kind in enumerate(KINDS) if isinstance(error, kind)), KINDS.index(Unavailable))
    return json.dumps([kind, error.message, error.hint]).encode("ascii")


def _decoded(rank: int, text: bytes) -> AuditkitError:
    kind, message, hint = json.loads(text[1:])
    made: type[AuditkitError] = KINDS[kind]
    about = "" if made is NonFinite else f"rank {rank}: "  # that a step has no result is no matter of one rank
    return made(about + message, hint=hint)
